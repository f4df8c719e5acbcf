"""Real servers for tests: on free loopback ports, in their own folders, ended by process id."""

import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx

from manifold.runtime.tls import verified
from manifold.sandbox.platform import airflow, broker
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings
from manifold.settings.embedded_broker import outer_socket
from pipelines.spark.conf import C1_COMPILER
from tests.support.warm import Forked, fork_of

ROOT = Path(__file__).parents[2]
START_S = 60
END_S = 30  # longer than any server gives its own children, which a kill would orphan
# For a short-lived JVM. The symbol table starts at the size of Spark's classes: growing it takes a tenth of a start.
SHORT_LIVED = f"{C1_COMPILER} -XX:+UseSerialGC -XX:+UnlockExperimentalVMOptions -XX:SymbolTableSize=1048576"
SERVER_PORTS, REPLICAS = (12_000, 32_000), 4
_WORKER, _WORKERS = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_given: set[int] = set()
T = TypeVar("T")


def free_port() -> int:
    """A free port followed by a few free ones, which replicas use; below the range of ephemeral ports.

    Concurrent test processes use separate ranges, so no other process takes it before the server starts.
    """
    first, last = SERVER_PORTS
    step = REPLICAS * _WORKERS
    while True:
        port = random.randrange(first + REPLICAS * int(_WORKER.removeprefix("gw")), last, step)
        if port not in _given and all(_is_free(port + n) for n in range(REPLICAS)):
            _given.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_until(question: Callable[[], T], *, within_s: float = START_S, what: str = "", longest_pause_s: float = 0.1) -> T:
    """Call `question` repeatedly, after growing pauses, until its answer is true; return that answer.

    Raises:
        TimeoutError: it was not true within `within_s` seconds.
    """
    deadline = time.monotonic() + within_s
    pause = 0.005
    while not (answer := question()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s} s: {what or question}")
        time.sleep(pause)  # between two checks of the condition, never instead of one
        pause = min(pause * 1.5, longest_pause_s)
    return answer


def listens(port: int) -> bool:
    """Whether something on loopback accepts connections on `port`."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass(slots=True)
class Server:
    """A running server process."""

    process: subprocess.Popen[bytes] | Forked
    port: int
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """Kill it (`kill -9`)."""
        self.process.kill()
        self.process.wait()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Pause it during the block: it neither reads nor answers."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL if it does not exit."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill()


def start(
    command: list[str], *, port: int, log: Path, env: Mapping[str, str] | None = None, ready: Callable[[], bool] | None = None
) -> Server:
    """Run `command` until it is ready: by default, until it listens on `port`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env={**os.environ, **(env or {})})
    return _started(Server(process, port, log), " ".join(command[:3]), ready)


def _started(server: Server, name: str, ready: Callable[[], bool] | None) -> Server:
    """The server, once it is ready."""
    process, port, log = server.process, server.port, server.log

    def is_up() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with {process.returncode}: {log.read_text()[-2000:]}")
        return ready() if ready else listens(port)

    try:
        wait_until(is_up, within_s=180, what=f"{name} to listen on {port}; log {log}")
    except BaseException:
        server.stop()
        raise
    return server


def start_python(
    module: str, *arguments: str, port: int, log: Path, env: Mapping[str, str], ready: Callable[[], bool] | None = None
) -> Server:
    """Run `python -m module` with `env` added to the environment."""
    return start([sys.executable, "-m", module, *arguments], port=port, log=log, env=env, ready=ready)


def start_service(
    module: str,
    *arguments: str,
    port: int,
    log: Path,
    env: Mapping[str, str],
    ready: Callable[[], bool] | None = None,
    imports: Sequence[str] = (),
) -> Server:
    """The same for a frequently started service, without its imports, or those named here (`tests.support.warm`)."""
    log.parent.mkdir(parents=True, exist_ok=True)
    return _started(Server(fork_of(module, [*arguments], log, env, imports), port, log), module, ready)


def start_redis(folder: Path, *, port: int | None = None, append_only: bool = False, users: Path | None = None) -> Server:
    """A private Redis; `users` is its `aclfile`."""
    port = port or free_port()
    folder.mkdir(parents=True, exist_ok=True)
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    command += ["--appendonly", "yes" if append_only else "no", "--appendfsync", "everysec"]
    command += ["--aclfile", str(users)] if users else []
    log = folder / "redis.log"
    said = log.stat().st_size if log.exists() else 0
    # It listens before it has loaded its file and answers LOADING until then; the log says when, without a login.
    return start(command, port=port, log=log, ready=lambda: b"Ready to accept connections" in log.read_bytes()[said:])


def start_mosquitto(folder: Path, *, port: int | None = None, extra: str = "", anonymous: bool = True) -> Server:
    """A private plain Mosquitto with sessions kept in memory."""
    port = port or free_port()
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "mosquitto.conf"
    lines = [
        f"listener {port} 127.0.0.1",
        f"allow_anonymous {str(anonymous).lower()}",
        "set_tcp_nodelay true",
        "max_queued_messages 0",
        "max_inflight_messages 0",
        f"persistence_location {folder}/",
    ]
    config.write_text("\n".join([*lines, "user root" if os.geteuid() == 0 else "", extra]) + "\n")
    binary = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
    return start([binary, "-c", str(config)], port=port, log=folder / "mosquitto.log")


def start_embedded_broker(settings: Settings) -> Server:
    """Mosquitto as the sandbox configures it, on `settings.broker_port`."""
    return start(
        broker.command(settings),
        port=settings.broker_port,
        log=settings.home / "mosquitto.log",
        ready=(lambda: outer_socket(settings).exists()) if settings.tls else None,
    )


def start_tap(settings: Settings, *, delivered: bool = False) -> Server:
    """The event tap on `settings.mqtt_port`, ready once its events get through. Any broker will do."""
    health = f"{settings.http(settings.tap_port)}/healthz"
    trust = verified(settings, health)
    return start_service(
        "manifold.sandbox.tap",
        *(["--delivered"] if delivered else []),
        port=settings.mqtt_port,
        log=settings.home / "tap.log",
        env=environment(settings),
        ready=lambda: answers(health, trust=trust),
    )


def start_airflow(settings: Settings) -> Server:
    """Airflow as the sandbox runs it, on `settings.airflow_port`, with all components healthy."""
    return start_python(
        "manifold.sandbox.platform.airflow",
        port=settings.airflow_port,
        log=settings.home / "airflow.log",
        env=environment(settings),
        ready=lambda: airflow.is_healthy(settings),
    )


def answers(url: str, *, trust: ssl.SSLContext | bool = True) -> bool:
    """Whether `url` answers with success."""
    try:
        return httpx.get(url, timeout=5, verify=trust).is_success
    except httpx.TransportError:
        return False


@contextmanager
def stopping(server: Server) -> Iterator[Server]:
    """Stop `server` at the end of the block."""
    try:
        yield server
    finally:
        server.stop()
