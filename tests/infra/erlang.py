"""Erlang nodes that find each other by their own epmd."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from manifold.sandbox.platform import rabbitmq
from manifold.settings import Settings
from tests.support.servers import free_port, start, stopping

COOKIE = "of-tests"


@dataclass(frozen=True, slots=True)
class Node:
    """A node that waits for connections."""

    epmd_port: int
    host: str

    def pings(self, optfile: str, folder: Path) -> str:
        """The answer of another node with this -ssl_dist_optfile content (empty: without TLS): `pong` or `pang`."""
        ask = f"io:format(\"~p\", [net_adm:ping('a@{self.host}')]), halt()."
        command = [*_command(f"{folder.name}@{self.host}", optfile, folder), "-eval", ask]
        ran = subprocess.run(command, env=_environment(self.epmd_port), capture_output=True, text=True, timeout=60)
        found = re.search("pong|pang", ran.stdout)  # the node may log the connection before and after it
        return found[0] if found else ran.stdout


@contextmanager
def erlang(optfile: str, folder: Path, host: str = "localhost") -> Iterator[Node]:
    """Start the node a@<host> with this -ssl_dist_optfile content."""
    settings = Settings(home=folder, amqp_port=free_port())
    port = rabbitmq.epmd_port(settings)
    ready = folder / "ready"
    folder.mkdir()
    with stopping(start(rabbitmq.epmd_command(settings), port=port, log=folder / "epmd.log")):
        say = f'file:write_file("{ready}", "").'
        command = [*_command(f"a@{host}", optfile, folder), "-eval", say]
        with stopping(start(command, port=port, log=folder / "log", env=_environment(port), ready=ready.exists)):
            yield Node(port, host)


def _command(name: str, optfile: str, folder: Path) -> list[str]:
    folder.mkdir(exist_ok=True)
    file = folder / "ssl_dist.conf"
    file.write_text(optfile)
    secured = ["-proto_dist", "inet_tls", "-ssl_dist_optfile", str(file)] if optfile else []
    return ["erl", "-noshell", "-start_epmd", "false", "-name" if "." in name else "-sname", name, "-setcookie", COOKIE, *secured]


def _environment(epmd_port: int) -> dict[str, str]:
    return {**os.environ, "ERL_EPMD_PORT": str(epmd_port), "ERL_EPMD_ADDRESS": "127.0.0.1"}
