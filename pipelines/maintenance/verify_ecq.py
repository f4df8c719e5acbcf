"""Compares compacted queues with the lake (live messages, acknowledgements, positions), and repairs them by loading them again.

Each client's queue is read once, after the lake. So Redis may rightly be ahead of the lake: a newer message of a key, a later
epoch, or a recent acknowledgement is not a difference. Nor is a missing message past its retention.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from manifold.contracts.ecq_rows import RecordedState
from manifold.contracts.seq import first_seq_at
from manifold.contracts.tables import ECQ_INDEX, ECQ_STATE, Table
from manifold.queues import EcqLoader, Policy
from manifold.queues.verbs.ecq_reads import ReadReply
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.populate.ecq import as_loaded
from pipelines.populate.ecq_fold import UNITED, FoldedQueue, folded, united
from pipelines.populate.workers import BatchFunction, run_and_count
from pipelines.spark.parallelism import parallelism

CLIENT_BATCH_SIZE = 1000
# After this time, an acknowledgement must be in the lake, and a dispatcher must have ended a message that has expired in a queue.
MAX_RECORDING_DELAY = timedelta(hours=1)
# After this time, garbage collection must have ended an expired message that is in no queue.
MAX_COLLECTION_DELAY = timedelta(days=1)

Base = dict[str, int]  # table name → id of the snapshot that is compared


class QueueDifference(StrEnum):
    """How a compacted queue and the lake disagree. A client counts once per kind."""

    MISSING = "missing"  # a message is live in the lake; the queue has neither the message nor a newer one of its key
    ACKNOWLEDGED = "acknowledged"  # a message is acknowledged in the lake, but pending in the queue
    UNRECORDED = "unrecorded"  # a message has been acknowledged in the queue for over an hour, but not in the lake
    POSITION = "position"  # the queue's position is behind the lake's, in the same epoch
    SPOILT = "spoilt"  # a key of the queue has another type
    OVERDUE = "overdue"  # a message should have expired, but is still pending in the queue or in the lake


REPAIRABLE = (QueueDifference.MISSING, QueueDifference.ACKNOWLEDGED, QueueDifference.POSITION)


def _column(kind: QueueDifference) -> str:
    """The name of the column with the number of differences; `run_and_count` has a column `spoilt` of its own."""
    return f"queues_{kind.value}"


def _repaired_column(kind: QueueDifference) -> str:
    """The name of the column with the number of repaired differences."""
    return f"repaired_{kind.value}"


COUNT_COLUMNS = (*map(_column, QueueDifference), *map(_repaired_column, REPAIRABLE))


def compare_queues(
    spark: SparkSession, settings: Settings, base: Base, *, now: datetime, repair: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the number of clients whose queue differs, by kind, and the numbers that were repaired, by kind.

    A queue is repaired by loading it from the lake, which repairs all its differences of the kinds in `REPAIRABLE`. It is not
    repaired if the load meets a corrupt key.

    Raises:
        redis.RedisError: Redis is unavailable or refuses.
    """
    index = _pinned(spark, settings, ECQ_INDEX, base)
    state = _pinned(spark, settings, ECQ_STATE, base)
    rows = united(index, state).repartition(parallelism(spark) * 4, "client_id")
    compare = _comparer(settings.redis, Policy.of(settings), now, repair=repair)
    counts, _ = run_and_count(rows, compare, COUNT_COLUMNS)
    differing = {kind.value: counts[_column(kind)] for kind in QueueDifference}
    repaired = {kind.value: counts[_repaired_column(kind)] for kind in REPAIRABLE}
    return differing, repaired if repair else {}


def _pinned(spark: SparkSession, settings: Settings, table: Table, base: Base) -> DataFrame:
    """All rows of a table at the snapshot in `base`."""
    return spark.read.option("versionAsOf", base[table.name]).table(f"{settings.catalog_name}.{table.identifier}")


def differences(lake: FoldedQueue, queue: ReadReply | None, *, now: datetime, policy: Policy) -> Iterator[QueueDifference]:
    """Yield how the queue of a client in Redis and in the lake disagree. `queue` is None if a key of it has another type."""
    if queue is None:
        yield QueueDifference.SPOILT
        return
    state = lake.state()
    yield from _message_differences(lake, state, queue, now=now, policy=policy)
    ended_before = _pending_from(policy, now - MAX_RECORDING_DELAY)  # a dispatcher must have ended older pending messages
    if any(
        not message.is_delivered and message.seq < ended_before and message.seq != queue.in_flight for message in queue.messages
    ):
        yield QueueDifference.OVERDUE
    has_position = bool(queue.messages)  # a queue without live messages has no position in Redis
    # An `acked_seq` of None means that nothing is acknowledged.
    if has_position and queue.epoch == state.epoch and (queue.acked_seq or 0) < (state.acked_seq or 0):
        yield QueueDifference.POSITION


def _message_differences(
    lake: FoldedQueue, state: RecordedState, queue: ReadReply, *, now: datetime, policy: Policy
) -> Iterator[QueueDifference]:
    """Yield how the messages that are live in the lake differ in the queue. `state` is the state of the queue in the lake.

    In each case that is not listed, both agree, or one may rightly be ahead of the other.
    """
    kept_from = first_seq_at(now - timedelta(milliseconds=policy.ecq_retention_ms))
    pending_from = _pending_from(policy, now)
    collected_before = _pending_from(policy, now - MAX_COLLECTION_DELAY)
    message_by_key = {message.key: message for message in queue.messages}
    for seq, key in lake.live:
        message = message_by_key.get(key)
        is_acked = state.is_acknowledged(seq)
        has_expired = state.expired_at(seq) is not None
        if message is None or message.seq < seq:  # the queue lacks the message
            first_kept_seq = kept_from if is_acked else pending_from
            if not has_expired and seq >= first_kept_seq:
                yield QueueDifference.MISSING
            elif not has_expired and not is_acked and seq < collected_before:
                yield QueueDifference.OVERDUE
        elif message.seq > seq or message.seq == queue.in_flight:
            continue  # the queue is ahead of the lake, or is delivering the message now
        elif has_expired:
            if not message.is_delivered:
                yield QueueDifference.OVERDUE
        elif is_acked and not message.is_delivered and queue.epoch <= state.epoch:  # no newer rewind is to deliver it again
            yield QueueDifference.ACKNOWLEDGED
        elif message.is_delivered and not is_acked and queue.epoch >= state.epoch and _must_be_recorded(queue, now):
            yield QueueDifference.UNRECORDED


def _pending_from(policy: Policy, instant: datetime) -> int:
    """The lowest seq of messages that are still pending at `instant`; older messages have expired."""
    return policy.ecq_pending_from(round(instant.timestamp() * 1000))


def _must_be_recorded(queue: ReadReply, now: datetime) -> bool:
    """Whether the queue has an acknowledgement, and the last one is so old that it must be in the lake."""
    if queue.acked_at_ms is None:
        return False
    age_ms = now.timestamp() * 1000 - queue.acked_at_ms
    return age_ms > MAX_RECORDING_DELAY.total_seconds() * 1000


def _comparer(url: str, policy: Policy, now: datetime, *, repair: bool) -> BatchFunction:
    """Make the function that compares the queues of a partition's clients, and yields one row of `COUNT_COLUMNS`.

    Its input is rows of `UNITED`, with all rows of each client.
    """

    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]).cast(UNITED) for batch in batches]
        now_ms = round(now.timestamp() * 1000)
        pending_from = policy.ecq_pending_from(now_ms)
        loader = EcqLoader(connect(url), policy)
        lake_queues = folded(pa.concat_tables(tables or [UNITED.empty_table()]))
        counts: Counter[str] = Counter()
        while chunk := list(islice(lake_queues, CLIENT_BATCH_SIZE)):
            to_repair: list[tuple[FoldedQueue, set[QueueDifference]]] = []
            redis_queues = loader.read([lake.client_id for lake in chunk])
            for lake, (_, queue) in zip(chunk, redis_queues, strict=True):
                kinds = set(differences(lake, queue, now=now, policy=policy))
                counts.update(map(_column, kinds))
                if repairable_kinds := kinds.intersection(REPAIRABLE):
                    to_repair.append((lake, repairable_kinds))
            if repair and to_repair:
                queues = (as_loaded(lake, pending_from) for lake, _ in to_repair)
                corrupt_queues = set(loader.load(queues, now_ms).spoilt)
                for lake, repairable_kinds in to_repair:
                    if lake.client_id not in corrupt_queues:
                        counts.update(map(_repaired_column, repairable_kinds))
        yield pa.RecordBatch.from_pylist([{name: counts[name] for name in COUNT_COLUMNS}])

    return compare
