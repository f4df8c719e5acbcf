"""The DAGs for real: the embedded Airflow, Spark, a lake and a Redis of this test's own."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow.parquet as pq
import pytest
from redis import Redis

from adapters.lake import open_catalog
from contracts import keys, topics
from contracts.envelope import Envelope, Stream, segment_path, to_arrow
from contracts.errors import Permanent
from contracts.names import Owner
from contracts.seq import datetime_of, first_seq_at
from contracts.settings import Settings
from contracts.tables import DATA, IDS, SEGMENTS, Table
from sandbox import airflow
from sandbox.airflow_api import AirflowApi
from tests.servers import Server, free_port, start_python, start_redis, stopping, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RUN_S = 400  # four tasks, three of them with a JVM of their own, on a machine that may be busy
VINS = [Owner(f"VIN-{n}") for n in range(20)]


@dataclass(slots=True)
class Platform:
    """Archive, lake, queues, and an Airflow that works on them."""

    settings: Settings
    redis: Server
    api: AirflowApi

    def archive(self, stream: Stream, seq: int, topic: str, payload: bytes) -> None:
        """A segment of one message, as the recorder leaves it when the express hand-off is off."""
        file = self.settings.home / "archive" / segment_path(stream, seq, 0)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(to_arrow([Envelope(seq, datetime_of(seq), stream, topic, payload)]), file)

    def archive_batch(self, at: datetime, request_id: str) -> int:
        """One payload and one trigger for every VIN, received at `at`; the trigger's seq."""
        first = first_seq_at(at)
        self.archive(Stream.DATA, first, topics.data_topic(f"{request_id}-data"), request_id.encode())
        trigger = {"ids": VINS, "request_id": request_id, "data_id": f"{request_id}-data"}
        self.archive(Stream.TRIGGER, first + 1, topics.TRIGGER, json.dumps(trigger).encode())
        return first + 1

    def values(self, table: Table, column: str) -> list[str]:
        scan = open_catalog(self.settings).load_table(table.identifier).scan(selected_fields=(column,))
        return sorted(map(str, scan.to_arrow()[column].to_pylist()))

    def pending(self, vin: Owner) -> list[int]:
        with Redis(port=self.redis.port) as redis:
            return [int(seq) for seq in redis.zrange(keys.pending(vin), 0, -1)]

    def run(self, dag_id: str, **conf: object) -> str:
        """Trigger, wait for success; the run's id. A failure shows the log of the task that failed."""
        run_id = self.api.trigger_dag(dag_id, conf)
        state = self.api.wait(dag_id, run_id, within_s=RUN_S)
        failed = [task for task, ended in self.api.task_states(dag_id, run_id).items() if ended == "failed"]
        assert state == "success", "\n".join(self.api.task_log(dag_id, run_id, task) for task in failed)
        return run_id


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    home = tmp_path_factory.mktemp("platform")
    with stopping(start_redis(home / "redis")) as redis:
        ports: dict[str, Any] = {"redis_port": redis.port, "airflow_port": free_port(), "recorder_port": free_port()}
        settings = Settings(home=home, ingest_schedule="", spark_driver_memory="1g", **ports)
        env = {"MANIFOLD_HOME": str(home), "MANIFOLD_INGEST_SCHEDULE": "", "MANIFOLD_SPARK_DRIVER_MEMORY": "1g"}
        env |= {f"MANIFOLD_{name.upper()}": str(port) for name, port in ports.items()}
        server = start_python(
            "sandbox.airflow",
            port=settings.airflow_port,
            log=home / "airflow.log",
            env=env,
            ready=lambda: airflow.is_healthy(settings),
        )
        with stopping(server), AirflowApi(airflow.url(settings)) as api:
            wait_until(
                lambda: api.knows("ingest_archives") and api.knows("rebuild_queues"), within_s=60, what="the DAGs to be read"
            )
            yield Platform(settings, redis, api)


@pytest.fixture
def platform(running: Platform) -> Platform:
    with Redis(port=running.redis.port) as redis:
        redis.flushall()
    return running


def test_a_run_takes_the_archive_into_the_lake_and_the_queues_and_says_so_in_numbers(platform: Platform) -> None:
    seq = platform.archive_batch(datetime.now(UTC) - timedelta(minutes=3), "task_map_1")

    run_id = platform.run("ingest_archives")

    assert platform.values(IDS, "request_id").count("task_map_1") == len(VINS)
    assert "task_map_1-data" in platform.values(DATA, "data_id")
    assert run_id in platform.values(SEGMENTS, "run_id")
    assert all(seq in platform.pending(vin) for vin in VINS)
    report = platform.settings.reports_folder / "runs" / run_id / "index.html"
    assert "Passed" in report.read_text()
    log = platform.api.task_log("ingest_archives", run_id, "ingest")
    assert f'"{IDS.name}": {len(VINS)}' in log


def test_a_run_over_a_past_interval_takes_that_and_nothing_else(platform: Platform) -> None:
    past = datetime(2026, 2, 1, 10, 30, tzinfo=UTC)
    platform.archive_batch(past, "task_map_2")
    platform.archive_batch(past + timedelta(days=1), "task_map_3")
    interval = {"from": "2026-02-01T10:00:00Z", "to": "2026-02-01T11:00:00Z"}

    platform.run("ingest_archives", **interval, flush=False)

    taken = platform.values(IDS, "request_id")
    assert taken.count("task_map_2") == len(VINS)
    assert "task_map_3" not in taken


def test_rebuild_takes_in_what_is_recorded_and_fills_empty_queues(platform: Platform) -> None:
    seq = platform.archive_batch(datetime.now(UTC) - timedelta(minutes=2), "task_map_4")

    platform.run("rebuild_queues")

    assert all(seq in platform.pending(vin) for vin in VINS)
    with Redis(port=platform.redis.port) as redis:
        assert redis.exists(keys.LOADED)


def test_nobody_can_make_a_run_with_a_param_of_the_wrong_type(platform: Platform) -> None:
    with pytest.raises(Permanent, match="refuses with 4"):
        platform.api.trigger_dag("ingest_archives", {"flush": "perhaps"})
