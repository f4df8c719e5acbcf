"""Finds outcomes that are on their way to the lake, as opposed to outcomes that are recorded nowhere.

An outcome moves from a stream in Redis to a recorder's journal, then to a segment of the archive, then to the lake. The search
follows the same order, so an outcome that moves during the search is found at least once.
"""

from collections.abc import Iterator
from typing import cast

import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession
from redis import Redis

from manifold.archive import parsing
from manifold.archive.flush import flush
from manifold.archive.store import Archive
from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.contracts.outcomes import OutcomeRecord
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.ingest.ledger import new_segments
from pipelines.ingest.publish import finish_committed_runs
from pipelines.ingest.reading import Source, read_and_parse

RECORDS_PER_PAGE = 5000
ROWS = "vin string, seq bigint"
Page = list[tuple[bytes, dict[bytes, bytes]]]

log = structlog.get_logger(__name__)


def on_their_way(spark: SparkSession, catalog: Catalog, settings: Settings) -> DataFrame | None:
    """(vin, seq) of outcomes that are not in the lake yet; None if a recorder cannot be flushed.

    A recorder that is not flushed may have outcomes in a segment that is not in the archive yet.

    Raises:
        redis.RedisError: Redis is unavailable or refuses.
    """
    with connect(settings.redis) as redis:
        in_redis = list(_outcomes_in_stream(redis))
    if not flush(settings):
        log.warning("a recorder cannot be flushed; unrecorded outcomes are not reported")
        return None
    finish_committed_runs(catalog)  # so that the lake has the outcomes of every segment in the ledger
    archive = Archive(settings.archive, settings.s3)
    segments = [segment for segment in new_segments(catalog, archive) if segment.stream is Stream.OUTCOME]
    source = Source(archive, segments, skips={}, problems={}, limits=parsing.Limits.of(settings))
    not_in_lake = spark.createDataFrame(in_redis, ROWS)
    if not segments:
        return not_in_lake
    parsed = read_and_parse(source, spark, parsing.outcomes, parsing.OUTCOMES, with_unreadable=False)
    in_archive = parsed.where("reason is null").selectExpr("vin", "entry_seq as seq")
    return not_in_lake.unionByName(in_archive)


def _outcomes_in_stream(redis: Redis) -> Iterator[tuple[str, int]]:
    """Yield (vin, seq) of the outcomes in the stream, from which recorders remove the outcomes that they have recorded."""
    start = "-"
    while page := cast(Page, redis.xrange(keys.OUTCOMES, start, "+", count=RECORDS_PER_PAGE)):
        for _, fields in page:
            try:
                record = OutcomeRecord.from_wire(fields.get(b"o", b""))
            except ValueError:
                continue  # not an outcome: the recorder quarantines this record
            yield record.vin, record.seq
        last_id, _ = page[-1]
        start = f"({last_id.decode()}"  # exclusive
