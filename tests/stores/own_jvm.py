"""Spark in a process of its own: a JVM that other tests have started lacks PostgreSQL's driver."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from manifold.settings import Settings
from pipelines.catalog import naming_the_catalog
from pipelines.spark.conf import POSTGRESQL_JAR
from pipelines.spark.session import session
from tests.stores.servers import require

Namespaces = Callable[[Settings], list[str]]


@pytest.fixture(scope="module")
def namespaces() -> Iterator[Namespaces]:
    """A function that returns the namespaces that Spark sees in the catalog of these settings."""
    require(Settings().jars / POSTGRESQL_JAR)
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        yield lambda settings: process.submit(_namespaces, settings).result()


def _namespaces(settings: Settings) -> list[str]:
    with session(settings, "own") as spark, naming_the_catalog(settings):
        return [row["namespace"] for row in spark.sql(f"SHOW NAMESPACES IN {settings.catalog_name}").collect()]
