"""Jobs on a Spark Connect server: the same rows, and no query outlives its client."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Permanent, SettingsError
from manifold.contracts.tables import DATA, ECQ_STATE, IDS, META, OUTCOMES
from manifold.lake.catalog import open_catalog
from manifold.queues import Loader, Policy
from manifold.settings import Settings, load_settings
from pipelines.populate.load import populate
from pipelines.spark.connect import session_ids
from pipelines.stream.query import stream
from tests.conftest import FEW_ROWS
from tests.pipelines import plain
from tests.pipelines.conftest import SparkLake
from tests.pipelines.connect import NOT_DONE, ConnectServer, client, connect_server
from tests.pipelines.golden.archive import HOUR, write_first, write_second
from tests.pipelines.golden.published import audit_results, published, read, write
from tests.pipelines.golden.test_golden import GOLDEN
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import NOON, at, data, ecq_ack, ecq_write, outcome, seq_at, trigger
from tests.pipelines.signal_makers import Door
from tests.support.servers import Server, free_port, wait_until
from tests.support.warm import Forked

BOUND_S = 200
FIRST = {f"AIRFLOW_CTX_{name}": value for name, value in {"DAG_ID": "d", "DAG_RUN_ID": "r", "TASK_ID": "t"}.items()}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], ConnectServer]]:
    """Return the running server of all tests, or start one if a test has killed it."""
    running: list[ConnectServer] = []
    with ExitStack() as started:

        def server() -> ConnectServer:
            if not running or running[-1].server.process.poll() is not None:
                running.append(started.enter_context(connect_server(tmp_path_factory.mktemp("connect"), FEW_ROWS)))
            return running[-1]

        yield server


@pytest.fixture
def server(servers: Callable[[], ConnectServer]) -> ConnectServer:
    return servers()


@pytest.mark.slow
def test_a_run_on_a_server_gives_the_golden_rows(
    server: ConnectServer, spark_lake: SparkLake, redis_server: Server, tmp_path: Path
) -> None:
    door = Door(spark_lake, tmp_path / "ring")
    write_first(spark_lake, door)
    write_second(spark_lake, door)
    settings, log = spark_lake.settings, tmp_path / "client.log"
    own: dict[str, Any] = {"home": settings.home, "signals_keys_file": settings.signals_keys_file, "spark_master": server.address}

    with client("golden", log, **own, redis_url=f"redis://127.0.0.1:{redis_server.port}/7") as running:
        assert running.wait(BOUND_S) == 0, log.read_text()

    found = published(spark_lake, door.keys) | {"quality_results": audit_results(spark_lake)}
    write(found, tmp_path / "found")
    assert read(tmp_path / "found") == read(GOLDEN), f"see {tmp_path / 'found'}"
    here = Settings(**settings.model_dump(exclude={"redis_url"}), redis_url=f"redis://127.0.0.1:{redis_server.port}/8")
    same = populate(spark_lake.spark, spark_lake.catalog, here, now=at(2 * HOUR), everything=True)
    assert json.loads(log.read_text().splitlines()[-1]) == json.loads(json.dumps(asdict(same)))
    assert same.queued > 0


@pytest.fixture
def old_and_new(lake: Lake, redis: Redis) -> Lake:
    """A lake of old entries and new ones, whose check, compaction, verification and collection all have work.

    V1's old entry was delivered, V2's is lost in the lake and queued, V3's wait in the lake. The payload `d1` was seen twice. Of
    the queue c1 one message is superseded and the next acknowledged; the message of c2 is old, that of c3 new.
    """
    lake.renew()
    catalog, new = open_catalog(lake.settings), int((datetime.now(UTC) - NOON) / timedelta(milliseconds=1)) - 3_600_000
    compacted = [*(ecq_write(ms, "c1", "a", b"x") for ms in (31, 32)), ecq_ack(33, "c1", 32), ecq_write(34, "c2", "a", b"x")]
    runs = [
        {Stream.TRIGGER: [trigger(1, ["V1", "V2"])], Stream.DATA: [data(2, "d1", b"one")], Stream.OUTCOME: [outcome(6, "V1", 1)]},
        {Stream.TRIGGER: [trigger(11, ["V3"])], Stream.DATA: [data(12, "d1", b"one")]},
        {Stream.TRIGGER: [trigger(21, ["V3"])], Stream.ECQ: compacted},
        {Stream.TRIGGER: [trigger(new, ["V4", "V5"], "d2")], Stream.DATA: [data(new + 1, "d2", b"two")]},
        {Stream.ECQ: [ecq_write(new, "c3", "a", b"x")]},
    ]
    for number, streams in enumerate(runs):
        for kind, messages in streams.items():
            lake.archive(kind, messages)
        plain.ingest(catalog, lake.settings, run_id=f"run_{number}", now=at(new))
    plain.rewrite(catalog, IDS, [row for row in plain.read(catalog, IDS) if row["vin"] != "V2"])
    Loader(redis, Policy.of(lake.settings)).enqueue([(vin, [(seq_at(1), "")]) for vin in ("V1", "V2")], 0)
    redis.set(keys.LOADED, 1)
    return lake


@pytest.mark.slow
def test_housekeeping_on_a_server_repairs_packs_and_collects(
    server: ConnectServer, old_and_new: Lake, redis_server: Server, tmp_path: Path
) -> None:
    log, settings = tmp_path / "client.log", old_and_new.settings
    own: dict[str, Any] = {"home": settings.home, "spark_master": server.address, "redis_port": redis_server.port}

    with client("housekeeping", log, **own, recorder_port=free_port(), compact_min_files=3) as running:
        assert running.wait(2 * BOUND_S) == 0, log.read_text()

    check, compact, verify, garbage, of_data = json.loads(log.read_text().splitlines()[-1])
    assert (check["repaired"], check["troubles"]) == (1, {})
    assert (compact["tables"][IDS.name]["sorted_days"], compact["tables"][META.name]["folded_rows"]) == (1, 1)
    assert compact["queues"] == {"messages": 1, "states": 0, "positions": 0, "seqnos": 0}
    assert {kind: count for kind, count in verify["differences"].items() if count} == {"missing": 2, "ended": 1, "overdue": 1}
    assert (verify["repaired"], verify["agree"]) == ({"missing": 2, "ended": 1}, True)
    assert (garbage["expired"]["count"], garbage["messages"]["count"], of_data["sample"]) == (3, 2, ["d1"])
    catalog = open_catalog(settings)
    assert sorted(row["vin"] for row in plain.read(catalog, IDS)) == ["V1", "V2", "V3", "V3", "V4", "V5"]
    ends = sorted((row["vin"], row["outcome"]) for row in plain.read(catalog, OUTCOMES))
    assert ends == [("V1", "delivered"), *(("V" + number, "expired") for number in "233")]
    states = sorted((row["client_id"], row["kind"]) for row in plain.read(catalog, ECQ_STATE))
    assert states == [("c1", "acknowledged"), ("c2", "expired")]
    assert [row["data_id"] for row in plain.read(catalog, DATA)] == ["d2"]


@pytest.mark.slow
def test_the_next_attempt_ends_the_query_of_a_killed_one_and_sigterm_its_own(server: ConnectServer, tmp_path: Path) -> None:
    log, given = tmp_path / "client.log", _home(tmp_path) | {"spark_master": server.address}
    with client("endless", log, FIRST | {"AIRFLOW_CTX_TRY_NUMBER": "1"}, **given) as running:
        of_the_killed = _its_job(server, running, log)
    assert server.jobs() == of_the_killed

    with client("endless", log, FIRST | {"AIRFLOW_CTX_TRY_NUMBER": "2"}, **given) as running:
        assert _its_job(server, running, log, of_the_killed).isdisjoint(of_the_killed)
        assert log.read_text().splitlines()[-1] == str(os.cpu_count())
        running.send_signal(signal.SIGTERM)

        assert running.wait(BOUND_S) == 128 + signal.SIGTERM, log.read_text()
    wait_until(lambda: not server.jobs(), what="the end of the job")

    with client("nothing", log, FIRST | {"AIRFLOW_CTX_TRY_NUMBER": "3"}, **given) as running:
        assert running.wait(BOUND_S) == 0, log.read_text()  # though the sessions of both earlier tries are closed


@pytest.mark.slow
def test_a_server_crash_is_reported_within_a_minute(server: ConnectServer, tmp_path: Path) -> None:
    log = tmp_path / "client.log"
    with client("endless", log, spark_master=server.address, **_home(tmp_path)) as running:
        _its_job(server, running, log)
        server.server.kill()
        assert running.wait(60) == NOT_DONE, log.read_text()
        assert f"the Spark Connect server {server.address} does not answer: see that it runs" in log.read_text().splitlines()[-1]


@pytest.mark.slow
def test_a_missing_server_is_reported_within_a_minute(tmp_path: Path) -> None:
    log, address = tmp_path / "client.log", f"sc://127.0.0.1:{free_port()}"
    with client("nothing", log, home=tmp_path / "home", spark_master=address) as running:
        assert running.wait(60) == NOT_DONE, log.read_text()
    assert f"the Spark Connect server {address} does not answer" in log.read_text().splitlines()[-1]


LACKS: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "the extension": ({"spark.sql.extensions": ""}, {}, "lacks Iceberg's extension: start it with --conf spark.sql.extensions="),
    "the jars": ({"spark.driver.extraClassPath": ""}, {}, "; start it with these in --driver-class-path: iceberg-spark-runtime"),
    "Manifold": ({}, {}, "cannot run Manifold: set PYSPARK_PYTHON"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("conf", "env", "says"), LACKS.values(), ids=[*LACKS])
def test_missing_capabilities_of_a_server_are_named(conf: dict[str, str], env: dict[str, str], says: str, tmp_path: Path) -> None:
    if not conf:  # the same Python without Manifold
        bare = tmp_path / "bare"
        bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
        bare.chmod(0o755)
        env = {"PYSPARK_PYTHON": str(bare)}
    log = tmp_path / "client.log"
    with (
        connect_server(tmp_path, conf, **env) as server,
        client("nothing", log, home=tmp_path / "home", spark_master=server.address) as running,
    ):
        assert running.wait(BOUND_S) == NOT_DONE, log.read_text()
    assert log.read_text().splitlines()[-1].startswith("Permanent")
    assert says in log.read_text().splitlines()[-1]


def test_each_attempt_of_a_task_has_its_own_session() -> None:
    tries = [session_ids(FIRST | {"AIRFLOW_CTX_TRY_NUMBER": str(number)}) for number in (1, 2, 3)]

    assert [len(ids) for ids in tries] == [1, 2, 3]
    assert tries[2][:2] == tries[1]
    assert tries[1][:1] == tries[0]
    assert len({*tries[2]}) == 3
    assert session_ids(FIRST | {"AIRFLOW_CTX_TASK_ID": "other", "AIRFLOW_CTX_TRY_NUMBER": "1"}) != tries[0]
    assert session_ids({}) != session_ids({})


def test_a_token_in_the_address_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANIFOLD_SPARK_MASTER", "sc://spark:15002/;token=hunter2")

    with pytest.raises(SettingsError, match="set SPARK_CONNECT_AUTHENTICATE_TOKEN") as caught:
        load_settings()
    assert "hunter2" not in str(caught.value)


def test_the_stream_refuses_a_server(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="stream needs a Spark of its own"):
        stream(Settings(home=tmp_path, spark_master="sc://127.0.0.1:1"))


def _home(folder: Path) -> dict[str, Any]:
    return {"home": folder / "home"}


def _its_job(server: ConnectServer, running: Forked, log: Path, before: Set[int] = frozenset()) -> set[int]:
    """The server's running jobs, once the client's query is among them, and those of `before` have ended."""

    def is_at_work() -> bool:
        assert running.poll() is None, log.read_text()
        has_opened = any(line.isdigit() for line in log.read_text().splitlines())  # a session runs jobs of its own while it opens
        return has_opened and bool(jobs := server.jobs()) and jobs.isdisjoint(before)

    wait_until(is_at_work, within_s=BOUND_S, what=f"a job; log {log}")
    return server.jobs()
