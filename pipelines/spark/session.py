"""The Spark session of a job: started here, or taken from spark-submit."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from importlib import import_module

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from manifold.contracts.errors import Permanent
from manifold.lake.committed import note_application
from manifold.settings import Settings
from pipelines.spark.conf import (
    EXTENSIONS,
    FEW_ROWS,
    GREAT_EXPECTATIONS,
    REDACTED,
    SHORT_BYTES,
    SUBMITTED,
    extensions_with,
    jars_for,
    launch_conf,
    redacted,
    session_conf,
)

__all__ = ["GREAT_EXPECTATIONS", "configure", "open_session", "session"]


def open_session(settings: Settings, job: str, *, java_options: str = "") -> SparkSession:
    """A session over the settings' catalog. `job` is its name in Spark's own pages and logs.

    `java_options` are those of a JVM that is started here.

    Raises:
        Permanent: Spark's extra jars are not in their folder, or the JVM does not start.
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
            for name, value in (options | {EXTENSIONS: extensions_with(_extensions_of_the_site(options))}).items():
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
    """A JVM that starts in the block writes to standard error what it would write to standard output, where results are."""
    sys.stdout.flush()
    ours = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)


def configure(spark: SparkSession, settings: Settings) -> None:
    """Give a session the catalog of the settings, and see that none of its properties is shown."""
    spark.conf.set(REDACTED, redacted(settings, spark.conf.get(REDACTED) or ""))
    for name, value in session_conf(settings).items():
        spark.conf.set(name, value)


def tune_for_few_rows(spark: SparkSession) -> SparkSession:
    """Let the session plan for few rows: of a query over a hundred of them, most of the time is the planning of its tasks."""
    for name, value in FEW_ROWS.items():
        spark.conf.set(name, value)
    return spark


@contextmanager
def session(
    settings: Settings, job: str, *, java_options: str = "", meanwhile: Sequence[str] = (), size: int | None = None
) -> Iterator[SparkSession]:
    """A session that ends with the block, for a job over `size` bytes of the archive (None: many).

    Modules in `meanwhile` are imported while Spark starts, which leaves a core idle.
    """
    with ThreadPoolExecutor(1, "import") as pool:
        imported = [pool.submit(import_module, name) for name in meanwhile]
        spark = open_session(settings, job, java_options=java_options)
        note_application(spark.sparkContext.applicationId)
        if size is not None and size <= SHORT_BYTES:
            tune_for_few_rows(spark)
        try:
            yield spark
            for module in imported:
                module.result()
        finally:
            spark.stop()


def _extensions_of_the_site(options: Mapping[str, str]) -> str:
    """What Spark's defaults say. Only the JVM has read them, and once a context has begun it takes no more extensions."""
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(options.items())))  # as Spark's own shell does
    return SparkConf().get(EXTENSIONS, "") or ""


def _require_jars(settings: Settings) -> None:
    missing = [name for name in jars_for(settings) if not (settings.jars / name).is_file()]
    if missing:
        fetch = f"`{sys.executable} -m pipelines.spark.jars` fetches what the settings ask for"
        raise Permanent(f"{settings.jars} lacks {', '.join(missing)}; {fetch}, or name their folder in MANIFOLD_JARS")
