"""Pending entries: those of the lake without an outcome. DataFrame in, DataFrame out."""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from manifold.lake.reads import TRIGGER_COLUMNS

KEYS = ["vin", "seq"]


def candidates(ids: DataFrame, *, since: datetime, everything: bool) -> DataFrame:
    """Entries accepted at or after `since`: those not enqueued directly, or all of them."""
    young = ids.where(sf.col("ts") >= sf.lit(since))
    wanted = young if everything else young.where("not applied")
    return wanted.select("vin", "seq", *TRIGGER_COLUMNS)


def pending(entries: DataFrame, ended: DataFrame, *, parts: int, few: bool) -> DataFrame:
    """Entries that are not in `ended` (vin, seq), unordered, each vehicle's in one of `parts` partitions.

    One shuffle by vehicle serves the join and later grouping, and nothing is sorted: on ten million entries the hash join takes
    a third of the time of a sort-merge join. The keys of `few` entries are broadcast to filter the outcomes first.
    """
    if few:
        ended = ended.join(sf.broadcast(entries.select(*KEYS)), KEYS, "left_semi")
    by_vin = ended.select(*KEYS).repartition(parts, "vin").hint("shuffle_hash")
    return entries.repartition(parts, "vin").join(by_vin, KEYS, "left_anti")
