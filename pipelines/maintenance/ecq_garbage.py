"""Removes acknowledged messages of compacted queues past `ecq_retention_days`: from Redis, then from the lake by a run."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from manifold.contracts.tables import ECQ_INDEX, ECQ_PAYLOAD, SEGMENTS
from manifold.queues import EcqLoader, Policy
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.ingest.amending import until_not_overtaken
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.branches import branch_of, close_run, open_run
from pipelines.ingest.lease import LeaseLost
from pipelines.ingest.publish import ConcurrentPublish, main_snapshots, publish
from pipelines.ingest.run import Ingested, Run
from pipelines.maintenance.ecq_plan import overdue
from pipelines.maintenance.ecq_rows import planned
from pipelines.maintenance.garbage_run import SAMPLE, Removal
from pipelines.maintenance.removing import remove
from pipelines.populate.lock import populate_lock
from pipelines.populate.workers import counted

Batches = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


def drop_messages(run: Run, *, dry_run: bool) -> Removal:
    """Let acknowledged messages go that were written before the retention; pending ones stay, however old.

    Under the lock of whoever compares lake and queues: a populate that began earlier could bring them back into Redis.

    Raises:
        Retryable: something was away, or other runs were in the way; do it again.
        redis.RedisError: Redis is away or refuses; nothing of the lake has changed.
    """
    if dry_run:
        base = main_snapshots(run.catalog, run.catalog.load_table(SEGMENTS.identifier))
        return _removal(_overdue(Attempt(run), base))
    with connect(run.settings.redis) as redis, populate_lock(redis):
        return until_not_overtaken()(lambda: _drop(Attempt(run)))


def _drop(run: Attempt) -> Removal:
    """From Redis first: what the lake has and Redis has not is loaded again as acknowledged, and goes the next time."""
    catalog, settings = run.catalog, run.settings
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    found = _overdue(run, base).persist()
    try:
        removal = _removal(found)
        if not removal.count:
            return removal
        prune = _pruner(settings.redis, Policy.of(settings), _unix_ms(_cut(settings, run.now)), _unix_ms(run.now))
        counted(found.select("client_id").distinct(), prune, ("pruned",))
        close_run(catalog, branch_of(run.run_id))
        open_run(catalog, run.run_id, base[SEGMENTS.name], run.now)
        try:
            for table in (ECQ_INDEX, ECQ_PAYLOAD):
                remove(run, table, found.select("seq"), base[table.name])
            run.close(SEGMENTS.arrow_schema.empty_table(), Ingested(run.run_id, written=run.written), base[SEGMENTS.name])
            publish(catalog, run.run_id)
        except (ConcurrentPublish, LeaseLost, Py4JJavaError, PySparkException):
            close_run(catalog, branch_of(run.run_id))
            raise
        return removal
    finally:
        found.unpersist()


def _overdue(run: Attempt, base: dict[str, int]) -> DataFrame:
    """(client_id, seq) of the messages that are to go."""
    return planned(run, base, partial(overdue, cut=_cut(run.settings, run.now))).select("client_id", "seq")


def _cut(settings: Settings, now: datetime) -> datetime:
    return now - timedelta(days=settings.ecq_retention_days)


def _removal(found: DataFrame) -> Removal:
    sample = found.orderBy("seq").limit(SAMPLE).collect()
    return Removal(found.count(), [f"{row['client_id']} {row['seq']}" for row in sample])


def _pruner(url: str, policy: Policy, before_ms: int, now_ms: int) -> Batches:
    def prune(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loader = EcqLoader(connect(url), policy)
        for batch in batches:
            pruned = loader.prune(batch["client_id"].to_pylist(), before_ms, now_ms)
            yield pa.RecordBatch.from_pydict({"pruned": [pruned]})

    return prune


def _unix_ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)
