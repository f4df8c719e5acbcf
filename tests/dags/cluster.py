"""A Spark cluster on loopback: a master and two workers (1 core, 1 GiB each) on nodes without Manifold.

Its processes have their own working folder, no PYTHONPATH, no settings and no virtual environment on their path.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyspark

from tests.support.servers import SHORT_LIVED, Server, free_port, start, stopping, wait_until

SPARK = Path(pyspark.__file__).parent
WORKERS = 2
PATH = "/usr/local/bin:/usr/bin:/bin"  # contains Java and the system's Python


@dataclass(frozen=True)
class Cluster:
    """The address of the cluster and the executor folders of its workers."""

    master: str
    page: str
    folder: Path

    def applications(self) -> list[dict[str, Any]]:
        """The applications that the master lists."""
        told: list[dict[str, Any]] = httpx.get(f"{self.page}/json/").json()["completedapps"]
        return told

    def said(self) -> str:
        """The output of all executors so far."""
        return "".join(file.read_text(errors="replace") for file in sorted(self.folder.glob("worker-*/*/*/stderr")))


@contextmanager
def spark_cluster(folder: Path) -> Iterator[Cluster]:
    """Start master and workers; stop them after the test."""
    port, page = free_port(), free_port()
    url = f"http://127.0.0.1:{page}"
    with ExitStack() as servers:
        master = ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
        servers.enter_context(stopping(_start(folder, master, port)))
        for n in range(WORKERS):
            ui, work = free_port(), folder / f"worker-{n}"
            worker = ["worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", str(ui)]
            servers.enter_context(stopping(_start(folder, [*worker, "--work-dir", str(work), f"spark://127.0.0.1:{port}"], ui)))
        wait_until(lambda: httpx.get(f"{url}/json/").json()["aliveworkers"] == WORKERS, within_s=60, what="both workers")
        yield Cluster(f"spark://127.0.0.1:{port}", url, folder)


def _start(folder: Path, role: list[str], port: int) -> Server:
    env = {"PATH": PATH, "HOME": str(folder), "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1"}
    env["SPARK_LOCAL_DIRS"] = str(folder / "blocks")
    env |= {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
    command = ["env", "-i", "-C", str(folder), *(f"{name}={value}" for name, value in env.items()), "SPARK_DAEMON_MEMORY=256m"]
    command.append(f"SPARK_DAEMON_JAVA_OPTS={SHORT_LIVED}")
    command += [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{role[0]}", *role[1:]]
    return start(command, port=port, log=folder / f"{role[0]}-{port}.log")
