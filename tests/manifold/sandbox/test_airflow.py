"""The embedded Airflow as a program: its environment, and a complete shutdown."""

import socket
from pathlib import Path

import pytest

from manifold.runtime.tls import web_context
from manifold.sandbox.platform import airflow, certificates
from manifold.sandbox.platform.processes import Record, family, wait_gone
from manifold.settings import Settings
from tests.support.other_program import other_program
from tests.support.servers import free_port, start_airflow, stopping, wait_until

pytestmark = pytest.mark.slow
RESTART_S = 240  # of the API server, which imports for ten seconds of CPU


def test_airflow_variables_of_the_caller_are_not_inherited(tmp_path: Path) -> None:
    caller = {"AIRFLOW_HOME": "/elsewhere", "AIRFLOW__CORE__LOAD_EXAMPLES": "True", "LANG": "C.UTF-8"}

    env = airflow.environment(Settings(home=tmp_path, spark_master="spark://spark.example:7077"), caller)

    assert env["AIRFLOW_HOME"] == str(tmp_path / "airflow")
    assert env["AIRFLOW__CORE__LOAD_EXAMPLES"] == "False"
    assert env["LANG"] == "C.UTF-8"
    assert "spark://spark.example:7077" in env["AIRFLOW_CONN_SPARK_DEFAULT"]


def shown(settings: Settings) -> bytes | None:
    """The certificate that Airflow presents; None if it does not respond."""
    context = web_context(settings, airflow.url(settings))
    assert context is not None
    try:
        with (
            socket.create_connection(("127.0.0.1", settings.airflow_port), 5) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            return secured.getpeercert(binary_form=True)
    except OSError:
        return None


@pytest.mark.timeout(2 * RESTART_S + 120)
def test_airflow_becomes_healthy_reloads_its_certificate_and_stops_completely(tmp_path: Path) -> None:
    """With TLS; without it, many other tests cover this."""
    settings = Settings(home=tmp_path, airflow_port=free_port(), ingest_schedule="", tls=True)
    certificates.create_missing(settings)
    with stopping(start_airflow(settings)) as server:
        before = shown(settings)
        certificates.renew(settings, within_days=certificates.LEAF_DAYS + 1)
        wait_until(lambda: shown(settings) not in (before, None), within_s=RESTART_S, what="the renewed certificate")
        wait_until(lambda: airflow.is_healthy(settings), within_s=RESTART_S, what="Airflow")
        record = Record.of(server.pid)
        assert record is not None
        running = family(record)
        commands = {" ".join(process.cmdline()[3:]) for process in running if process.cmdline()[1:3] == ["-m", "airflow"]}

        server.process.terminate()

        assert server.process.wait(60) == 0
        assert len(running) > len(airflow.COMPONENTS)
        assert {"dag-processor", "scheduler --skip-serve-logs"} <= commands
        assert wait_gone(running, 5) == []
        assert not airflow.is_healthy(settings)


@pytest.mark.parametrize("body", [b"5", b"null", b"[1]", b'{"scheduler": 5}', b"<html>"])
def test_another_program_on_the_port_of_airflow_is_not_a_healthy_airflow(body: bytes, tmp_path: Path) -> None:
    with other_program(body) as program:
        assert not airflow.is_healthy(Settings(home=tmp_path, airflow_port=program.port))
