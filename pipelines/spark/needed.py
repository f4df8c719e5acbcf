"""Jobs that begin without Spark, and continue on Spark if they turn out to need it."""

import argparse
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import structlog

from manifold.contracts.errors import Retryable
from manifold.settings import Settings
from pipelines.spark.conf import SUBMITTED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

log = structlog.get_logger(__name__)


class NeedsSpark(Retryable):
    """There is more to do than one process should; nothing of it counts yet."""


def add_without_spark(parser: argparse.ArgumentParser) -> None:
    """Add the option `--without-spark` of stages that need Spark only sometimes."""
    parser.add_argument("--without-spark", action="store_true", help="stop with exit status 4 where Spark is needed")


def is_small(settings: Settings, size: int) -> bool:
    """Whether so many bytes of the archive are read, judged and written by one process, without Spark."""
    return 0 < settings.small_run_bytes >= size


def without_spark_or_with(
    settings: Settings,
    job: str,
    work: "Callable[[SparkSession | None], T]",
    *,
    small: bool,
    may_start: bool = True,
    java_options: str = "",
    meanwhile: Sequence[str] = (),
) -> T:
    """The result of the work: done without Spark if it is `small`; on Spark otherwise, or if it raises `NeedsSpark`.

    A process that spark-submit has started always uses Spark, because a cluster waits for the application. `java_options` and
    `meanwhile` are those of `pipelines.spark.session`.

    Raises:
        NeedsSpark: it may not start (`may_start`).
    """
    if small and SUBMITTED not in os.environ:
        try:
            return work(None)
        except NeedsSpark as exc:
            if not may_start:
                raise
            log.info("this takes Spark", job=job, reason=str(exc))
    if not may_start:
        raise NeedsSpark(f"{job}: more than {settings.small_run_bytes} bytes of the archive are to be taken in")
    from pipelines.spark.session import session

    with session(settings, job, java_options=java_options, meanwhile=meanwhile) as spark:
        return work(spark)
