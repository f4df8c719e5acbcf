"""Compares compacted queues with the lake (live messages, acknowledgements, positions) and repairs by loading them again.

Each client's queue is read once, after the lake. What only Redis can know yet is not a difference: a newer message of a key,
a later epoch, an acknowledgement that may be on its way to the lake. Nor is a message past its retention.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice

import pyarrow as pa
from pyspark.sql import SparkSession

from manifold.contracts.seq import first_seq_at
from manifold.contracts.tables import ECQ_INDEX, ECQ_STATE
from manifold.queues import EcqLoader, Policy
from manifold.queues.verbs.ecq_reads import ReadReply
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.populate.ecq import as_loaded
from pipelines.populate.ecq_fold import UNITED, FoldedQueue, folded, united
from pipelines.populate.worker_errors import Batches
from pipelines.populate.workers import counted
from pipelines.spark.parallelism import parallelism

CLIENT_BATCH_SIZE = 1000
ON_ITS_WAY = timedelta(hours=1)  # by then an acknowledgement is in the lake, and a dispatcher has ended expired messages
COLLECTED = timedelta(days=1)  # by then garbage collection has ended expired messages that are in no queue

Base = dict[str, int]


class QueueDifference(StrEnum):
    """How a compacted queue and the lake disagree; each client counts once per kind."""

    MISSING = "missing"  # live in the lake; the queue has neither it nor a newer message of its key
    ACKNOWLEDGED = "acknowledged"  # acknowledged in the lake, pending in the queue
    UNRECORDED = "unrecorded"  # acknowledged in the queue for an hour, but not in the lake
    POSITION = "position"  # behind the lake's position, in the same epoch
    SPOILT = "spoilt"  # a key of the queue holds another type
    OVERDUE = "overdue"  # should have expired, but is still pending in the queue or in the lake


REPAIRABLE = (QueueDifference.MISSING, QueueDifference.ACKNOWLEDGED, QueueDifference.POSITION)
REPAIRED = "repaired"


def _column(kind: QueueDifference) -> str:
    return f"queues_{kind.value}"  # a prefix, because other count columns have the same words


NAMES = (*map(_column, QueueDifference), REPAIRED)


def compare_queues(
    spark: SparkSession, settings: Settings, base: Base, *, now: datetime, repair: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """Count the clients that differ, by kind, and those that were repaired.

    Raises:
        redis.RedisError: Redis is unavailable or refuses.
    """
    index, state = (
        spark.read.option("versionAsOf", base[table.name]).table(f"{settings.catalog_name}.{table.identifier}")
        for table in (ECQ_INDEX, ECQ_STATE)
    )
    rows = united(index, state).repartition(parallelism(spark) * 4, "client_id")
    found, _ = counted(rows, _comparing(settings.redis, Policy.of(settings), now, repair=repair), NAMES)
    differing = {kind.value: found[_column(kind)] for kind in QueueDifference}
    repaired = {kind.value: found[_column(kind)] for kind in REPAIRABLE} if repair and found[REPAIRED] else {}
    return differing, repaired


def differences(lake: FoldedQueue, queue: ReadReply | None, *, now: datetime, policy: Policy) -> Iterator[QueueDifference]:
    """Yield how this queue and the lake disagree. The queue need not have messages past their retention."""
    if queue is None:
        yield QueueDifference.SPOILT
        return
    kept_from = first_seq_at(now - timedelta(milliseconds=policy.ecq_retention_ms))
    pending_from, queued_from, uncollected_from = (
        policy.ecq_pending_from(round((now - late).timestamp() * 1000)) for late in (timedelta(0), ON_ITS_WAY, COLLECTED)
    )
    state, held = lake.state(), {message.key: message for message in queue.messages}
    for seq, key in lake.live:
        message, is_acked, has_expired = held.get(key), state.is_acknowledged(seq), state.expired_at(seq) is not None
        if message is None or message.seq < seq:
            if not has_expired and seq >= (kept_from if is_acked else pending_from):
                yield QueueDifference.MISSING
            elif not has_expired and not is_acked and seq < uncollected_from:
                yield QueueDifference.OVERDUE
        elif message.seq == seq and message.seq != queue.in_flight:
            if has_expired:
                if not message.is_delivered:
                    yield QueueDifference.OVERDUE
            elif is_acked and not message.is_delivered and queue.epoch <= state.epoch:
                yield QueueDifference.ACKNOWLEDGED
            elif message.is_delivered and not is_acked and queue.epoch >= state.epoch and _is_settled(queue, now):
                yield QueueDifference.UNRECORDED
    if any(not m.is_delivered and m.seq < queued_from and m.seq != queue.in_flight for m in queue.messages):
        yield QueueDifference.OVERDUE
    # A queue without live messages has no position in Redis.
    if held and state.acked_seq is not None and queue.epoch == state.epoch and (queue.acked_seq or 0) < state.acked_seq:
        yield QueueDifference.POSITION


def _is_settled(queue: ReadReply, now: datetime) -> bool:
    return queue.acked_at_ms is not None and now.timestamp() * 1000 - queue.acked_at_ms > ON_ITS_WAY.total_seconds() * 1000


def _comparing(url: str, policy: Policy, now: datetime, *, repair: bool) -> Batches:
    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]).cast(UNITED) for batch in batches]
        now_ms = round(now.timestamp() * 1000)
        pending_from = policy.ecq_pending_from(now_ms)
        loader, left = EcqLoader(connect(url), policy), folded(pa.concat_tables(tables or [UNITED.empty_table()]))
        counts: Counter[str] = Counter()
        while some := list(islice(left, CLIENT_BATCH_SIZE)):
            wrong: list[FoldedQueue] = []
            for lake, (_, queue) in zip(some, loader.read([each.client_id for each in some]), strict=True):
                kinds = set(differences(lake, queue, now=now, policy=policy))
                counts.update(map(_column, kinds))
                if kinds.intersection(REPAIRABLE):
                    wrong.append(lake)
            if repair and wrong:
                queues = (as_loaded(lake, pending_from) for lake in wrong)
                counts[REPAIRED] += loader.load(queues, now_ms).owners
        yield pa.RecordBatch.from_pylist([{name: counts[name] for name in NAMES}])

    return compare
