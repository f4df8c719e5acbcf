"""A session of Spark that holds no catalog of the pipelines' tests; and rows in memory, which are judged by the same rules."""

import pytest
from pyspark.sql import SparkSession

from tests.conftest import for_few_rows


@pytest.fixture(scope="session")
def spark(one_spark: SparkSession) -> SparkSession:
    """Shares the JVM, and nothing else."""
    return for_few_rows(one_spark.newSession())


@pytest.fixture(params=["spark", "arrow"])
def engine(request: pytest.FixtureRequest) -> SparkSession | None:
    """What holds the rows: Spark, or this process (None)."""
    if request.param == "arrow":
        return None
    session: SparkSession = request.getfixturevalue("spark")
    return session
