"""Airflow reads its configuration when it is imported: here, before any test of this folder imports it."""

import os
import tempfile
from collections.abc import Iterator

import pytest

from tests.dags.running import Platform, running_platform

# Its own folder, so that loading DAG files neither reads nor writes the configuration of whoever runs the tests.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="manifold-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One Airflow for all tests that run DAGs."""
    with running_platform(tmp_path_factory.mktemp("airflow")) as platform:
        yield platform
