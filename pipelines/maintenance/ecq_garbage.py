"""Removes messages of compacted queues past their retention: first from Redis, then from the lake, in a run of its own.

A message that is still pending expires, and gets a row in `ecq_state`. It expires even if Redis lacks it, because populate does
not load messages past their retention.
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
from pipelines.ingest.branches import Overtaken, branch_of, drop_branches, open_run
from pipelines.ingest.lease import LeaseLost
from pipelines.ingest.maintenance_run import until_not_overtaken
from pipelines.ingest.publish import publish
from pipelines.ingest.run import Ingested, Run
from pipelines.ingest.write_ecq import expired_rows
from pipelines.maintenance.change_rows import delete_rows
from pipelines.maintenance.ecq_plan import EXPIRING, OVERDUE, KeptFrom, past_retention
from pipelines.maintenance.ecq_rows import plan_changes
from pipelines.maintenance.garbage_run import SAMPLE_SIZE, Removal
from pipelines.populate.lock import populate_lock
from pipelines.populate.workers import run_and_count

Batches = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


def drop_messages(run: Run, *, dry_run: bool) -> Removal:
    """Remove messages past `ecq_retention_days` and, while they are pending, past `ecq_pending_retention_days`.

    A message stays if Redis has it in flight or knows that it is acknowledged: its outcome has not arrived in the lake yet. The
    populate lock is held, because a populate that began earlier could load the messages into Redis again. With `dry_run`, the
    messages are only counted.

    Raises:
        Retryable: a service was unavailable, or other runs were published first; run it again.
        redis.RedisError: Redis is unavailable or refuses; the lake is unchanged.
    """
    if dry_run:
        old_messages = _past_retention(Attempt.on_main(run)).persist()
        try:
            return _removal(old_messages)
        finally:
            old_messages.unpersist()
    with connect(run.settings.redis) as redis, populate_lock(redis):
        return until_not_overtaken()(lambda: _remove_messages(Attempt.on_main(run)))


def _remove_messages(attempt: Attempt) -> Removal:
    """Remove the messages from Redis, then from the lake.

    If the process dies in between, the next attempt finds the same messages in the lake, and removes them from Redis again.
    """
    catalog = attempt.catalog
    settings = attempt.settings
    old_messages = _past_retention(attempt).persist()
    expired = _expire_in_redis(attempt, old_messages.where(sf.col("what") == EXPIRING)).persist()
    try:
        overdue = old_messages.where(sf.col("what") == OVERDUE)
        cutoff_ms = _unix_ms(_retention_cutoff(settings, attempt.now))
        prune = _pruner(settings.redis, Policy.of(settings), cutoff_ms, _unix_ms(attempt.now))
        run_and_count(overdue.select("client_id").distinct(), prune, ("pruned",))
        to_remove = overdue.select("client_id", "seq").unionByName(expired.select("client_id", "seq"))
        removal = _removal(to_remove)
        if not removal.count:
            return removal
        drop_branches(catalog, branch_of(attempt.run_id))  # of an earlier attempt with this run id
        open_run(catalog, attempt.run_id, attempt.base[SEGMENTS.name], attempt.now)
        try:
            for table in (ECQ_INDEX, ECQ_PAYLOAD):
                delete_rows(attempt, table, to_remove.select("seq"))
            if expired.count():
                attempt.append(ECQ_STATE, expired_rows(expired, at=attempt.now))
            no_segments = SEGMENTS.arrow_schema.empty_table()
            attempt.append_to_ledger(no_segments, Ingested(attempt.run_id, written=attempt.written))
            publish(catalog, attempt.run_id, must=True)  # raises Overtaken if another job has closed the run
        except (Overtaken, LeaseLost, Py4JJavaError, PySparkException):
            drop_branches(catalog, branch_of(attempt.run_id))
            raise
        return removal
    finally:
        expired.unpersist()
        old_messages.unpersist()


def _past_retention(attempt: Attempt) -> DataFrame:
    """(what, client_id, seq, epoch) of messages past their retention. `what` is EXPIRING for pending messages, else OVERDUE."""
    pending_from = Policy.of(attempt.settings).ecq_pending_from(_unix_ms(attempt.now))
    acknowledged_from = first_seq_at(_retention_cutoff(attempt.settings, attempt.now))
    kept_from = KeptFrom(acknowledged_from, pending_from)
    return plan_changes(attempt, partial(past_retention, kept_from=kept_from)).select("what", "client_id", "seq", "epoch")


def _expire_in_redis(attempt: Attempt, pending: DataFrame) -> DataFrame:
    """Expire these messages in Redis, and remove them there; return (client_id, seq, epoch) of those that expired.

    A message does not expire if it is acknowledged, in flight, or just being published, or if its queue has corrupt keys.
    """
    expire = _expirer(attempt.settings.redis, Policy.of(attempt.settings), _unix_ms(attempt.now))
    columns = "client_id string, seq bigint, epoch bigint"
    # The rows are sorted, because `expire` takes consecutive rows of a client together.
    return pending.select("client_id", "seq", "epoch").sortWithinPartitions("client_id").mapInArrow(expire, columns)


def _retention_cutoff(settings: Settings, now: datetime) -> datetime:
    """The instant before which messages are past `ecq_retention_days`."""
    return now - timedelta(days=settings.ecq_retention_days)


def _removal(messages: DataFrame) -> Removal:
    """The number of these messages, and a sample of them, as client id and seq."""
    sample = messages.orderBy("seq").limit(SAMPLE_SIZE).collect()
    return Removal(messages.count(), [f"{row['client_id']} {row['seq']}" for row in sample])


def _pruner(url: str, policy: Policy, before_ms: int, now_ms: int) -> Batches:
    """Make the function that removes acknowledged messages before `before_ms` from the queues of the clients in its input.

    The input has the column `client_id`. The function yields the number of removed messages, as `pruned`.
    """

    def prune(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loader = EcqLoader(connect(url), policy)
        for batch in batches:
            pruned = loader.prune(batch["client_id"].to_pylist(), before_ms, now_ms)
            yield pa.RecordBatch.from_pydict({"pruned": [pruned]})

    return prune


def _expirer(url: str, policy: Policy, now_ms: int) -> Batches:
    """Make the function that expires the messages (client_id, seq, epoch) of a partition, and yields those that expired."""

    def expire(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loader = EcqLoader(connect(url), policy)
        for batch in batches:
            rows = batch.to_pylist()
            epoch_of_client = {row["client_id"]: row["epoch"] for row in rows}
            rows_by_client = groupby(rows, key=lambda row: row["client_id"])
            seqs_by_client = ((client_id, [row["seq"] for row in client_rows]) for client_id, client_rows in rows_by_client)
            expired = [
                {"client_id": client_id, "seq": seq, "epoch": epoch_of_client[client_id]}
                for client_id, seq in loader.expire(seqs_by_client, now_ms)
            ]
            yield pa.RecordBatch.from_pylist(expired, schema=batch.schema)

    return expire


def _unix_ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)
