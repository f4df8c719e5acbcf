"""The only private name of PySpark that Manifold uses."""

from collections.abc import Mapping

from pyspark import SparkConf, SparkContext


def start_jvm_and_read(options: Mapping[str, str], name: str) -> str:
    """Start the JVM with `options`, and return the value of `name` in the site's Spark defaults; empty if it is not set.

    The value is needed before a session exists, because a setting such as `spark.sql.extensions` cannot be changed later. The JVM
    must be started for it, because only the JVM reads the defaults.
    """
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(options.items())))  # as Spark's own shell does
    return SparkConf().get(name, "") or ""
