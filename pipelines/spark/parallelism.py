"""Determines how many tasks Spark runs at once."""

import re

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

LEAF_PARALLELISM = "spark.sql.leafNodeDefaultParallelism"  # session option: the number of partitions of generated rows
PROBE_ROWS = 1 << 16  # more rows than any Spark runs tasks at once


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that Spark runs at once.

    The number is taken from the site's `spark.default.parallelism`, or from a local master. Otherwise a small query measures it.
    It is stored as an option of the session, so that it is determined only once.
    """
    configured = spark.conf.get(LEAF_PARALLELISM, None) or spark.conf.get("spark.default.parallelism", None)
    if configured is not None:
        return int(configured)
    local = re.fullmatch(r"local\[(\d+)\]", spark.conf.get("spark.master", None) or "")
    tasks = int(local[1]) if local else measured_parallelism(spark)
    spark.conf.set(LEAF_PARALLELISM, str(tasks))
    return tasks


def measured_parallelism(spark: SparkSession) -> int:
    """Return the number of partitions of generated rows, which by default is the number of tasks that Spark runs at once."""
    partitions = spark.range(PROBE_ROWS).select(sf.spark_partition_id().alias("partition"))
    last = partitions.agg(sf.max("partition").alias("last")).first()
    assert last is not None  # an aggregation has one row
    return int(last["last"]) + 1
