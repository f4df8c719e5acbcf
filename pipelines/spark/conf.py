"""Builds Spark's configuration from the settings, as plain dictionaries. This module does not import Spark.

`python -m pipelines.spark.conf <folder>` writes the options for spark-submit to `<folder>/spark-defaults.conf`.
"""

import re
import sys
from pathlib import Path

from manifold.contracts.catalog_properties import uses_sigv4
from manifold.contracts.errors import ManifoldError
from manifold.settings import Settings, load_settings

ICEBERG_JAR = "iceberg-spark-runtime-4.1_2.13-1.12.0.jar"
SQLITE_JAR = "sqlite-jdbc-3.54.1.0.jar"
POSTGRESQL_JAR = "postgresql-42.7.14.jar"
S3_JAR = "iceberg-aws-bundle-1.12.0.jar"
LOCAL_SHUFFLE_PARTITIONS = 8
LOOPBACK = "127.0.0.1"
EXTENSIONS = "spark.sql.extensions"
ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
REDACTED = "spark.sql.redaction.options.regex"  # pattern of option names whose values Spark redacts everywhere
CLASS_ARCHIVE = "spark.jsa"  # file in the folder of the jars: the parsed classes of the jars (see `pipelines.spark.cds_archive`)
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # variable that is set if spark-submit has started the JVM, with its own master and memory
GREAT_EXPECTATIONS = ("great_expectations",)  # modules that an audit needs; importing them takes three seconds of CPU
# Without the optimizing compiler: a short job ends before optimized code has saved the time for compiling it.
C1_COMPILER = "-XX:TieredStopAtLevel=1"
MAX_SMALL_RUN_BYTES = 16 << 20  # size of the segments; this corresponds to about 1.5 million entries
SMALL_RUN_CONF = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}  # options for a small run


def session_conf(settings: Settings) -> dict[str, str]:
    """The options that every session needs, except the extensions: the catalog, UTC, and how tables are read.

    They contain secrets. So they must be set on the running session: options with which Spark is started appear on its web pages
    and in its event log.
    """
    catalog = f"spark.sql.catalog.{settings.catalog_name}"
    catalog_conf = {f"{catalog}.{name}": value for name, value in _catalog_conf(settings).items() if value}
    return {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        **catalog_conf,
        f"{catalog}.cache-enabled": "false",  # other processes commit to the same tables
        "spark.sql.session.timeZone": "UTC",
        # Grouping by partition would make one task read all rows of a day. It helps only joins by day, and no join here is one.
        "spark.sql.iceberg.planning.preserve-data-grouping": "false",
        "spark.sql.requireAllClusterKeysForCoPartition": "false",  # one shuffle by vin serves a join on (vin, seq)
    }


def with_iceberg_extensions(site_extensions: str) -> str:
    """The extensions in the list `site_extensions`, separated by commas, followed by Iceberg's if the list lacks it."""
    names = [name.strip() for name in site_extensions.split(",")]
    present_names = [name for name in names if name]
    unique_names = dict.fromkeys([*present_names, ICEBERG_EXTENSIONS])  # in order, each once
    return ",".join(unique_names)


def redaction_pattern(settings: Settings, pattern: str) -> str:
    """Extend the pattern of redacted options by the catalog's options, because any of them may be a secret."""
    return rf"{pattern}|^spark\.sql\.catalog\.{re.escape(settings.catalog_name)}\."


def _catalog_conf(settings: Settings) -> dict[str, str]:
    """The properties of the catalog in Spark, without the prefix `spark.sql.catalog.<name>`."""
    conf = {"warehouse": settings.warehouse_url}
    if settings.warehouse_url.startswith("s3://"):
        conf["io-impl"] = "org.apache.iceberg.aws.s3.S3FileIO"
    if settings.catalog_type == "rest":
        return conf | {"type": "rest", "uri": settings.catalog} | settings.catalog_options
    # Imported here because SQLAlchemy is slow to import, and few commands need it.
    from pipelines.spark.jdbc import jdbc_properties

    jdbc = {"type": "jdbc", "jdbc.schema-version": "V1"} | jdbc_properties(settings.catalog)
    return conf | jdbc | settings.catalog_options


def jars_for(settings: Settings) -> list[str]:
    """Names of the jars that Spark needs for the settings' catalog and storage."""
    jars = [ICEBERG_JAR]
    if settings.catalog_type == "sql":
        jars.append(POSTGRESQL_JAR if settings.catalog.startswith("postgresql") else SQLITE_JAR)
    if settings.lake_on_s3 or uses_sigv4(settings.catalog_options):
        jars.append(S3_JAR)
    return jars


def java_options(size: int) -> str:
    """JVM options of the driver, for a job that reads segments of `size` bytes in total."""
    return C1_COMPILER if size <= MAX_SMALL_RUN_BYTES else ""


def launch_conf(settings: Settings) -> dict[str, str]:
    """Options that the driver's JVM needs at its start, such as jars and memory.

    With a local master, Spark's ports are bound to the loopback address only. With any other, executors get the jars from Spark.
    """
    jars = [str(settings.jars / name) for name in jars_for(settings)]
    conf = {
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.driver.extraClassPath": ":".join(jars),
        "spark.python.daemon.module": "pipelines.spark.daemon",
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.ui.enabled": "false",
        "spark.sql.ui.explainMode": "simple",  # no web page shows the detailed plans, and they take a tenth of a short job's CPU
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
    }
    class_archive = settings.jars / CLASS_ARCHIVE
    if class_archive.is_file():  # the JVM ignores a class archive that was made by another Java or from other jars
        no_logging = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # these logs would go to standard output, which carries results
        conf["spark.driver.defaultJavaOptions"] = f'"-XX:SharedArchiveFile={class_archive}" -Xshare:auto {no_logging}'
    if settings.spark_master.startswith("local"):
        return conf | {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.sql.shuffle.partitions": str(LOCAL_SHUFFLE_PARTITIONS),
        }
    return conf | {"spark.jars": ",".join(jars)}


def write_defaults(settings: Settings, folder: Path) -> Path:
    """Write `spark-defaults.conf` into `folder`, for spark-submit's option --properties-file; return the folder.

    The file contains no secrets, because jobs add `session_conf` themselves. Do not name the folder in SPARK_CONF_DIR: Spark
    would put it on the class path, and with a folder on the class path the JVM does not use the class archive.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{name} {value}" for name, value in sorted(launch_conf(settings).items())]
    (folder / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
    return folder


def main() -> int:
    """Write the defaults into the folder named by the first argument."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m pipelines.spark.conf <folder for spark-defaults.conf>\n")
        return 2
    try:
        write_defaults(load_settings(), Path(sys.argv[1]))
    except (ManifoldError, OSError) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
