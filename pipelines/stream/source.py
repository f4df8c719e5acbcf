"""The archive as a source of Spark Structured Streaming: each micro-batch is a list of segments that are not in the lake."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import orjson
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from manifold.archive.segment import AHEAD, Interval, Segment
from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from manifold.lake.catalog import open_catalog
from manifold.settings import Settings
from pipelines.ingest.backlog import groups_of
from pipelines.ingest.ledger import new_segments

FORMAT = "manifold_segments"
SCHEMA = "path string, stream string, size long, modified_at string"
RECENT = timedelta(days=1)  # age up to which segments are looked for each time
FULL_LISTING_EVERY = timedelta(hours=1)  # between listings of the whole archive, which find segments that arrived late
NO_SEGMENTS = "[]"


class SegmentList(InputPartition):
    """The segments of one micro-batch, as JSON."""


class NewSegments(DataSourceStreamReader):
    """Offers segments of the archive that are not in the lake, oldest first, at most `stream_max_segments` at a time.

    An offset is the list of a micro-batch's segments, as JSON. Spark checkpoints the offset before the micro-batch begins, so
    a restart repeats the same micro-batch.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.last_offset = NO_SEGMENTS  # the newest micro-batch
        self.listed_all_at = datetime.min.replace(tzinfo=UTC)  # when the whole archive was listed; long ago: list it at first

    def initialOffset(self) -> dict[str, str]:  # noqa: N802  # Spark's name
        """The initial offset, with no segments."""
        return {"segments": NO_SEGMENTS}

    def latestOffset(self) -> dict[str, str]:  # noqa: N802  # Spark's name
        """The next micro-batch, or the previous micro-batch while the archive has no new segment."""
        new = self._new_segments(datetime.now(UTC))
        if new:
            rows = [(segment.path, segment.stream.value, segment.size, segment.modified_at.isoformat()) for segment in new]
            self.last_offset = orjson.dumps(rows).decode()
        return {"segments": self.last_offset}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """Put the segments of the micro-batch in one partition, because a list of paths is small; none if nothing is new."""
        return [] if start == end else [SegmentList(end["segments"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield one row of `SCHEMA` for each segment."""
        yield from (tuple(row) for row in orjson.loads(partition.value))

    def _new_segments(self, now: datetime) -> list[Segment]:
        """The segments of the next micro-batch, limited by `stream_max_segments` and `ingest_max_bytes`."""
        settings = self.settings
        lists_all = now - self.listed_all_at > FULL_LISTING_EVERY
        interval = None if lists_all else Interval(now - RECENT, now + AHEAD)
        new = new_segments(open_catalog(settings), Archive(settings.archive, settings.s3), interval)
        max_segments = settings.stream_max_segments
        listed = list(islice(new, max_segments + 1))  # one more than the limit tells whether some are left over
        offered = next(groups_of(listed[:max_segments], settings.ingest_max_bytes), [])
        if lists_all and len(offered) == len(listed):  # otherwise the next micro-batch needs the whole listing again
            self.listed_all_at = now
        return offered


def source_of(settings: Settings) -> type[DataSource]:
    """Make a data source class bound to these settings. Spark creates its instances, and could pass them options only as text."""

    class Segments(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> StructType | str:
            return SCHEMA

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
            del schema
            return NewSegments(settings)

    return Segments


def segment_of(path: str, stream: str, size: int, modified_at: str) -> Segment:
    """The segment that a row of `SCHEMA` describes."""
    return Segment(path, Stream(stream), size, datetime.fromisoformat(modified_at))
