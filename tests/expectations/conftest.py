"""A session of Spark that holds no catalog of the pipelines' tests; and rows in memory, which are judged by the same rules."""

import pytest
from pyspark.sql import SparkSession

from tests.conftest import for_few_rows
from tests.expectations.rows import Engine


@pytest.fixture(scope="session")
def spark(one_spark: SparkSession) -> SparkSession:
    """Shares the JVM, and nothing else."""
    return for_few_rows(one_spark.newSession())


@pytest.fixture(params=["spark", "arrow", "files"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """What holds the rows."""
    if request.param == "files":
        return tmp_path_factory.mktemp("rows")
    if request.param == "arrow":
        return None
    session: SparkSession = request.getfixturevalue("spark")
    return session
