"""Jobs that begin without Spark, and what becomes of one that turns out to need it."""

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import structlog

from contracts.errors import Retryable
from contracts.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GREAT_EXPECTATIONS = ("great_expectations",)  # what an audit imports: three seconds of CPU

T = TypeVar("T")

log = structlog.get_logger(__name__)


class NeedsSpark(Retryable):
    """There is more to do than one process should; nothing of it counts yet."""


def add_without_spark(parser: argparse.ArgumentParser) -> None:
    """Add the option `--without-spark` of stages that need Spark only sometimes."""
    parser.add_argument("--without-spark", action="store_true", help="stop with exit status 4 where Spark is needed")


def is_small(settings: Settings, size: int) -> bool:
    """Whether so many bytes of the archive are read, judged and written by one process, without Spark."""
    return size <= settings.small_run_bytes


def without_spark_or_with(
    settings: Settings,
    job: str,
    work: "Callable[[SparkSession | None], T]",
    *,
    small: bool,
    java_options: str = "",
    meanwhile: Sequence[str] = (),
) -> T:
    """What the work returns: without Spark where it is `small`; on Spark where it is not, or says that it needs it.

    `java_options` and `meanwhile` are those of `pipelines.spark.session`.
    """
    if small:
        try:
            return work(None)
        except NeedsSpark as exc:
            log.info("this takes Spark", job=job, reason=str(exc))
    from pipelines.spark.session import session

    with session(settings, job, java_options=java_options, meanwhile=meanwhile) as spark:
        return work(spark)
