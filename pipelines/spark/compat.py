"""The one private name of PySpark that we use."""

from collections.abc import Mapping

from pyspark import SparkConf, SparkContext


def site_conf(options: Mapping[str, str], name: str) -> str:
    """Return a setting of Spark's defaults, empty if they do not have it; starts the JVM with `options`.

    Only the JVM has read the defaults, and a context that has begun takes no more extensions, so a session cannot be asked.
    """
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(options.items())))  # as Spark's own shell does
    return SparkConf().get(name, "") or ""
