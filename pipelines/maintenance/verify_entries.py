"""Compares queues and lake entry by entry, where their digests differ.

The lake is read at one moment and the queues after it, so a difference may be a change in between: each one is rechecked
in the live queues, and against the newest outcomes, before it counts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from manifold.contracts.seq import COUNTER_BITS, MAX_NODE, MAX_SEQ, datetime_of
from manifold.contracts.tables import IDS, OUTCOMES
from pipelines.maintenance.verify_digest import BUCKETS, Buckets
from pipelines.maintenance.verify_lake import PinnedLake
from pipelines.maintenance.verify_outcomes import on_their_way
from pipelines.maintenance.verify_redis import ROWS, Difference, QueueKey, recheck, walk
from pipelines.populate.pending import KEYS, pending
from pipelines.spark.parallelism import parallelism

ROWS_PER_PARTITION = 400_000
DIFFERENCES = "difference string, vin string, seq bigint, request_id string, data_id string, outcome string"


@contextmanager
def differences(lake: PinnedLake, buckets: Sequence[int], in_queues: int) -> Iterator[DataFrame]:
    """One row of `DIFFERENCES` per difference of the vehicles in these buckets; each has been rechecked.

    `in_queues`: the number of entries in all queues.
    """
    comparison = _Comparison(
        lake, Buckets(frozenset(buckets)), parts=-(-in_queues * len(buckets) // (BUCKETS * ROWS_PER_PARTITION))
    )
    found = comparison.differences().persist()
    try:
        yield found
    finally:
        found.unpersist()
        comparison.close()


class _Comparison:
    def __init__(self, lake: PinnedLake, buckets: Buckets, parts: int) -> None:
        self._lake, self._buckets = lake, buckets
        self._parts = max(parallelism(lake.spark), parts)
        walked = lake.spark.range(0, 1, 1, 1).mapInArrow(walk(lake.settings.redis, buckets.have), ROWS)
        # SCAN may return a key twice. Partitioned by vehicle, as the joins need it, so that rows are shuffled once.
        self._queues = walked.repartition(self._parts, "vin").dropDuplicates([*KEYS, "queue_key"]).persist()
        self._kept = [self._queues]

    def close(self) -> None:
        """Unpersist the cached frames: Spark identifies a frame by its plan, so the next comparison would get these rows."""
        for frame in self._kept:
            frame.unpersist()

    def differences(self) -> DataFrame:
        """Rows of `DIFFERENCES`, rechecked."""
        kinds = [self._open_in_lake(), *self._waiting_otherwise(), self._disordered(), self._stray()]
        columns = [column.split()[0] for column in DIFFERENCES.split(", ")]
        first = reduce(DataFrame.unionByName, (frame.select(*columns) for frame in kinds))
        live = first.mapInArrow(recheck(self._lake.settings.redis), DIFFERENCES).persist()
        self._kept.append(live)
        ended_since = self._lake.current(OUTCOMES).select(*KEYS).join(sf.broadcast(live.select(*KEYS)), KEYS, "left_semi")
        is_open = sf.col("difference").isin(Difference.MISSING.value, Difference.UNRECORDED.value)
        still_open = live.where(is_open).join(ended_since, KEYS, "left_anti").select(*columns)
        return live.where(~is_open).unionByName(still_open)

    @property
    def _waiting(self) -> DataFrame:
        return self._queues.where(sf.col("queue_key").isin(QueueKey.PENDING.value, QueueKey.PARKED.value))

    @property
    def _is_young(self) -> Column:
        """Whether an entry is younger than everything ingested from the same recorder."""
        newest = sf.lit(-1)
        for node, seq in self._lake.newest_of_node.items():
            newest = sf.when(_node("seq") == node, sf.lit(seq)).otherwise(newest)
        return sf.col("seq") > newest

    def _since_oldest(self, instant: str) -> Column:
        """Whether a row can be about an entry that waits in the queues."""
        row = self._waiting.agg(sf.min("seq").alias("oldest")).first()
        return sf.col(instant) >= sf.lit(datetime_of(row["oldest"] if row is not None and row["oldest"] is not None else MAX_SEQ))

    def _open_in_lake(self) -> DataFrame:
        """Entries pending in the lake that the queues lack, or remember as ended with no outcome recorded or on its way here."""
        entries = self._buckets.of(self._lake.entries()).select(*KEYS, "request_id", "data_id")
        ended = self._buckets.of(self._lake.ended())
        waiting = pending(entries, ended, parts=self._parts, few=False)
        held = self._queues.where(sf.col("queue_key") != QueueKey.IN_FLIGHT.value)
        known = held.select(*KEYS, (sf.col("queue_key") == QueueKey.DONE.value).alias("is_done"))
        odd = waiting.join(known.hint("shuffle_hash"), KEYS, "left").where("is_done is null or is_done")
        which = sf.when(sf.col("is_done"), Difference.UNRECORDED.value).otherwise(Difference.MISSING.value)
        odd = odd.select(*KEYS, "request_id", "data_id", sf.lit(None).cast("string").alias("outcome"), which.alias("difference"))
        self._kept.append(odd.persist())
        is_unrecorded = sf.col("difference") == Difference.UNRECORDED.value
        if not odd.where(is_unrecorded).head(1):
            return odd
        moving = on_their_way(self._lake.spark, self._lake.catalog, self._lake.settings)
        if moving is None:  # then no entry can be called unrecorded
            return odd.where(~is_unrecorded)
        return odd.where(~is_unrecorded).unionByName(odd.where(is_unrecorded).join(moving, KEYS, "left_anti"))

    def _waiting_otherwise(self) -> list[DataFrame]:
        """Entries that wait in the queues although they have ended, are unknown to the lake, or are overdue."""
        waiting = self._waiting.where(~self._is_young).select(*KEYS)
        ids = self._buckets.of(self._lake.main(IDS)).where(self._since_oldest("ts"))
        known = ids.select(*KEYS, "ts", "request_id", "data_id").repartition(self._parts, "vin")
        outcomes = self._buckets.of(self._lake.main(OUTCOMES)).where(self._since_oldest("accepted_at"))
        ended = outcomes.select(*KEYS, "outcome").repartition(self._parts, "vin")
        both = waiting.join(known.hint("shuffle_hash"), KEYS, "left").join(ended.hint("shuffle_hash"), KEYS, "left")
        odd = both.where(sf.col("outcome").isNotNull() | sf.col("ts").isNull() | (sf.col("ts") < sf.lit(self._lake.since)))
        is_ended, is_extra = sf.col("outcome").isNotNull(), sf.col("ts").isNull() & sf.col("outcome").isNull()
        which = (
            sf.when(is_ended, Difference.ENDED.value).when(is_extra, Difference.EXTRA.value).otherwise(Difference.OVERDUE.value)
        )
        return [odd.withColumn("difference", which)]

    def _disordered(self) -> DataFrame:
        return _kind(_bare(self._queues.where("disordered")), Difference.DISORDERED)

    def _stray(self) -> DataFrame:
        flying = self._queues.where(sf.col("queue_key") == QueueKey.IN_FLIGHT.value)
        queued = self._queues.where(sf.col("queue_key") == QueueKey.PENDING.value).select(*KEYS)
        return _kind(_bare(flying.join(queued, KEYS, "left_anti")), Difference.STRAY)


def _node(seq: str) -> Column:
    return sf.shiftright(sf.col(seq), COUNTER_BITS).bitwiseAND(MAX_NODE)


def _bare(rows: DataFrame) -> DataFrame:
    nothing = sf.lit(None).cast("string")
    return rows.select(*KEYS, nothing.alias("request_id"), nothing.alias("data_id"), nothing.alias("outcome"))


def _kind(rows: DataFrame, difference: Difference) -> DataFrame:
    return rows.withColumn("difference", sf.lit(difference.value))
