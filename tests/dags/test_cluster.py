"""An ingest and a rebuild, as their DAGs declare them, on a Spark cluster without Manifold: only the connection differs."""

import base64
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from pydantic import SecretStr
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.tables import IDS, QUALITY, QUARANTINE, SEGMENTS, SIGNAL_TABLES, TABLES, XRAY_PROCESSED
from manifold.lake.day_keys import DayKeys
from manifold.lake.key_ring import key_ring, new_key_line, read_keys
from manifold.queues import EcqLoader, Policy
from manifold.settings import Settings
from pipelines.spark.cluster_bundle import CODE, ENVIRONMENT, Shipped, ship
from tests.conftest import FEW_ROWS
from tests.dags.cluster import PATH, SPARK, Cluster, spark_cluster
from tests.dags.running import VINS, Platform
from tests.dags.watching import Watched, watching
from tests.pipelines.makers import NOON_MS
from tests.support.servers import ROOT, SHORT_LIVED, Server, free_port, start_redis, stopping

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
FOLDER = ROOT / "dags"
JOB_S = 300
CLIENT = "c1"
# Make Spark's output searchable.
READABLE = {"spark.eventLog.enabled": "true"} | dict.fromkeys(
    ("spark.eventLog.compress", "spark.shuffle.compress", "spark.shuffle.spill.compress", "spark.rdd.compress"), "false"
)
WORDS = b"the words of a patient"
SAID = json.dumps({"readings": [{"type": "humidity", "value": 4, "unit": "%"}], "words": WORDS.decode()}).encode()
RUN = "manual__2026-11-22T03:00:00+00:00"


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Spark's event logs."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory, events: Path) -> Shipped:
    """The output of `manifold ship` plus settings for this small cluster.

    Uncompressed, because it stays on one machine, where each driver and executor unpacks it.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("pipelines.spark.cluster_bundle.GZIP_LEVEL", 0)
        made = ship(Settings(spark_driver_memory="1g"), tmp_path_factory.mktemp("shipped"))
    with Path(made.defaults).open("a") as defaults:
        defaults.writelines(f"spark.{which}.defaultJavaOptions {SHORT_LIVED}\n" for which in ("driver", "executor"))
        defaults.write(f"spark.eventLog.dir {events.as_uri()}\n")
        defaults.writelines(f"{name} {value}\n" for name, value in (FEW_ROWS | READABLE).items())
    return made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@dataclass(frozen=True)
class Site:
    """An archive and a Redis for the tasks of the DAGs."""

    platform: Platform
    dags: dict[str, DAG]

    def run(self, dag_id: str, task_id: str, **params: object) -> Any:
        """Render and execute one task as its DAG declares it; return its result."""
        dag = self.dags[dag_id]
        task: Any = dag.get_task(task_id).prepare_for_execution()
        context: Any = {
            "run_id": RUN,
            "params": {name: dag.params[name] for name in dag.params} | params,
            "dag_run": SimpleNamespace(run_type="manual"),
            "ti": SimpleNamespace(task_id=task_id, try_number=1, xcom_pull=lambda **_: None, xcom_push=lambda **_: None),
        }
        task.render_template_fields(context)
        return task.execute(context)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster, shipped: Shipped) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("site")
    with stopping(start_redis(home / "redis")) as redis, pytest.MonkeyPatch.context() as monkeypatch:
        yield site_on(cluster, shipped, home, redis, monkeypatch)


def site_on(cluster: Cluster, shipped: Shipped, home: Path, own_redis: Server, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site whose tasks run in this process and take their settings from the environment."""
    ring, blocks = new_key_line(), home / "blocks"
    more: dict[str, Any] = {"redis_port": own_redis.port, "recorder_port": free_port(), "signals_keys": SecretStr(ring)}
    settings = Settings(home=home, **more)
    connection = {"conn_type": "spark", "host": cluster.master, "extra": {"properties-file": shipped.defaults}}
    variables = {
        "MANIFOLD_HOME": settings.home,
        "MANIFOLD_REDIS_PORT": own_redis.port,
        "MANIFOLD_RECORDER_PORT": settings.recorder_port,
        "MANIFOLD_SIGNALS_KEYS": ring,
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": blocks,  # of the driver
        "TMPDIR": blocks,
    }
    blocks.mkdir()
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    with Redis(port=own_redis.port) as redis:
        redis.set(keys.LOADED, 1)
    platform: Any = Platform(settings, own_redis, None)  # type: ignore[arg-type]  # no Airflow: only the tasks of its DAGs run
    return Site(platform, DagBag(FOLDER, bundle_path=FOLDER).dags)


@dataclass(frozen=True)
class Taken:
    """What a run of the DAG ingested, and which secrets were observed meanwhile."""

    results: dict[str, Any]  # by task
    fresh: int  # seq of a trigger
    messages: tuple[int, int]  # of a compacted queue: acknowledged, pending
    watched: Watched
    log: str  # of the tasks


@pytest.fixture(scope="module")
def taken(site: Site, cluster: Cluster, shipped: Shipped, events: Path) -> Taken:
    """A run on two executors."""
    platform, now = site.platform, datetime.now(UTC)
    platform.archive_batch(now - timedelta(days=40), "task_old")
    fresh = platform.archive_batch(now - timedelta(minutes=3), "task_new")
    messages = platform.archive_messages(now - timedelta(minutes=2), CLIENT)
    gateway, ms = platform.gateway(), round(now.timestamp() * 1000) - NOON_MS - 60_000
    platform.archive_signals(*(gateway.raw(ms + n, "d", SAID, captured=ms + n // 2) for n in range(400)))
    platform.archive_signals(*(gateway.refused(ms + 500 + n, SAID, "d", digest=str(n // 2)) for n in range(100)))
    platform.archive_signals(gateway.status(ms, "d", "online"))

    secrets = {"a payload": (WORDS, base64.b64encode(SAID)), **keys_of(platform.settings)}
    with watching([platform.settings.home, cluster.folder, events], secrets) as watched, redirect_stdout(StringIO()) as log:
        results = {task: site.run("ingest_archives", task) for task in ("ingest", "audit", "publish")}
    with Path(shipped.defaults).open("a") as defaults:
        defaults.write("spark.cores.max 1\n")  # one executor for a further job: it unpacks the same bundle as two
    return Taken(results, fresh, messages, watched, log.getvalue())


def test_jobs_run_on_the_cluster_with_only_the_connection_changed(site: Site, cluster: Cluster, taken: Taken) -> None:
    platform, results = site.platform, taken.results
    acknowledged, pending = taken.messages
    assert results["ingest"]["written"][IDS.name] == len(platform.rows(IDS)) == 2 * len(VINS)
    assert {row["run_id"] for row in platform.rows(SEGMENTS)} == {RUN}
    # Invalid VINs.
    assert (results["audit"]["warnings"], {row["run_id"] for row in platform.rows(QUALITY)}) == (1, {RUN})

    with Redis(port=platform.redis.port) as redis:
        redis.flushall()
    rebuilt = site.run("rebuild_queues", "rebuild")
    assert (rebuilt["populated"]["queued"], rebuilt["populated"]["compacted_queued"]) == (len(VINS), 1)
    assert {tuple(platform.pending(vin)) for vin in VINS} == {(taken.fresh,)}
    with Redis(port=platform.redis.port) as redis:
        queue = EcqLoader(redis, Policy.of(platform.settings)).read_one(CLIENT)
    assert (queue.acked_seq, [(m.seq, m.is_delivered) for m in queue.messages]) == (
        acknowledged,
        [(acknowledged, True), (pending, False)],
    )

    ran = cluster.applications()
    assert {app["name"] for app in ran} == {"manifold ingest", "manifold rebuild"}
    assert {app["memoryperexecutor"] for app in ran} == {1024}
    assert "Traceback" not in cluster.said()


def test_signals_reach_the_lake_without_exposing_payloads_or_keys(
    site: Site, cluster: Cluster, events: Path, taken: Taken
) -> None:
    platform, watched = site.platform, taken.watched
    rows = {table.name: platform.rows(table) for table in (*SIGNAL_TABLES, QUARANTINE)}
    assert [len(rows[name]) for name in rows] == [200, 200, 1, 50]
    processed = rows[XRAY_PROCESSED.name]
    assert {row["problem"] for row in processed} == {None}  # executors opened all of them
    assert [reading["value"] for row in processed for reading in row["readings"]] == 200 * [4]
    watched.search("the tasks' logs", taken.log)
    watched.search("the master's pages", httpx.get(f"{cluster.page}/").text + json.dumps(cluster.applications()))
    assert watched.told == set()
    for kind in ("/reports/", f"{events}/", "/stderr", "/shuffle_", "/xray_raw_signals/", "/quarantine/", "/blocks/"):
        assert any(kind in name for name in watched.files), f"{kind} of {len(watched.files)} files"
    for kind in ("SparkSubmit", "CoarseGrainedExecutorBackend"):
        assert any(kind in arguments for arguments in watched.processes), kind
    assert "run written" in taken.log


def keys_of(settings: Settings) -> dict[str, list[bytes]]:
    """The ring key and the day key, as bytes and in their usual encodings."""
    (name, key), ring = *read_keys(settings.signals_keys.get_secret_value(), "test").items(), key_ring(settings)
    found = {f"the ring's key {name}": key}
    for day in DayKeys.of(settings).wrapped():
        found[f"the key {day.key_id}"] = ring.unwrap(day.ring_id, base64.b64decode(day.wrapped), day.key_id.encode())
    return {name: [key, base64.b64encode(key), key.hex().encode()] for name, key in found.items()}


def test_nodes_lack_the_code_and_get_it_from_the_bundle(cluster: Cluster, taken: Taken) -> None:
    """The nodes' own Python lacks the code, so the tests above depend on the bundle."""
    own = [shutil.which("python3", path=PATH) or "", "-c", "import manifold"]
    without = subprocess.run(own, env={"PATH": PATH}, cwd=cluster.folder, capture_output=True, text=True, check=False)
    assert "No module named 'manifold'" in without.stderr

    assert any(arguments.startswith("./environment/bin/python -m pyspark.daemon") for arguments in taken.watched.processes)
    places = {Path(place) for path in taken.watched.paths_of_workers for place in path.split(os.pathsep)}
    assert {place for place in places if not place.is_relative_to(SPARK) and not place.is_relative_to(cluster.folder)} == set()
    assert places
    assert len([*cluster.folder.glob(f"worker-*/*/*/{CODE}")]) >= 2, "one for each executor"


def test_the_bundle_contains_the_code_and_only_what_jobs_need(shipped: Shipped) -> None:
    with zipfile.ZipFile(shipped.code) as code:
        names = set(code.namelist())
    assert {"manifold/queues/lua/enqueue.lua", "pipelines/stages/ingest.py", "manifold/settings/__init__.py"} <= names
    assert not any(name.startswith(("tests/", "manifold/sandbox/", "dags/")) or "__pycache__" in name for name in names)
    assert Path(shipped.environment).name == ENVIRONMENT
    with tarfile.open(shipped.environment) as environment:
        top = {name.split("/")[3] for name in environment.getnames() if name.count("/") >= 3}
    assert {"pyarrow", "pyiceberg", "msgspec", "redis"} <= top
    assert not {"airflow", "manifold", "pyspark", "playwright", "great_expectations"} & top
    assert "secret" not in Path(shipped.defaults).read_text()


def test_a_driver_on_the_cluster_finds_every_import_of_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the shipped environment alone: the code in its archive and Spark's own libraries, as on a node."""
    monkeypatch.setattr("pipelines.spark.cluster_bundle.GZIP_LEVEL", 0)
    made = ship(Settings(), tmp_path, with_driver=True)
    with tarfile.open(made.environment) as environment:
        environment.extractall(tmp_path / "environment", filter="fully_trusted")
    libraries = [made.code, *map(str, sorted((SPARK / "python" / "lib").glob("*.zip")))]
    with zipfile.ZipFile(made.code) as code:
        files = [name for name in code.namelist() if name.endswith(".py") and not name.endswith("__main__.py")]
    modules = [name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in files]
    jobs = [
        name
        for name in modules
        if not name.startswith(("manifold.archive.", "manifold.lake.", "manifold.messaging.", "manifold.runtime."))
    ]  # which include the needs of services

    each = f"for name in {jobs}: importlib.import_module(name)"
    imports = f"import importlib, expectations\n{each}\nprint(len(expectations.load_suites()))"
    done = subprocess.run(
        [str(tmp_path / "environment" / "bin" / "python"), "-c", imports],
        env={"PATH": PATH, "PYTHONPATH": os.pathsep.join(libraries)},
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == len(TABLES + SIGNAL_TABLES)
