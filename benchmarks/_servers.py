"""Servers of a benchmark. Each has free loopback ports and its own folder, and ends with the benchmark."""

import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import httpx

from manifold.sandbox.platform import rabbitmq, supervise
from manifold.sandbox.platform.ports import free_ports
from manifold.settings import Settings, load_settings

PREFIX = "manifold-bench-"
ROOT = Path(__file__).resolve().parents[1]
DEFINITIONS = ROOT / "infra" / "rabbitmq" / "definitions.json"
START_S, END_S, POLL_S = 180.0, 30.0, 0.05


def free_port() -> int:
    """Return a free loopback port."""
    return free_ports()["api_port"]


@dataclass(slots=True)
class Server:
    """A running server process; it ends with the `with` block."""

    process: subprocess.Popen[bytes]
    port: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL after `END_S`."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def start(
    command: list[str], *, port: int, log: Path, env: Mapping[str, str] | None = None, ready: Callable[[], bool] | None = None
) -> Server:
    """Start `command` and wait until it is ready: until `ready` returns true, or by default until `port` accepts connections.

    Raises:
        RuntimeError: the process ends, or is not ready within `START_S`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=os.environ | dict(env or {}))
    server = Server(process, port)
    deadline = time.monotonic() + START_S
    try:
        while not (ready() if ready else listens(port)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(command[:3])} does not start on port {port}: {log.read_text()[-2000:]}")
            time.sleep(POLL_S)
    except BaseException:
        server.stop()
        raise
    return server


def start_python(
    module: str, *arguments: str, port: int, log: Path, env: Mapping[str, str], ready: Callable[[], bool] | None = None
) -> Server:
    """Start `python -m module`, with `env` added to the environment; see `start`."""
    return start([sys.executable, "-m", module, *arguments], port=port, log=log, env=env, ready=ready)


def start_redis(folder: Path, *, port: int | None = None) -> Server:
    """Start an empty Redis that stores nothing on disk."""
    port = port or free_port()
    folder.mkdir(parents=True, exist_ok=True)
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    return start([*command, "--appendonly", "no"], port=port, log=folder / "redis.log")


def start_mosquitto(folder: Path, *, port: int) -> Server:
    """Start a plain Mosquitto that keeps sessions in memory and allows anonymous clients."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "mosquitto.conf"
    lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", "set_tcp_nodelay true"]
    lines += ["max_queued_messages 0", "max_inflight_messages 0", f"persistence_location {folder}/"]
    if os.geteuid() == 0:
        lines.append("user root")
    config.write_text("\n".join(lines) + "\n")
    binary = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
    return start([binary, "-c", str(config)], port=port, log=folder / "mosquitto.log")


@contextmanager
def running_rabbitmq(settings: Settings) -> Iterator[Server]:
    """Run RabbitMQ on `settings.amqp_port`, as the sandbox configures it, and with the definitions in infra/rabbitmq."""
    logs = settings.home / "logs"
    with ExitStack() as running:
        epmd = start(rabbitmq.epmd_command(settings), port=rabbitmq.epmd_port(settings), log=logs / "epmd.log")
        running.enter_context(epmd)
        command = rabbitmq.command(settings)
        definitions = rabbitmq.folder(settings) / "definitions.json"  # written by `rabbitmq.command`
        merged = json.loads(definitions.read_text()) | json.loads(DEFINITIONS.read_text())
        definitions.write_text(json.dumps(merged))
        yield running.enter_context(start(command, port=settings.amqp_port, log=logs / "rabbitmq.log"))


@contextmanager
def sandbox(**overrides: object) -> Iterator[Settings]:
    """Run the embedded platform on free ports, in its own folder; with Airflow and RabbitMQ only if `overrides` enable them."""
    with TemporaryDirectory(prefix=PREFIX) as folder:
        values = {"with_airflow": False, "with_signals": False, "with_campaigns": False, **free_ports(), **overrides}
        settings = load_settings(home=Path(folder), **values)
        supervise.up(settings)
        try:
            yield settings
        finally:
            supervise.down(settings)


@contextmanager
def in_a_process(main: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Run `main(pipe, *arguments)` in another process, so that its CPU time does not count as that of the caller.

    The block begins once the process has sent its first message; the end of the block ends the process. Yields the caller's end
    of the pipe.
    """
    pipe, child_pipe = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=main, args=(child_pipe, *arguments), daemon=True)
    process.start()
    child_pipe.close()  # without this, `recv` would not fail when the process ends
    pipe.recv()
    try:
        yield pipe
    finally:
        process.kill()
        process.join()


def listens(port: int) -> bool:
    """Whether a process accepts connections on `port` of loopback."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers(url: str) -> bool:
    """Whether a GET of `url` succeeds."""
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.TransportError:
        return False
