"""Fixtures for several test packages."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
from pyspark.sql import SparkSession
from redis import Redis

from manifold.sandbox.platform import supervise
from manifold.settings import Settings
from pipelines.spark.session import open_session
from tests.support.platforms import platform_settings
from tests.support.rabbitmq import running_rabbitmq
from tests.support.servers import SHORT_LIVED, Server, start_mosquitto, start_redis, stopping

# JVM options of all tests: each JVM ends before the optimising compiler pays off, and uses a third less CPU without it.
# With that compiler alone, the JVM reserves a 48 MB code cache: full after half an hour, and Spark is recompiled repeatedly.
# Spark renders every query plan for its UI, which nobody reads here: for long plans a tenth of a short query's CPU. It writes
# data for its tasks into zeroed blocks of 4 MB each by default.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS",
    f"{SHORT_LIVED} -XX:ReservedCodeCacheSize=240m -Dspark.sql.ui.explainMode=simple -Dspark.broadcast.blockSize=64k",
)


@pytest.fixture(scope="session", autouse=True)
def capturable_logs() -> Iterator[None]:
    """Keep cached loggers from leaking log configuration into later tests."""
    configure = structlog.configure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", lambda **how: configure(**(how | {"cache_logger_on_first_use": False})))
        yield


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One Redis for all tests that isolate themselves by owner names."""
    with stopping(start_redis(tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture
def redis(redis_server: Server) -> Iterator[Redis]:
    """A blocking client of an emptied `redis_server`."""
    with Redis(port=redis_server.port) as client:
        client.flushall()
        yield client


@pytest.fixture
def url(redis_server: Server) -> str:
    """The URL of `redis_server`."""
    return f"redis://127.0.0.1:{redis_server.port}/0"


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Server]:
    """A Redis that this test may kill, wipe and restart."""
    with stopping(start_redis(tmp_path / "redis", append_only=True)) as server:
        yield server


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One plain broker for all tests that isolate themselves by topic and client id."""
    with stopping(start_mosquitto(tmp_path_factory.mktemp("mosquitto"))) as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """One RabbitMQ with imported definitions. A test begins by emptying the queues, which all services of one RabbitMQ share."""
    with running_rabbitmq(tmp_path_factory.mktemp("rabbitmq")) as settings:
        yield settings


# The duration of an example depends more on the machine's load than on the code.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=15)  # of `make check`
hypothesis.settings.load_profile("untimed")

# Tests that share an Airflow, sandboxes, a platform or a process for jobs go to the same worker. A Spark is started by each
# worker that gets tests with one: it takes less CPU than a few of their runs, and on a single worker they would last twice as
# long as all others. Campaigns have an Airflow of their own, which ends before the other begins.
AIRFLOW = tuple(f"tests/dags/test_{what}.py" for what in ("campaign_runs", "browser", "login", "real_runs"))
CATALOGS = ("encrypted_catalog", "guarded_catalog", "signed_catalog", "silent_catalog")
STORES = tuple(f"tests/stores/test_{what}.py" for what in ("maintenance", "deployed_lakes", *CATALOGS))
# The users of `platform`, which each worker with one of these files would start. Prometheus sees it before others harm it.
PLATFORM = (
    "tests/infra/test_prometheus.py",
    "tests/platform/test_any_client.py",
    "tests/platform/test_killing.py",
    "tests/examples/test_campaign.py",
    "tests/examples/test_mqtt.py",
    "tests/manifold/sandbox/test_supervise.py",
    *(f"tests/manifold/console/test_{what}.py" for what in ("batches", "commands", "ecq", "erase", "metrics")),
)
TOGETHER = (AIRFLOW, ("tests/dispatcher/cases/",), STORES, PLATFORM)
# The longest start first: if one started last, a single worker would be busy while the others are idle.
FIRST = (
    AIRFLOW[0],
    "tests/dags/test_cluster.py",
    "tests/dispatcher/cases/",
    "tests/stores/test_maintenance.py",
    "tests/manifold/console/test_no_noise.py",
    "tests/pipelines/",
    "tests/expectations/",
    "tests/stores/",
    "tests/replicas/",
    "tests/faults/",
    PLATFORM[0],
    "tests/platform/",
    "tests/examples/",
    "tests/dags/",
    "tests/infra/",
    "tests/manifold/sandbox/",
    "tests/manifold/console/",
    "tests/manifold/signals/",
)


def _group(nodeid: str) -> tuple[str, ...]:
    """The files that run on the same worker as a test, in this order: its group in `TOGETHER`, or its own."""
    file = nodeid.partition("::")[0]
    return next((group for group in TOGETHER if file.startswith(group)), (file,))


def _scope(nodeid: str) -> str:
    """The scheduling scope of a test: its group, named by the first."""
    return _group(nodeid)[0]


def _turn(nodeid: str) -> tuple[int, int]:
    """The rank of a test: the longest prefix in `FIRST` that matches its scope, then its file's place in the group."""
    fits = [first for first in FIRST if _scope(nodeid).startswith(first)]
    place = next(n for n, file in enumerate(_group(nodeid)) if nodeid.startswith(file))
    return FIRST.index(max(fits, key=len)) if fits else len(FIRST), place


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several workers, distribute tests by group or file."""
    from tests.support.scheduling import by_scope  # imported here: xdist need not be installed

    return by_scope(config, log, _scope)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests into the order in which workers get them."""
    items.sort(key=lambda item: _turn(item.nodeid))


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A running platform without Airflow, shared by all tests that leave it healthy."""
    settings = platform_settings(tmp_path_factory.mktemp("platform"), segment_max_seconds=2, ack_deadline_seconds=5)
    supervise.up(settings)
    try:
        yield settings
    finally:
        supervise.down(settings)


# For sessions that see a few rows: tasks, planning each stage of a query anew, and compiling each query to Java take longer than
# the rows. Whole runs as users start them (the demo, tests/pipelines/test_processes.py) use Spark's defaults.
FEW_ROWS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def jvm_for_few_rows() -> dict[str, str]:
    """The variable that gives `FEW_ROWS` to the JVMs of processes: Spark takes its options from their properties."""
    few_rows = " ".join(f"-D{name}={value}" for name, value in FEW_ROWS.items())
    return {"JDK_JAVA_OPTIONS": f"{os.environ['JDK_JAVA_OPTIONS']} {few_rows}"}


def for_few_rows(session: SparkSession) -> SparkSession:
    """The session with `FEW_ROWS`."""
    for name, value in FEW_ROWS.items():
        session.conf.set(name, value)
    return session


@pytest.fixture(scope="session")
def one_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark per test process; each test uses its own session or its own catalog."""
    settings = Settings(home=tmp_path_factory.mktemp("spark"), spark_driver_memory="1g")
    spark = open_session(settings, "tests")
    yield spark
    spark.stop()
