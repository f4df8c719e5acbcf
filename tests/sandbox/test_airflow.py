"""The embedded Airflow as a program: what it reads, and that it leaves nothing behind."""

from pathlib import Path

import pytest

from contracts.settings import Settings
from sandbox.platform import airflow
from sandbox.platform.processes import Record, family, wait_gone
from tests.servers import free_port, start_python

pytestmark = pytest.mark.slow


def test_airflow_variables_of_the_caller_do_not_reach_it(tmp_path: Path) -> None:
    caller = {"AIRFLOW_HOME": "/elsewhere", "AIRFLOW__CORE__LOAD_EXAMPLES": "True", "LANG": "C.UTF-8"}

    env = airflow.environment(Settings(home=tmp_path, spark_master="spark://spark.example:7077"), caller)

    assert env["AIRFLOW_HOME"] == str(tmp_path / "airflow")
    assert env["AIRFLOW__CORE__LOAD_EXAMPLES"] == "False"
    assert env["LANG"] == "C.UTF-8"
    assert "spark://spark.example:7077" in env["AIRFLOW_CONN_SPARK_DEFAULT"]


def test_it_becomes_healthy_and_ends_with_all_of_its_processes(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, airflow_port=free_port(), ingest_schedule="")
    env = {"MANIFOLD_HOME": str(tmp_path), "MANIFOLD_AIRFLOW_PORT": str(settings.airflow_port), "MANIFOLD_INGEST_SCHEDULE": ""}
    server = start_python(
        "sandbox.platform.airflow",
        port=settings.airflow_port,
        log=tmp_path / "log",
        env=env,
        ready=lambda: airflow.is_healthy(settings),
    )
    record = Record.of(server.pid)
    assert record is not None
    running = family(record)

    server.process.terminate()

    assert server.process.wait(30) == 0
    assert len(running) > len(airflow.COMPONENTS)
    assert wait_gone(running, 5) == []
    assert not airflow.is_healthy(settings)
