"""Compares compacted queues with the lake (live messages, acknowledgements, positions) and repairs by loading them again.

The queue of each client is read once, after the lake. What only Redis knows yet is no difference: a newer
message of a key, a later epoch, an acknowledgement that may be on its way to the lake.
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

CLIENTS_AT_ONCE = 1000
ON_ITS_WAY = timedelta(hours=1)  # an acknowledgement is in the lake by then

Base = dict[str, int]


class QueueDifference(StrEnum):
    """How a compacted queue and the lake disagree; each client counts once for each."""

    MISSING = "missing"  # live in the lake; the queue has neither it nor a newer message of its key
    ACKNOWLEDGED = "acknowledged"  # in the lake, and pending in the queue
    UNRECORDED = "unrecorded"  # acknowledged in the queue for an hour, and nothing in the lake says so
    POSITION = "position"  # behind that of the lake, in the same epoch
    SPOILT = "spoilt"  # a key of the queue holds another type


REPAIRABLE = (QueueDifference.MISSING, QueueDifference.ACKNOWLEDGED, QueueDifference.POSITION)
REPAIRED = "repaired"


def _column(kind: QueueDifference) -> str:
    return f"queues_{kind.value}"  # other columns of counts have such names, too


NAMES = (*map(_column, QueueDifference), REPAIRED)


def compare_queues(
    spark: SparkSession, settings: Settings, base: Base, *, now: datetime, repair: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """How many clients differ in which way, and how many of them were repaired.

    Raises:
        redis.RedisError: Redis is away or refuses.
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


def differences(lake: FoldedQueue, queue: ReadReply | None, *, now: datetime, retention_ms: int) -> Iterator[QueueDifference]:
    """How this queue and the lake disagree. The queue need not have messages past the retention."""
    kept_from = first_seq_at(now - timedelta(milliseconds=retention_ms))
    if queue is None:
        yield QueueDifference.SPOILT
        return
    state, held = lake.state(), {message.key: message for message in queue.messages}
    for seq, key in lake.live:
        message = held.get(key)
        if message is None or message.seq < seq:
            if seq >= kept_from:
                yield QueueDifference.MISSING
        elif message.seq == seq and message.seq != queue.in_flight:
            is_acked = state.is_acknowledged(seq)
            if is_acked and not message.is_delivered and queue.epoch <= state.epoch:
                yield QueueDifference.ACKNOWLEDGED
            elif message.is_delivered and not is_acked and queue.epoch >= state.epoch and _is_settled(queue, now):
                yield QueueDifference.UNRECORDED
    if lake.live and state.acked_seq is not None and queue.epoch == state.epoch and (queue.acked_seq or 0) < state.acked_seq:
        yield QueueDifference.POSITION


def _is_settled(queue: ReadReply, now: datetime) -> bool:
    return queue.acked_at_ms is not None and now.timestamp() * 1000 - queue.acked_at_ms > ON_ITS_WAY.total_seconds() * 1000


def _comparing(url: str, policy: Policy, now: datetime, *, repair: bool) -> Batches:
    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]).cast(UNITED) for batch in batches]
        loader, left = EcqLoader(connect(url), policy), folded(pa.concat_tables(tables or [UNITED.empty_table()]))
        counts: Counter[str] = Counter()
        while some := list(islice(left, CLIENTS_AT_ONCE)):
            wrong: list[FoldedQueue] = []
            for lake, (_, queue) in zip(some, loader.read([each.client_id for each in some]), strict=True):
                kinds = set(differences(lake, queue, now=now, retention_ms=policy.ecq_retention_ms))
                counts.update(map(_column, kinds))
                wrong += [lake] if kinds.intersection(REPAIRABLE) else []
            if repair and wrong:
                counts[REPAIRED] += loader.load(map(as_loaded, wrong), round(now.timestamp() * 1000)).owners
        yield pa.RecordBatch.from_pylist([{name: counts[name] for name in NAMES}])

    return compare
