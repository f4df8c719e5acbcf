"""An Airflow that executes the DAGs on its own archive, lake and Redis."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from redis import Redis

from manifold.archive.recorded import RecordedSegments
from manifold.archive.store import Archive
from manifold.contracts import keys, topics
from manifold.contracts.ecq import EcqAck
from manifold.contracts.envelope import Envelope, Stream, segment_path, to_arrow
from manifold.contracts.names import Owner
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import datetime_of, first_seq_at
from manifold.contracts.tables import Table
from manifold.lake.catalog import open_catalog
from manifold.lake.day_keys import DayKeys
from manifold.lake.key_ring import new_key_line
from manifold.runtime import secret_files
from manifold.sandbox.platform import airflow
from manifold.sandbox.platform.airflow_api import AirflowApi
from manifold.sandbox.platform.airflow_users import logged_in
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings
from tests.pipelines.signal_makers import Sealing
from tests.support.servers import Server, free_port, start_airflow, start_redis, stopping, wait_until
from tests.support.wire import trigger

RUN_S = 400  # with a JVM, on a busy machine
ASK_S = 0.5  # between two questions to Airflow, each of which takes the time of a task that is awaited
DAGS = ("ingest_archives", "backfill_archives", "rebuild_queues", "process_signals", "rotate_keys")
SCHEDULED = ("ingest", "compact", "garbage", "verify", "check", "signals_rotate", "campaign_approvals", "campaign_reports")
VINS = [Owner(f"VIN-{n}") for n in range(20)]


@dataclass(slots=True)
class Platform:
    """Archive, lake, queues, and an Airflow that works on them."""

    settings: Settings
    redis: Server
    api: AirflowApi

    def archive(self, stream: Stream, seq: int, topic: str, payload: bytes) -> None:
        """Write a segment of one message, as a recorder without direct enqueue would."""
        file = self.settings.home / "archive" / segment_path(stream, seq, 0)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(to_arrow([Envelope(seq, datetime_of(seq), stream, topic, payload)]), file)

    def archive_batch(self, at: datetime, request_id: str) -> int:
        """Archive one payload and one trigger for every VIN, received at `at`; return the trigger's seq."""
        first = first_seq_at(at)
        self.archive(Stream.DATA, first, topics.data_topic(f"{request_id}-data"), request_id.encode())
        self.archive(Stream.TRIGGER, first + 1, topics.TRIGGER, trigger(VINS, request_id, f"{request_id}-data"))
        return first + 1

    def archive_messages(self, at: datetime, client_id: str) -> tuple[int, int]:
        """Archive two compacted messages with different keys and an ack of the first; return their seqs."""
        first = first_seq_at(at)
        for place, key in enumerate(("a", "b")):
            self.archive(Stream.ECQ, first + place, topics.ecq_write_topic(client_id, key), key.encode())
        record = EcqAck(client_id, first, round(at.timestamp() * 1000) + 1)
        self.archive(Stream.ECQ, first + 2, f"{keys.OUTCOMES}/{ecq_queue(client_id)}", record.to_wire())
        return first, first + 1

    def gateway(self) -> Sealing:
        """A sealer with the key ring of the settings or of the home folder."""
        return Sealing(DayKeys.of(self.settings))

    def archive_signals(self, *messages: Envelope) -> None:
        """Archive these signals as the signals service would."""
        RecordedSegments(Archive(self.settings.archive)).seal(messages, node=0)

    def values(self, table: Table, column: str) -> list[str]:
        return sorted(str(row[column]) for row in self.rows(table, column))

    def rows(self, table: Table, *columns: str) -> list[dict[str, Any]]:
        scan = open_catalog(self.settings).load_table(table.identifier).scan(selected_fields=columns or ("*",))
        found: list[dict[str, Any]] = scan.to_arrow().to_pylist()
        return found

    def pending(self, vin: Owner) -> list[int]:
        with Redis(port=self.redis.port) as redis:
            return [int(seq) for seq in redis.zrange(keys.pending(vin), 0, -1)]

    def backfill(self, dag_id: str, first: str, last: str) -> "subprocess.CompletedProcess[str]":
        """Run Airflow's backfill command for these days and return its output. Airflow allows one backfill per DAG at a time."""
        over = "Airflow to close the previous backfill"
        wait_until(lambda: not self._backfills(dag_id), within_s=RUN_S, what=over, longest_pause_s=ASK_S)
        command = ["backfill", "create", "--dag-id", dag_id, "--from-date", first, "--to-date", last]
        command += ["--max-active-runs", "1"]
        command = [sys.executable, "-m", "manifold.console", "airflow", *command]
        return subprocess.run(command, env=environment(self.settings), capture_output=True, text=True, check=False)

    def _backfills(self, dag_id: str) -> list[dict[str, Any]]:
        """The open backfills."""
        made = self.api._request("GET", f"/backfills?dag_id={dag_id}")["backfills"]
        return [each for each in made if not each["completed_at"]]

    def runs(self, dag_id: str, run_type: str) -> list[dict[str, Any]]:
        """The runs of a DAG with this run type."""
        found: list[dict[str, Any]] = self.api._request("GET", f"/dags/{dag_id}/dagRuns?run_type={run_type}&limit=100")[
            "dag_runs"
        ]
        return found

    def run_ids(self, dag_id: str, run_type: str) -> set[str]:
        """The ids of `runs`."""
        return {run["dag_run_id"] for run in self.runs(dag_id, run_type)}

    def ended(self, dag_id: str, run_type: str, known: set[str], count: int, *, within_s: float) -> list[dict[str, Any]]:
        """The runs not in `known`, by their day, once `count` of them have ended."""

        def new() -> list[dict[str, Any]]:
            made = [run for run in self.runs(dag_id, run_type) if run["dag_run_id"] not in known]
            return made if len(made) == count and all(run["state"] in ("success", "failed") for run in made) else []

        made = wait_until(new, within_s=within_s, what=f"{count} {run_type} runs", longest_pause_s=ASK_S)
        return sorted(made, key=lambda run: run["data_interval_start"] or "")

    def run(self, dag_id: str, **conf: object) -> str:
        """Trigger a run and wait for success; return its id. A failure prints the log of the failed task."""
        run_id = self.api.trigger_dag(dag_id, conf)
        state = self.api.wait(dag_id, run_id, within_s=RUN_S)
        failed = [task for task, ended in self.api.task_states(dag_id, run_id).items() if ended == "failed"]
        assert state == "success", "\n".join(self.api.task_log(dag_id, run_id, task) for task in failed)
        return run_id


@dataclass(frozen=True, slots=True)
class Ingested:
    """A batch that a run has ingested."""

    request_id: str
    seq: int  # of its trigger
    run_id: str


@contextmanager
def running_platform(home: Path, spark: str) -> Iterator[Platform]:
    """Start the platform, wait until its DAGs are parsed, and stop it afterwards. `spark` is the address of a Connect server."""
    with stopping(start_redis(home / "redis")) as redis:
        with Redis(port=redis.port) as client:
            client.set(keys.LOADED, 1)  # queues of a fresh platform lack nothing
        more: dict[str, Any] = {"redis_port": redis.port, "airflow_port": free_port(), "recorder_port": free_port()}
        # Only triggered DAGs run.
        more["lineage_url"] = f"file://{home / 'lineage.jsonl'}"
        more |= dict.fromkeys([f"{what}_schedule" for what in SCHEDULED], "")
        settings = Settings(home=home, spark_master=spark, **more)
        secret_files.get_or_create(home, secret_files.KEYS, new_key_line)
        with stopping(start_airflow(settings)), logged_in(settings, airflow.url(settings)) as api:
            wait_until(lambda: all(map(api.knows, DAGS)), within_s=180, what="the DAGs to be parsed", longest_pause_s=ASK_S)
            yield Platform(settings, redis, api)
