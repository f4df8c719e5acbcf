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
from pipelines.ingest.chunks import in_chunks
from pipelines.ingest.ledger import new_segments

FORMAT = "manifold_segments"
SCHEMA = "path string, stream string, size long, modified_at string"
RECENT = timedelta(days=1)  # where new segments usually are; the whole archive is listed every `FULL_LISTING_EVERY`
FULL_LISTING_EVERY = timedelta(hours=1)
NO_SEGMENTS = "[]"


class Paths(InputPartition):
    """The segments of one micro-batch, as JSON."""


class NewSegments(DataSourceStreamReader):
    """Offers segments of the archive that are not in the lake, oldest first, at most `stream_max_segments` at a time.

    An offset is the micro-batch itself: its segments as JSON. Spark checkpoints it before the work begins, so a restart repeats
    the same batch.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.last = NO_SEGMENTS
        self.listed_all_at = datetime.min.replace(tzinfo=UTC)

    def initialOffset(self) -> dict[str, str]:  # noqa: N802  # Spark's name
        """The initial offset, with no segments."""
        return {"segments": NO_SEGMENTS}

    def latestOffset(self) -> dict[str, str]:  # noqa: N802  # Spark's name
        """The next micro-batch; the previous one again while nothing is new."""
        new = self._new(datetime.now(UTC))
        if new:
            rows = [(s.path, s.stream.value, s.size, s.modified_at.isoformat()) for s in new]
            self.last = orjson.dumps(rows).decode()
        return {"segments": self.last}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """One partition, because a list of paths is small."""
        return [] if start == end else [Paths(end["segments"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the segments' rows."""
        yield from (tuple(row) for row in orjson.loads(partition.value))

    def _new(self, now: datetime) -> list[Segment]:
        lists_all = now - self.listed_all_at > FULL_LISTING_EVERY
        part = None if lists_all else Interval(now - RECENT, now + AHEAD)
        settings = self.settings
        found = new_segments(open_catalog(settings), Archive(settings.archive, settings.s3), part)
        most = list(islice(found, settings.stream_max_segments + 1))
        if lists_all and len(most) <= settings.stream_max_segments:
            self.listed_all_at = now
        return next(in_chunks(most[: settings.stream_max_segments], settings.ingest_max_bytes), [])


def source_of(settings: Settings) -> type[DataSource]:
    """Make the data source class for these settings: Spark creates the instances, and could pass options only as text."""

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
    """A segment from its row."""
    return Segment(path, Stream(stream), size, datetime.fromisoformat(modified_at))
