"""A Spark session without the catalogs of the pipelines' tests."""

import pytest
from pyspark.sql import SparkSession

from tests.conftest import for_few_rows


@pytest.fixture(scope="session")
def spark(one_spark: SparkSession) -> SparkSession:
    """A session that shares only the JVM."""
    return for_few_rows(one_spark.newSession())
