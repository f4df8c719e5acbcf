"""Set the environment before any test imports Airflow, which reads its configuration on import."""

import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.conftest import FEW_ROWS
from tests.dags.running import Ingested, Platform, running_platform
from tests.pipelines.connect import connect_server
from tests.support.servers import ROOT

# A private folder, so that loading DAG files neither reads nor writes the developer's configuration.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="manifold-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__PLUGINS_FOLDER"] = str(ROOT / "plugins")


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server for the tasks: a JVM for each would take longer than all else that they do."""
    with connect_server(tmp_path_factory.mktemp("connect"), FEW_ROWS) as server:
        yield server.address


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory, spark: str) -> Iterator[Platform]:
    """One Airflow for all tests that run DAGs."""
    with running_platform(tmp_path_factory.mktemp("airflow"), spark) as platform:
        yield platform


@pytest.fixture(scope="package")
def ingested(running: Platform) -> Ingested:
    """A completed run of `ingest_archives` that ingested one batch."""
    seq = running.archive_batch(datetime.now(UTC) - timedelta(minutes=3), "task_map_1")
    return Ingested("task_map_1", seq, running.run("ingest_archives"))
