"""Compares queues and lake entry by entry, in the buckets whose digests differ.

The lake is read at pinned snapshots, and the queues are read after that, so an entry that changes in between looks like
a difference. Therefore each difference is rechecked in the queues, and against the newest outcomes, before it counts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from math import ceil

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from manifold.contracts.seq import COUNTER_BITS, MAX_NODE, datetime_of
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
    """Yield the rechecked differences of the vehicles in these buckets, as rows of `DIFFERENCES`, cached until the block ends.

    `in_queues` is the number of entries in all queues, from which the number of partitions is estimated.
    """
    entries_in_buckets = in_queues * len(buckets) / BUCKETS
    comparison = _Comparison(lake, Buckets(frozenset(buckets)), partitions=ceil(entries_in_buckets / ROWS_PER_PARTITION))
    found = comparison.differences().persist()
    try:
        yield found
    finally:
        found.unpersist()
        comparison.close()


class _Comparison:
    """Compares the queues of the vehicles in some buckets with the lake."""

    def __init__(self, lake: PinnedLake, buckets: Buckets, partitions: int) -> None:
        self._lake = lake
        self._buckets = buckets
        self._partitions = max(parallelism(lake.spark), partitions)
        one_task = lake.spark.range(0, 1, 1, 1)
        walked = one_task.mapInArrow(walk(lake.settings.redis, buckets.contain), ROWS)
        # SCAN may return a key twice, so duplicates are dropped. Rows are shuffled by vehicle once, as the joins need them.
        self._queues = walked.repartition(self._partitions, "vin").dropDuplicates([*KEYS, "queue_key"]).persist()
        self._persisted = [self._queues]

    def close(self) -> None:
        """Unpersist the cached frames.

        Spark identifies a cached frame by its plan. A later comparison has the same plan, and would get these rows.
        """
        for frame in self._persisted:
            frame.unpersist()

    def differences(self) -> DataFrame:
        """Find the differences and recheck them; return rows of `DIFFERENCES`."""
        frames = [self._missing_or_unrecorded(), self._waiting_wrongly(), self._disordered(), self._stray()]
        columns = [column.split()[0] for column in DIFFERENCES.split(", ")]  # their names, without the types
        candidates = reduce(DataFrame.unionByName, (frame.select(*columns) for frame in frames))
        rechecked = candidates.mapInArrow(recheck(self._lake.settings.redis), DIFFERENCES).persist()
        self._persisted.append(rechecked)
        # An entry is missing or unrecorded only if it still has no outcome.
        needs_no_outcome = sf.col("difference").isin(Difference.MISSING.value, Difference.UNRECORDED.value)
        rechecked_keys = sf.broadcast(rechecked.select(*KEYS))
        ended_now = self._lake.current(OUTCOMES).select(*KEYS).join(rechecked_keys, KEYS, "left_semi")
        still_open = rechecked.where(needs_no_outcome).join(ended_now, KEYS, "left_anti").select(*columns)
        return rechecked.where(~needs_no_outcome).unionByName(still_open)

    @property
    def _waiting(self) -> DataFrame:
        """The entries that are pending or parked in the queues."""
        return self._queues.where(sf.col("queue_key").isin(QueueKey.PENDING.value, QueueKey.PARKED.value))

    @property
    def _is_young(self) -> Column:
        """Whether an entry is younger than all ingested entries of the same recorder."""
        newest = sf.lit(-1)  # of a recorder of which no entry is ingested
        for node, seq in self._lake.newest_of_node.items():
            newest = sf.when(_node("seq") == node, sf.lit(seq)).otherwise(newest)
        return sf.col("seq") > newest

    def _since_oldest_waiting(self, column: str) -> Column:
        """Whether the instant in `column` is not before the oldest entry that waits in the queues.

        Older rows of the lake are not needed. If no entry waits, no row passes.
        """
        row = self._waiting.agg(sf.min("seq").alias("oldest")).first()
        if row is None or row["oldest"] is None:
            return sf.lit(False)
        return sf.col(column) >= sf.lit(datetime_of(row["oldest"]))

    def _missing_or_unrecorded(self) -> DataFrame:
        """Entries that are pending in the lake, but not in the queues: missing or unrecorded.

        An entry is missing if the queues do not know it. It is unrecorded if the queues remember that it ended, and no outcome of
        it is on its way to the lake.
        """
        entries = self._buckets.filter(self._lake.entries()).select(*KEYS, "request_id", "data_id")
        ended = self._buckets.filter(self._lake.ended())
        open_entries = pending(entries, ended, partitions=self._partitions, broadcast_keys=False)
        in_queues = self._queues.where(sf.col("queue_key") != QueueKey.IN_FLIGHT.value)
        known_to_queues = in_queues.select(*KEYS, (sf.col("queue_key") == QueueKey.DONE.value).alias("is_done"))
        joined = open_entries.join(known_to_queues.hint("shuffle_hash"), KEYS, "left")
        differing = joined.where("is_done is null or is_done")  # null: the queues do not know the entry
        difference = sf.when(sf.col("is_done"), Difference.UNRECORDED.value).otherwise(Difference.MISSING.value)
        no_outcome = sf.lit(None).cast("string")
        rows = differing.select(
            *KEYS, "request_id", "data_id", no_outcome.alias("outcome"), difference.alias("difference")
        ).persist()
        self._persisted.append(rows)
        is_unrecorded = sf.col("difference") == Difference.UNRECORDED.value
        missing = rows.where(~is_unrecorded)
        unrecorded = rows.where(is_unrecorded)
        if not unrecorded.head(1):
            return missing
        not_in_lake_yet = on_their_way(self._lake.spark, self._lake.catalog, self._lake.settings)
        if not_in_lake_yet is None:  # a recorder may have the outcomes, so no entry can be called unrecorded
            return missing
        return missing.unionByName(unrecorded.join(not_in_lake_yet, KEYS, "left_anti"))

    def _waiting_wrongly(self) -> DataFrame:
        """Entries that wait in the queues although they have ended, are unknown to the lake, or are overdue."""
        waiting = self._waiting.where(~self._is_young).select(*KEYS)  # young entries may not be in the lake yet
        ids = self._buckets.filter(self._lake.main(IDS)).where(self._since_oldest_waiting("ts"))
        in_lake = ids.select(*KEYS, "ts", "request_id", "data_id").repartition(self._partitions, "vin")
        outcomes = self._buckets.filter(self._lake.main(OUTCOMES)).where(self._since_oldest_waiting("accepted_at"))
        ended = outcomes.select(*KEYS, "outcome").repartition(self._partitions, "vin")
        joined = waiting.join(in_lake.hint("shuffle_hash"), KEYS, "left").join(ended.hint("shuffle_hash"), KEYS, "left")
        is_ended = sf.col("outcome").isNotNull()
        is_unknown = sf.col("ts").isNull()
        is_overdue = sf.col("ts") < sf.lit(self._lake.since)
        difference = (
            sf.when(is_ended, Difference.ENDED.value).when(is_unknown, Difference.EXTRA.value).otherwise(Difference.OVERDUE.value)
        )
        return joined.where(is_ended | is_unknown | is_overdue).withColumn("difference", difference)

    def _disordered(self) -> DataFrame:
        return _difference_rows(self._queues.where("disordered"), Difference.DISORDERED)

    def _stray(self) -> DataFrame:
        """Entries that are in flight, but not pending."""
        in_flight = self._queues.where(sf.col("queue_key") == QueueKey.IN_FLIGHT.value)
        pending_keys = self._queues.where(sf.col("queue_key") == QueueKey.PENDING.value).select(*KEYS)
        return _difference_rows(in_flight.join(pending_keys, KEYS, "left_anti"), Difference.STRAY)


def _node(seq: str) -> Column:
    """The recorder that gave the seq in this column."""
    return sf.shiftright(sf.col(seq), COUNTER_BITS).bitwiseAND(MAX_NODE)


def _difference_rows(entries: DataFrame, difference: Difference) -> DataFrame:
    """Rows of `DIFFERENCES` for entries (vin, seq) that were read from the queues alone; columns of the lake are null."""
    null = sf.lit(None).cast("string")
    return entries.select(
        *KEYS,
        null.alias("request_id"),
        null.alias("data_id"),
        null.alias("outcome"),
        sf.lit(difference.value).alias("difference"),
    )
