"""The one private name of PySpark that we use."""

from collections.abc import Mapping

from pyspark import SparkConf, SparkContext


def site_conf(options: Mapping[str, str], name: str) -> str:
    """Return a setting of Spark's defaults, empty if it is not set; starts the JVM with `options`.

    Only the JVM reads the defaults. A setting such as `spark.sql.extensions` cannot be extended once a session runs, so the
    default is needed before the session is built.
    """
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(options.items())))  # as Spark's own shell does
    return SparkConf().get(name, "") or ""
