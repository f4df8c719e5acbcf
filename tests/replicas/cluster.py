"""A real Redis Cluster of local processes: masters, and replicas if a test needs them."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from tests.support.servers import Server, free_port, listens, start, wait_until

BUS_PORTS = 10_000  # above the port of each node
BUS_LIMIT = 32_000
NODE_TIMEOUT_MS = 1000


@dataclass
class LocalCluster:
    """Its nodes; the first `masters` were masters initially."""

    nodes: list[Server]
    masters: int

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def clients(self) -> list[Redis]:
        """A client for each living node, for queries to that node alone."""
        return [Redis(port=node.port) for node in self.nodes if node.process.poll() is None]

    def flush(self) -> None:
        for client in self.clients():
            info: Any = client.info("replication")
            if info["role"] == "master":
                client.flushall()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


@contextmanager
def a_cluster(folder: Path, *, masters: int = 3, replicas: int = 0) -> Iterator[LocalCluster]:
    """Masters that share all slots, each with `replicas` replicas; ready when all nodes agree."""
    nodes: list[Server] = []
    cluster = LocalCluster(nodes, masters)
    try:
        nodes.extend(_node(folder / f"node-{n}") for n in range(masters * (1 + replicas)))
        places = [f"127.0.0.1:{node.port}" for node in nodes]
        command = ["redis-cli", "--cluster", "create", *places, "--cluster-replicas", str(replicas), "--cluster-yes"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        wait_until(lambda: all(_is_whole(client, masters * (1 + replicas)) for client in cluster.clients()))
        yield cluster
    finally:
        cluster.stop()


def _node(folder: Path) -> Server:
    folder.mkdir(parents=True)
    # Ephemeral ports start at 32,768: bus ports must not collide with those or with other servers.
    port = next(p for p in iter(free_port, None) if p + BUS_PORTS < BUS_LIMIT and not listens(p + BUS_PORTS))
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", "--appendonly"]
    command += ["no", "--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--repl-diskless-sync-delay"]
    command += ["0", "--cluster-replica-validity-factor", "0", "--repl-ping-replica-period", "1"]
    return start(command, port=port, log=folder / "redis.log")


def _is_whole(client: Redis, nodes: int) -> bool:
    info: Any = client.execute_command("CLUSTER INFO")
    replication: Any = client.info("replication")
    linked = replication["role"] == "master" or replication["master_link_status"] == "up"
    return bool(linked and info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == nodes)
