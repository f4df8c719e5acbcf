"""Removes messages of compacted queues past their retention, acknowledged or not: from Redis, then from the lake in a run.

A pending message ends as expired, with a row in `ecq_state`, even if Redis lacks it, because no populate loads it any more.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from manifold.contracts.seq import first_seq_at
from manifold.contracts.tables import ECQ_INDEX, ECQ_PAYLOAD, ECQ_STATE, SEGMENTS
from manifold.queues import EcqLoader, Policy
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.branches import ConcurrentPublish, branch_of, drop_branches, open_run
from pipelines.ingest.ecq_rows import expired_rows
from pipelines.ingest.lease import LeaseLost
from pipelines.ingest.maintenance_run import until_not_overtaken
from pipelines.ingest.publish import main_snapshots, publish
from pipelines.ingest.run import Ingested, Run
from pipelines.maintenance.change_rows import remove
from pipelines.maintenance.ecq_plan import EXPIRING, OVERDUE, Cut, past_retention
from pipelines.maintenance.ecq_rows import planned
from pipelines.maintenance.garbage_run import SAMPLE_SIZE, Removal
from pipelines.populate.lock import populate_lock
from pipelines.populate.workers import counted

Batches = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


def drop_messages(run: Run, *, dry_run: bool) -> Removal:
    """Remove messages past `ecq_retention_days` or, while they are pending, past `ecq_pending_retention_days`.

    Messages that Redis has in flight, or knows to be acknowledged, are left to the outcome that is on its way.
    The populate lock is held: a populate that began earlier could load them into Redis again.

    Raises:
        Retryable: a service was unavailable, or other runs were in the way; run it again.
        redis.RedisError: Redis is unavailable or refuses; the lake is unchanged.
    """
    if dry_run:
        base = main_snapshots(run.catalog, run.catalog.load_table(SEGMENTS.identifier))
        return _removal(_past_retention(Attempt(run), base).persist())
    with connect(run.settings.redis) as redis, populate_lock(redis):
        return until_not_overtaken()(lambda: _drop(Attempt(run)))


def _drop(attempt: Attempt) -> Removal:
    """Remove from Redis first: if the run dies in between, the next one finds the same messages, and Redis answers the same."""
    catalog, settings = attempt.catalog, attempt.settings
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    found = _past_retention(attempt, base).persist()
    expired = _expired(attempt, found.where(sf.col("what") == EXPIRING)).persist()
    try:
        prune = _pruner(settings.redis, Policy.of(settings), _unix_ms(_cut(settings, attempt.now)), _unix_ms(attempt.now))
        ended = found.where(sf.col("what") == OVERDUE)
        counted(ended.select("client_id").distinct(), prune, ("pruned",))
        gone = ended.select("client_id", "seq").unionByName(expired.select("client_id", "seq"))
        removal = _removal(gone)
        if not removal.count:
            return removal
        drop_branches(catalog, branch_of(attempt.run_id))
        open_run(catalog, attempt.run_id, base[SEGMENTS.name], attempt.now)
        try:
            for table in (ECQ_INDEX, ECQ_PAYLOAD):
                remove(attempt, table, gone.select("seq"), base[table.name])
            if expired.count():
                attempt.append(ECQ_STATE, expired_rows(expired, at=attempt.now), base[ECQ_STATE.name])
            attempt.append_to_ledger(
                SEGMENTS.arrow_schema.empty_table(), Ingested(attempt.run_id, written=attempt.written), base[SEGMENTS.name]
            )
            publish(catalog, attempt.run_id, must=True)
        except (ConcurrentPublish, LeaseLost, Py4JJavaError, PySparkException):
            drop_branches(catalog, branch_of(attempt.run_id))
            raise
        return removal
    finally:
        expired.unpersist()
        found.unpersist()


def _past_retention(attempt: Attempt, base: dict[str, int]) -> DataFrame:
    """(what, client_id, seq, epoch) of messages past their retention; `what` is OVERDUE, or EXPIRING if still pending."""
    pending_from = Policy.of(attempt.settings).ecq_pending_from(_unix_ms(attempt.now))
    cut = Cut(first_seq_at(_cut(attempt.settings, attempt.now)), pending_from)
    return planned(attempt, base, partial(past_retention, cut=cut)).select("what", "client_id", "seq", "epoch")


def _expired(attempt: Attempt, pending: DataFrame) -> DataFrame:
    """(client_id, seq, epoch) of the pending messages that Redis, too, finds expired. Redis forgets them."""
    expire = _expirer(attempt.settings.redis, Policy.of(attempt.settings), _unix_ms(attempt.now))
    columns = "client_id string, seq bigint, epoch bigint"
    return pending.select("client_id", "seq", "epoch").sortWithinPartitions("client_id").mapInArrow(expire, columns)


def _cut(settings: Settings, now: datetime) -> datetime:
    return now - timedelta(days=settings.ecq_retention_days)


def _removal(found: DataFrame) -> Removal:
    sample = found.orderBy("seq").limit(SAMPLE_SIZE).collect()
    return Removal(found.count(), [f"{row['client_id']} {row['seq']}" for row in sample])


def _pruner(url: str, policy: Policy, before_ms: int, now_ms: int) -> Batches:
    def prune(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loader = EcqLoader(connect(url), policy)
        for batch in batches:
            pruned = loader.prune(batch["client_id"].to_pylist(), before_ms, now_ms)
            yield pa.RecordBatch.from_pydict({"pruned": [pruned]})

    return prune


def _expirer(url: str, policy: Policy, now_ms: int) -> Batches:
    def expire(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loader = EcqLoader(connect(url), policy)
        for batch in batches:
            rows = batch.to_pylist()
            epochs = {row["client_id"]: row["epoch"] for row in rows}
            by_client = groupby(rows, key=lambda row: row["client_id"])
            queues = ((client_id, [row["seq"] for row in some]) for client_id, some in by_client)
            ended = [{"client_id": c, "seq": seq, "epoch": epochs[c]} for c, seq in loader.expire(queues, now_ms)]
            yield pa.RecordBatch.from_pylist(ended, schema=batch.schema)

    return expire


def _unix_ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)
