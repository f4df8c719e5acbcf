"""Finds outcomes that are on their way to the lake, as opposed to outcomes that are recorded nowhere.

An outcome moves from the stream in Redis to a recorder's journal, to a segment of the archive, to the lake. The search follows
the same order, so that an outcome that moves in the meantime is found in at least one place.
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
    """(vin, seq) of outcomes that are recorded but not in the lake; None if a recorder cannot be flushed.

    Raises:
        redis.RedisError: Redis is unavailable or refuses.
    """
    with connect(settings.redis) as redis:
        waiting = list(_in_stream(redis))
    if not flush(settings):
        log.warning("recorder not flushed; skipping the check for unrecorded outcomes")
        return None
    finish_committed_runs(catalog)
    archive = Archive(settings.archive, settings.s3)
    new = [each for each in new_segments(catalog, archive) if each.stream is Stream.OUTCOME]
    source = Source(archive, new, {}, {}, parsing.Limits(settings.max_ids, settings.max_data_bytes))
    found = spark.createDataFrame(waiting, ROWS)
    if not new:
        return found
    archived = read_and_parse(source, spark, parsing.outcomes, parsing.OUTCOMES, with_unreadable=False).where("reason is null")
    return found.unionByName(archived.selectExpr("vin", "entry_seq as seq"))


def _in_stream(redis: Redis) -> Iterator[tuple[str, int]]:
    """Yield the outcomes in the stream that no recorder has settled."""
    start = "-"
    while page := cast(Page, redis.xrange(keys.OUTCOMES, start, "+", count=RECORDS_PER_PAGE)):
        for _, fields in page:
            try:
                record = OutcomeRecord.from_wire(fields.get(b"o", b""))
            except ValueError:
                continue  # the recorder quarantines it
            yield record.vin, record.seq
        start = f"({page[-1][0].decode()}"
