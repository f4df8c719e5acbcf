"""One Spark for these tests: the one of the pipelines' tests, where those run in the same process."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from contracts.settings import Settings
from pipelines.session import open_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # The same memory as there: whoever comes first starts the JVM for both.
    session = open_session(Settings(home=tmp_path_factory.mktemp("spark"), spark_driver_memory="1g"), "tests")
    yield session.newSession()
    session.stop()
