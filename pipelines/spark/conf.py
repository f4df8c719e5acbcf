"""Builds Spark's configuration from the settings, as plain dictionaries; nothing here imports Spark.

`python -m pipelines.spark.conf <folder>` writes what spark-submit needs into `<folder>/spark-defaults.conf`.
"""

import re
import sys
from pathlib import Path

from manifold.contracts.catalog_properties import signs
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
CLASS_ARCHIVE = "spark.jsa"  # beside the jars: their classes as the JVM has parsed them (made by `pipelines.spark.cds_archive`)
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set if spark-submit has started the JVM, with its own master and memory
GREAT_EXPECTATIONS = ("great_expectations",)  # imported by an audit: three seconds of CPU
# A short job ends before the optimising compiler has paid for itself.
C1_COMPILER = "-XX:TieredStopAtLevel=1"
MAX_SMALL_RUN_BYTES = 16 << 20  # of the archive: about 1.5 million entries
SMALL_RUN_CONF = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}  # of a session over so few bytes


def session_conf(settings: Settings) -> dict[str, str]:
    """The options that every session needs besides `extensions_with`: the catalog, UTC, how tables are read.

    They contain secrets, and are set on the running session: Spark's pages and event log show what it was started with.
    """
    catalog = f"spark.sql.catalog.{settings.catalog_name}"
    return {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{catalog}.{name}": value for name, value in _catalog_conf(settings).items() if value},
        f"{catalog}.cache-enabled": "false",  # other processes commit to the same tables
        "spark.sql.session.timeZone": "UTC",
        # Grouping by partition would make one task read all rows of a day. No join here is by day.
        "spark.sql.iceberg.planning.preserve-data-grouping": "false",
        "spark.sql.requireAllClusterKeysForCoPartition": "false",  # one shuffle by vin serves a join on (vin, seq)
    }


def extensions_with(already: str) -> str:
    """The extensions that a site names in `already`, in their order, then Iceberg's, unless it is among them."""
    named = [name for each in already.split(",") if (name := each.strip())]
    return ",".join(dict.fromkeys([*named, ICEBERG_EXTENSIONS]))


def redacted(settings: Settings, already: str) -> str:
    """Extend the pattern `already` to the catalog's options in `session_conf`, any of which may be a secret."""
    return rf"{already}|^spark\.sql\.catalog\.{re.escape(settings.catalog_name)}\."


def _catalog_conf(settings: Settings) -> dict[str, str]:
    conf = {"warehouse": settings.warehouse_url}
    if settings.warehouse_url.startswith("s3://"):
        conf["io-impl"] = "org.apache.iceberg.aws.s3.S3FileIO"
    if settings.catalog_type == "rest":
        return conf | {"type": "rest", "uri": settings.catalog} | settings.catalog_options
    from pipelines.spark.jdbc import jdbc  # imported here: SQLAlchemy is slow to import, and listing the stages does not need it

    return conf | {"type": "jdbc", "jdbc.schema-version": "V1"} | jdbc(settings.catalog) | settings.catalog_options


def jars_for(settings: Settings) -> list[str]:
    """Names of the jars that Spark needs for the settings' catalog and storage."""
    jars = [ICEBERG_JAR]
    if settings.catalog_type == "sql":
        jars.append(POSTGRESQL_JAR if settings.catalog.startswith("postgresql") else SQLITE_JAR)
    if settings.lake_on_s3 or signs(settings.catalog_options):
        jars.append(S3_JAR)
    return jars


def java_options(size: int) -> str:
    """JVM options of the driver, for a job over `size` bytes of the archive."""
    return C1_COMPILER if size <= MAX_SMALL_RUN_BYTES else ""


def launch_conf(settings: Settings) -> dict[str, str]:
    """Options that the driver's JVM needs at its start: jars, memory, and on a local master no open port beyond loopback."""
    jars = [str(settings.jars / name) for name in jars_for(settings)]
    conf = {
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.driver.extraClassPath": ":".join(jars),
        "spark.python.daemon.module": "pipelines.spark.daemon",
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.ui.enabled": "false",
        "spark.sql.ui.explainMode": "simple",  # detailed plans, for pages that nobody sees, take a tenth of a short job's CPU
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
    }
    classes = settings.jars / CLASS_ARCHIVE
    if classes.is_file():  # the JVM ignores one that does not fit it or the jars
        silent = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # otherwise the JVM logs to standard output, which carries results
        conf["spark.driver.defaultJavaOptions"] = f'"-XX:SharedArchiveFile={classes}" -Xshare:auto {silent}'
    if settings.spark_master.startswith("local"):
        local = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        return conf | local | {"spark.sql.shuffle.partitions": str(LOCAL_SHUFFLE_PARTITIONS)}
    return conf | {"spark.jars": ",".join(jars)}


def write_defaults(settings: Settings, folder: Path) -> Path:
    """Write `spark-defaults.conf` into `folder`, for spark-submit's option --properties-file; return the folder.

    Not for SPARK_CONF_DIR: that folder would be on the class path, and the JVM refuses the class archive with a folder there.

    It does not contain the catalog's password: jobs add `session_conf` themselves.
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
