"""Checks before the start that every port is free, names the process that uses one, and finds free ports for another platform."""

import errno
import socket
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import psutil

from manifold.contracts.errors import Permanent
from manifold.settings import PREFIX

# Number of consecutive ports for each setting. The second dispatcher, and RabbitMQ's epmd and Erlang distribution, use the ports
# after the first.
_PORT_COUNTS = {
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
    offset: int = 0  # of a replica: its number, which was added to the setting's value

    def remedy(self) -> str:
        """Return the advice to choose another port, with the setting's name."""
        replica = f" (this is the port of replica {self.offset})" if self.offset else ""
        return f"choose another port: {PREFIX}{self.setting.upper()}=…{replica}"


def require_free(host: str, ports: Iterable[Port]) -> None:
    """Check that all ports are free.

    Raises:
        Permanent: some are in use; the message names all of them, their processes, and the settings to change.
    """
    problems: list[str] = []
    port_by_number: dict[int, Port] = {}
    for port in ports:
        other = port_by_number.get(port.number)
        if other is not None:
            problems.append(f"port {port.number} is configured twice, by {other.setting} and {port.setting}; {port.remedy()}")
            continue
        port_by_number[port.number] = port
        if not is_free(host, port.number):
            problems.append(f"port {port.number} is in use by {user_of(port.number)}; end that, or {port.remedy()}")
    if problems:
        raise Permanent("\n".join(problems))


def is_free(host: str, number: int) -> bool:
    """Whether a server could listen on this port now.

    Raises:
        Permanent: it cannot listen for another reason than that the port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, to ignore connections in TIME_WAIT
        try:
            probe.bind((host, number))
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                return False
            raise Permanent(f"cannot listen on {host}:{number} ({exc.strerror}); see {PREFIX}HOST") from exc
    return True


def user_of(number: int) -> str:
    """Return name and pid of the process that listens on this port; `another process` if the system does not reveal it."""
    try:
        for connection in psutil.net_connections("tcp"):
            is_listening = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == number
            if is_listening and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        pass
    return "another process"


def free_ports() -> dict[str, int]:
    """Return a free loopback port, by setting, for every port of a platform without TLS that is to run beside another one."""
    with ExitStack() as sockets:  # listens on all ports until every one is found, so that none is found twice
        return {setting: _first_free_port(sockets, count) for setting, count in _PORT_COUNTS.items()}


def _first_free_port(sockets: ExitStack, count: int) -> int:
    """Find `count` consecutive free ports, and listen on them until the stack closes; return the first."""
    while True:
        with suppress(OSError, OverflowError):  # a following port is in use, or beyond 65535: try again
            server = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
            first: int = server.getsockname()[1]
            for number in range(first + 1, first + count):
                sockets.enter_context(socket.create_server(("127.0.0.1", number)))
            return first
