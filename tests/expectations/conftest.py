"""A session of Spark that holds no catalog of the pipelines' tests."""

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(one_spark: SparkSession) -> SparkSession:
    """Shares the JVM, and nothing else."""
    return one_spark.newSession()
