"""RabbitMQ as the sandbox configures it. Tests that need it are skipped if it is not installed."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from manifold.sandbox.platform import rabbitmq
from manifold.settings import Settings, load_settings
from tests.support.servers import ROOT, Server, free_port, start

DEFINITIONS = ROOT / "infra" / "rabbitmq" / "definitions.json"


def needs_rabbitmq() -> None:
    """Skip the test unless RabbitMQ is installed."""
    if rabbitmq.server_script() is None:
        pytest.skip("rabbitmq-server is not installed; make setup installs it")


def start_rabbitmq(settings: Settings, *, definitions: Path | None = None) -> list[Server]:
    """RabbitMQ as the sandbox configures it, on `settings.amqp_port`, and its epmd, in starting order.

    `definitions` is a file to import.
    """
    logs = settings.home / "logs"
    epmd = start(rabbitmq.epmd_command(settings), port=rabbitmq.epmd_port(settings), log=logs / "epmd.log")
    try:
        command = rabbitmq.command(settings)
        if definitions is not None:
            of_sandbox = rabbitmq.folder(settings) / "definitions.json"
            of_sandbox.write_text(json.dumps(json.loads(of_sandbox.read_text()) | json.loads(definitions.read_text())))
        return [epmd, start(command, port=settings.amqp_port, log=logs / "rabbitmq.log")]
    except BaseException:
        epmd.stop()
        raise


def ctl(settings: Settings, *words: str) -> str:
    """The output of `rabbitmqctl`."""
    script = rabbitmq.server_script()
    assert script is not None
    command = [str(script.with_name("rabbitmqctl")), *words]
    env = os.environ | rabbitmq.environment(settings)
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout


@contextmanager
def running_rabbitmq(home: Path, **more: object) -> Iterator[Settings]:
    """The settings of its clients. It has imported the definitions of an environment."""
    needs_rabbitmq()
    settings = load_settings(home=home, amqp_port=free_port(), **more)
    with ExitStack() as running:
        for server in start_rabbitmq(settings, definitions=DEFINITIONS):
            running.callback(server.stop)
        yield settings
