"""A RabbitMQ that accepts connections and does not answer: the commands say so."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import ROOT

COMMANDS = {
    "the list of dead letters": ("manifold.console", "signals", "dlq", "ls"),
    "the simulated gateways": ("manifold.sandbox.fleet.gateways", "--messages", "1"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_rabbitmq_that_does_not_answer_is_reported_as_such(tmp_path: Path, command: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        own = {
            "MANIFOLD_HOME": str(tmp_path),
            "MANIFOLD_SIGNALS_AMQP_URL": f"amqp://me:secret@127.0.0.1:{silent.getsockname()[1]}/",
            "MANIFOLD_SIGNALS_CONNECT_MS": "300",
            "MANIFOLD_SIGNALS_HMAC_SECRET": "s" * 32,
        }
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MANIFOLD_")} | {"COLUMNS": "200"}
        done = subprocess.run(
            [sys.executable, "-m", *command], env=clean | own, capture_output=True, text=True, check=False, cwd=ROOT
        )

    assert (done.returncode, "no answer" in done.stdout + done.stderr) == (1, True), done.stdout + done.stderr
