"""Checks before the start that every port is free; for others names the process and the setting to change."""

import errno
import socket
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from manifold.contracts.errors import Permanent
from manifold.settings import PREFIX


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
