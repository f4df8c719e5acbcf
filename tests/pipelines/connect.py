"""A Spark Connect server on loopback and its test clients: a client needs a process without a local Spark.

`python -m tests.pipelines.connect <what>` runs one of `CLIENTS` with the settings of the environment. The error of a failed
client is the last line of its log.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pyspark

from manifold.contracts.errors import ManifoldError
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.settings import Settings, load_settings
from pipelines.ingest.backlog import ingest_audit_publish
from pipelines.ingest.run import Run
from pipelines.maintenance import garbage_run
from pipelines.populate.load import populate
from pipelines.spark.conf import EXTENSIONS, ICEBERG_EXTENSIONS, write_defaults
from pipelines.spark.parallelism import parallelism
from pipelines.spark.session import session
from pipelines.stages.maintenance import check_lake, collect_garbage, compact_tables, verify_queues
from tests.pipelines.golden.archive import HOUR
from tests.pipelines.makers import at
from tests.support.platforms import variables
from tests.support.servers import Server, free_port, start, stopping
from tests.support.warm import Forked, fork_of

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
NOT_DONE = 3


@dataclass(frozen=True)
class ConnectServer:
    """The address of the server, and its page."""

    server: Server
    page: str

    @property
    def address(self) -> str:
        return f"sc://127.0.0.1:{self.server.port}"

    def jobs(self) -> set[int]:
        """The running Spark jobs."""
        (application,) = self._ask("applications")
        return {job["jobId"] for job in self._ask(f"applications/{application['id']}/jobs?status=running")}

    def _ask(self, path: str) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = httpx.get(f"{self.page}/api/v1/{path}", timeout=30).json()
        return answer


@contextmanager
def connect_server(folder: Path, conf: Mapping[str, str] | None = None, **env: str) -> Iterator[ConnectServer]:
    """A listening server with everything that jobs need, except for the changes by `conf` and `env`."""
    port, page = free_port(), free_port()
    given = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "true",
        "spark.ui.port": str(page),
        EXTENSIONS: ICEBERG_EXTENSIONS,
    }
    defaults = write_defaults(Settings(spark_driver_memory="1g"), folder) / "spark-defaults.conf"
    command = [str(SUBMIT), "--class", SERVER, "--master", "local[*]", "--properties-file", str(defaults)]
    for name, value in (given | dict(conf or {})).items():
        command += ["--conf", f"{name}={value}"]
    python = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with stopping(start(command, port=port, log=folder / "connect.log", env=python | env)) as server:
        yield ConnectServer(server, f"http://127.0.0.1:{page}")


@contextmanager
def client(what: str, log: Path, env: Mapping[str, str] | None = None, **settings: object) -> Iterator[Forked]:
    """A running client with a fresh log, killed at the end of the block if it still runs."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    process = fork_of("tests.pipelines.connect", [what], log, variables(**settings) | dict(env or {}))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _golden(settings: Settings) -> str:
    """One whole run over the golden archive, and the queues filled from it."""
    catalog, now = open_catalog(settings), at(2 * HOUR)
    with session(settings, "golden") as spark:
        ingest_audit_publish(Run(spark, catalog, settings, "golden", now))
        return populate(spark, catalog, settings, now=now, everything=True).to_json()


def _endless(settings: Settings) -> str:
    """Report how many tasks the server runs at once; then a query that never ends."""
    with session(settings, "endless") as spark:
        sys.stdout.write(f"{parallelism(spark)}\n")
        sys.stdout.flush()
        return str(spark.range(0, 1 << 62, 1, 1).where("id < 0").count())


def _housekeeping(settings: Settings) -> str:
    """The jobs that keep lake and queues in order; then the removal of data, which `garbage` postpones without a recorder."""
    checked, compacted = check_lake(settings, repair=True).to_json(), compact_tables(settings).to_json()
    verified, collected = verify_queues(settings, repair=True).to_json(), collect_garbage(settings).to_json()
    now = datetime.now(UTC)
    with session(settings, "data") as spark:
        run = Run(spark, open_catalog(settings), settings, "data", now)
        _, data = garbage_run.collect(run, cutoff=now - timedelta(days=settings.retention_days))
    return json.dumps([*map(json.loads, (checked, compacted, verified, collected)), asdict(data)])


def _nothing(settings: Settings) -> str:
    """Open a session."""
    with session(settings, "nothing"):
        return "done"


CLIENTS: dict[str, Callable[[Settings], str]] = {
    "golden": _golden,
    "endless": _endless,
    "housekeeping": _housekeeping,
    "nothing": _nothing,
}


def main() -> int:
    """Run one client; its result is the last line of output."""
    began = datetime.now(UTC)
    try:
        settings = load_settings()
        ensure_tables(open_catalog(settings))
        sys.stdout.write(f"{CLIENTS[sys.argv[1]](settings)}\n")
    except ManifoldError as exc:
        sys.stdout.write(f"{type(exc).__name__} after {(datetime.now(UTC) - began).total_seconds():.0f} s: {exc}\n")
        return NOT_DONE
    return 0


if __name__ == "__main__":
    sys.exit(main())
