"""Finds how many tasks Spark runs at once."""

import re

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

LEAVES = "spark.sql.leafNodeDefaultParallelism"  # session option: the number of partitions of generated rows
PROBE_ROWS = 1 << 16


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that Spark runs at once.

    The configuration has it for a local master, and where a site sets `spark.default.parallelism`. Otherwise one small query
    finds it, and the session remembers the answer.
    """
    known = spark.conf.get(LEAVES, None) or spark.conf.get("spark.default.parallelism", None)
    if known is None:
        local = re.fullmatch(r"local\[(\d+)\]", spark.conf.get("spark.master", None) or "")
        known = local[1] if local else str(asked(spark))
        spark.conf.set(LEAVES, known)
    return int(known)


def asked(spark: SparkSession) -> int:
    """Return the partitions of a range: by default as many as Spark runs tasks at once."""
    last = spark.range(PROBE_ROWS).select(sf.spark_partition_id().alias("part")).agg(sf.max("part").alias("last")).first()
    assert last is not None  # an aggregation has one row
    return int(last["last"]) + 1
