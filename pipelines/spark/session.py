"""Opens the Spark session of a job: in a JVM started by this process or by spark-submit, or on a Spark Connect server."""

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from importlib import import_module

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from manifold.contracts.errors import Permanent
from manifold.lake.committed import record_application
from manifold.settings import Settings
from pipelines.spark.compat import start_jvm_and_read
from pipelines.spark.conf import (
    EXTENSIONS,
    GREAT_EXPECTATIONS,
    MAX_SMALL_RUN_BYTES,
    REDACTED,
    SMALL_RUN_CONF,
    SUBMITTED,
    jars_for,
    launch_conf,
    redaction_pattern,
    session_conf,
    with_iceberg_extensions,
)
from pipelines.spark.connect import connected, is_connect, require_capabilities

__all__ = ["GREAT_EXPECTATIONS", "configure", "open_session", "session"]


def open_session(settings: Settings, job: str, *, java_options: str = "") -> SparkSession:
    """Open a session with the catalog of the settings. `job` is its name on Spark's web pages and in its logs.

    `java_options` apply only if this process starts the JVM, rather than spark-submit.

    Raises:
        Permanent: jars are missing, or the JVM does not start.
    """
    options: dict[str, str] = {}
    starts_jvm = SUBMITTED not in os.environ
    if starts_jvm:
        _require_jars(settings)
        # By default, workers would use the first python on PATH, which may lack Manifold's libraries.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if settings.spark_master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        options = {"spark.master": settings.spark_master} | launch_conf(settings)
        if java_options:
            options["spark.driver.extraJavaOptions"] = java_options
    builder = SparkSession.builder.appName(f"manifold {job}")
    try:
        with _jvm_stdout_to_stderr() if starts_jvm else nullcontext():
            site_extensions = start_jvm_and_read(options, EXTENSIONS)
            options[EXTENSIONS] = with_iceberg_extensions(site_extensions)
            for name, value in options.items():
                builder = builder.config(name, value)
            spark = builder.getOrCreate()
    except PySparkRuntimeError as exc:
        if exc.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        java = os.environ.get("JAVA_HOME") or "java on PATH"
        raise Permanent(f"Spark's JVM ({java}) does not start; set JAVA_HOME to Java 17 or later: see manifold doctor") from exc
    configure(spark, settings)
    return spark


@contextmanager
def _jvm_stdout_to_stderr() -> Iterator[None]:
    """Make a JVM that is started in the block write its standard output to standard error.

    The standard output of this process carries results, so nothing else may be written to it.
    """
    sys.stdout.flush()
    saved_stdout = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(saved_stdout, 1)
        os.close(saved_stdout)


def configure(spark: SparkSession, settings: Settings) -> None:
    """Set the catalog of the settings on a session, and redact the catalog's properties on Spark's pages and in its logs."""
    spark.conf.set(REDACTED, redaction_pattern(settings, spark.conf.get(REDACTED) or ""))
    for name, value in session_conf(settings).items():
        spark.conf.set(name, value)


def tune_for_few_rows(spark: SparkSession) -> SparkSession:
    """Set options that speed up queries over few rows, which spend most of their time on planning tasks; return the session."""
    for name, value in SMALL_RUN_CONF.items():
        spark.conf.set(name, value)
    return spark


@contextmanager
def session(
    settings: Settings, job: str, *, java_options: str = "", meanwhile: Sequence[str] = (), size: int | None = None
) -> Iterator[SparkSession]:
    """Open a session for the block, and end it afterwards.

    A job that spark-submit has started uses the Spark of spark-submit. Any other job uses the Spark that `spark_master` names.

    Args:
        settings: the settings.
        job: the name of the job on Spark's web pages and in its logs.
        java_options: options of the JVM, if this process starts it.
        meanwhile: modules that are imported in a thread while Spark starts, because the start leaves a core idle.
        size: total size in bytes of the segments that the job reads; None: unknown, or large.
    """
    opened = _connect_session(settings) if is_connect(settings) else _jvm_session(settings, job, java_options)
    with ThreadPoolExecutor(1, "import") as pool:
        imports = [pool.submit(import_module, name) for name in meanwhile]
        with opened as spark:
            record_application(spark.conf.get("spark.app.id") or "")  # by this id, the lineage finds the job's snapshots
            if size is not None and size <= MAX_SMALL_RUN_BYTES:
                tune_for_few_rows(spark)
            yield spark
            for pending_import in imports:
                pending_import.result()  # raises the error of a failed import


@contextmanager
def _jvm_session(settings: Settings, job: str, java_options: str) -> Iterator[SparkSession]:
    """A session in a JVM that this process or spark-submit starts."""
    spark = open_session(settings, job, java_options=java_options)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _connect_session(settings: Settings) -> Iterator[SparkSession]:
    """A session on a Spark Connect server."""
    with connected(settings) as spark:
        configure(spark, settings)
        require_capabilities(spark, settings)
        yield spark


def _require_jars(settings: Settings) -> None:
    """Raise `Permanent` if a jar that the settings need is missing."""
    missing = [name for name in jars_for(settings) if not (settings.jars / name).is_file()]
    if missing:
        fetch = f"`{sys.executable} -m pipelines.spark.jars` fetches what the settings ask for"
        raise Permanent(f"{settings.jars} lacks {', '.join(missing)}; {fetch}, or name their folder in MANIFOLD_JARS")
