"""Jobs on a Spark Connect server: its address, and how a task ends its client."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from airflow.sdk import Connection

from dags._connections import spark_connect
from dags._jobs import PIPELINES, SparkJob
from tests.support.servers import free_port, wait_until

ADDRESS = "MANIFOLD_SPARK_MASTER"
TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
SECURE = json.dumps({"use_ssl": True})
CASES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "host and port": ({"host": "spark", "port": 15002}, {ADDRESS: "sc://spark:15002/"}),
    "all fields": (
        {"host": "spark", "login": "me;you", "password": "t0ken", "extra": SECURE},
        {ADDRESS: "sc://spark/;user_id=me%3Byou;use_ssl=true", TOKEN: "t0ken"},
    ),
    "a whole address": ({"host": "sc://spark:1/;use_ssl=true"}, {ADDRESS: "sc://spark:1/;use_ssl=true"}),
}


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a missing server, named by the connection."""
    port = free_port()
    monkeypatch.setenv(ADDRESS, "local[1]")  # undone after the test
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark_connect", "host": "127.0.0.1", "port": port})
    )
    monkeypatch.setenv("MANIFOLD_HOME", str(tmp_path / "home"))
    return f"sc://127.0.0.1:{port}/"


def job(*arguments: str) -> SparkJob:
    return SparkJob(task_id="job", conn_id="spark_default", application=str(PIPELINES), application_args=[*arguments])


@pytest.mark.parametrize(("fields", "said"), CASES.values(), ids=[*CASES])
def test_the_connection_names_the_server(fields: dict[str, Any], said: dict[str, str]) -> None:
    assert spark_connect(Connection(conn_id="spark_default", conn_type="spark_connect", **fields)) == said


def test_a_job_without_spark_work_needs_no_server(away: str) -> None:
    result = job("discover", "--no-flush").execute({})

    assert (result["segments"], result["next"]) == (0, ["populate"])


def test_a_killed_task_ends_its_client(away: str) -> None:
    task = job("ingest", "--run-id", "r", "--no-flush")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(task.execute, {})
        wait_until(lambda: task._client.sub_process, what="the client")
        task.on_kill()
        with pytest.raises(AirflowException) as caught:
            running.result()
    assert "does not answer" not in str(caught.value)
