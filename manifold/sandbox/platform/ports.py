"""Check before the start that every port is free and name the owner of one that is not; find ports for another platform."""

import errno
import socket
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import psutil

from manifold.contracts.errors import Permanent
from manifold.settings import PREFIX

# Ports in a row for each setting: a second dispatcher, and RabbitMQ's epmd and distribution, use the ports that follow the first.
_IN_A_ROW = {
    **dict.fromkeys(("mqtt_port", "broker_port", "tap_port", "redis_port", "recorder_port", "api_port", "airflow_port"), 1),
    "signals_port": 1,
    "campaigner_port": 1,
    "dispatcher_port": 2,
    "amqp_port": 3,
}


@dataclass(frozen=True, slots=True)
class Port:
    """A port that the platform listens on."""

    setting: str
    number: int
    offset: int = 0  # from the setting's value: replicas use the ports after the first

    def remedy(self) -> str:
        """Return advice to choose another port, with the setting's name."""
        several = f" (this is the port of replica {self.offset})" if self.offset else ""
        return f"choose another port: {PREFIX}{self.setting.upper()}=…{several}"


def require_free(host: str, ports: Iterable[Port]) -> None:
    """Check that all ports are free.

    Raises:
        Permanent: some are in use; the message names all of them, their processes, and the settings to change.
    """
    problems: list[str] = []
    taken: dict[int, Port] = {}
    for port in ports:
        if (other := taken.setdefault(port.number, port)) is not port:
            problems.append(f"port {port.number} is configured twice, by {other.setting} and {port.setting}; {port.remedy()}")
        elif not is_free(host, port.number):
            problems.append(f"port {port.number} is in use by {user_of(port.number)}; end that, or {port.remedy()}")
    if problems:
        raise Permanent("\n".join(problems))


def is_free(host: str, number: int) -> bool:
    """Whether a server could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # like servers do: ignore connections in TIME_WAIT
        try:
            probe.bind((host, number))
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                return False
            raise Permanent(f"cannot listen on {host}:{number} ({exc.strerror}); see {PREFIX}HOST") from exc
    return True


def user_of(number: int) -> str:
    """Return name and pid of the process that listens on this port, if the system reveals it."""
    try:
        for connection in psutil.net_connections("tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and connection.pid
                and connection.laddr
                and connection.laddr.port == number
            ):
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        pass
    return "another process"


def free_ports() -> dict[str, int]:
    """Return a free loopback port for every port setting, for a platform that runs beside another one."""
    with ExitStack() as held:
        return {setting: _free(held, count) for setting, count in _IN_A_ROW.items()}


def _free(held: ExitStack, count: int) -> int:
    """Hold `count` free ports in a row until the stack closes; return the first."""
    while True:
        with suppress(OSError, OverflowError):
            first: int = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for number in range(first + 1, first + count):
                held.enter_context(socket.create_server(("127.0.0.1", number)))
            return first
