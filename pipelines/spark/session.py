"""The Spark session of a job: started here, taken from spark-submit, or on a Spark Connect server."""

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from importlib import import_module

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from manifold.contracts.errors import Permanent
from manifold.lake.committed import note_application
from manifold.settings import Settings
from pipelines.spark.compat import site_conf
from pipelines.spark.conf import (
    EXTENSIONS,
    GREAT_EXPECTATIONS,
    MAX_SMALL_RUN_BYTES,
    REDACTED,
    SMALL_RUN_CONF,
    SUBMITTED,
    extensions_with,
    jars_for,
    launch_conf,
    redacted,
    session_conf,
)
from pipelines.spark.connect import connected, is_connect, require

__all__ = ["GREAT_EXPECTATIONS", "configure", "open_session", "session"]


def open_session(settings: Settings, job: str, *, java_options: str = "") -> SparkSession:
    """Open a session over the settings' catalog. `job` is its name in Spark's own pages and logs.

    `java_options` are for a JVM that is started here.

    Raises:
        Permanent: Spark's extra jars are missing, or the JVM does not start.
    """
    options: dict[str, str] = {}
    starts_here = SUBMITTED not in os.environ
    if starts_here:
        _require_jars(settings)
        # Otherwise workers take the first python on PATH, which need not have Manifold's libraries.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if settings.spark_master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        options = {"spark.master": settings.spark_master} | launch_conf(settings)
        if java_options:
            options["spark.driver.extraJavaOptions"] = java_options
    builder = SparkSession.builder.appName(f"manifold {job}")
    try:
        with _stdout_of_the_jvm_as_stderr() if starts_here else nullcontext():
            for name, value in (options | {EXTENSIONS: extensions_with(site_conf(options, EXTENSIONS))}).items():
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
def _stdout_of_the_jvm_as_stderr() -> Iterator[None]:
    """Send the standard output of a JVM started in the block to standard error, because standard output carries results."""
    sys.stdout.flush()
    ours = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)


def configure(spark: SparkSession, settings: Settings) -> None:
    """Set the settings' catalog on a session, and redact its properties."""
    spark.conf.set(REDACTED, redacted(settings, spark.conf.get(REDACTED) or ""))
    for name, value in session_conf(settings).items():
        spark.conf.set(name, value)


def tune_for_few_rows(spark: SparkSession) -> SparkSession:
    """Make the session plan for few rows: a query over a hundred rows spends most of its time on planning tasks."""
    for name, value in SMALL_RUN_CONF.items():
        spark.conf.set(name, value)
    return spark


@contextmanager
def session(
    settings: Settings, job: str, *, java_options: str = "", meanwhile: Sequence[str] = (), size: int | None = None
) -> Iterator[SparkSession]:
    """Open a session for the block, for a job over `size` bytes of the archive (None: many).

    A job started by spark-submit uses that Spark; any other goes by `spark_master`. Modules in `meanwhile` are imported while
    Spark starts, which leaves a core idle.
    """
    opened = _on_a_server(settings) if is_connect(settings) else _started(settings, job, java_options)
    with ThreadPoolExecutor(1, "import") as pool:
        imported = [pool.submit(import_module, name) for name in meanwhile]
        with opened as spark:
            note_application(spark.conf.get("spark.app.id") or "")
            if size is not None and size <= MAX_SMALL_RUN_BYTES:
                tune_for_few_rows(spark)
            yield spark
            for module in imported:
                module.result()


@contextmanager
def _started(settings: Settings, job: str, java_options: str) -> Iterator[SparkSession]:
    spark = open_session(settings, job, java_options=java_options)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _on_a_server(settings: Settings) -> Iterator[SparkSession]:
    with connected(settings) as spark:
        configure(spark, settings)
        require(spark, settings)
        yield spark


def _require_jars(settings: Settings) -> None:
    missing = [name for name in jars_for(settings) if not (settings.jars / name).is_file()]
    if missing:
        fetch = f"`{sys.executable} -m pipelines.spark.jars` fetches what the settings ask for"
        raise Permanent(f"{settings.jars} lacks {', '.join(missing)}; {fetch}, or name their folder in MANIFOLD_JARS")
