"""A session of Spark that holds no catalog of the pipelines' tests."""

import pytest
from pyspark.sql import SparkSession

from tests.conftest import for_few_rows


@pytest.fixture(scope="session")
def spark(one_spark: SparkSession) -> SparkSession:
    """Shares the JVM, and nothing else."""
    return for_few_rows(one_spark.newSession())
