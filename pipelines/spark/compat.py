"""The one private name of PySpark that we use."""

from collections.abc import Mapping

from pyspark import SparkConf, SparkContext


def site_conf(options: Mapping[str, str], name: str) -> str:
    """Return a setting of Spark's defaults, empty if it is not set; starts the JVM with `options`.

    Only the JVM reads the defaults, and a running context accepts no more extensions, so a session comes too late.
    """
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(options.items())))  # as Spark's own shell does
    return SparkConf().get(name, "") or ""
