"""A small run of `ingest_archives`: from when it was due to when its tables are published, by Airflow's own record.

`python -m benchmarks.small_run [--runs 5]` starts the embedded platform with Airflow on free ports, in a folder of its own.
Each run finds one trigger for 200 vehicles, its payload of 64 KiB and 150 outcomes, and is triggered through Airflow's REST API.
CPU is that of Airflow and all that it starts, without what an idle Airflow takes. `--rebuild` measures `manifold rebuild` after
it: 50 entries of each run into a Redis that was wiped.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from benchmarks.airflow_runs import DAG, WITHIN_S, Load, measure, platform
from benchmarks.machine import Cost, Row, cost_of, report
from manifold.contracts.envelope import Envelope, Stream, segment_path, to_arrow
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import seq_of
from manifold.contracts.tables import IDS, OUTCOMES
from manifold.contracts.topics import TRIGGER, data_topic
from manifold.lake.catalog import open_catalog
from manifold.runtime.log import configure_logging
from manifold.runtime.redis import connect
from manifold.sandbox.platform.airflow_api import AirflowApi
from manifold.settings import Settings

TASKS = ("discover", "ingest", "audit", "publish", "populate")
RUNS, IDLE_S = 5, 30
VEHICLES, ENDED, PAYLOAD = 200, 150, 64 << 10
LOOK_S = 0.1
NODE = 900  # no recorder's
AIM_S, AIM_CPU_S, AIM_REBUILD_S = 15.0, 12.0, 10.0
SETTING = "{runs} runs, each over one trigger for 200 vehicles, its payload of 64 KiB and 150 outcomes"


@dataclass(frozen=True, slots=True)
class Run:
    """One run, in seconds since it was due."""

    begun: float  # taken up by the scheduler
    tasks: Mapping[str, tuple[float, float]]  # by task that ran: when its process began and when it ended
    published: float
    ended: float


def write_segments(archive: Path, now_ms: int) -> None:
    """A trigger for 200 vehicles, what it refers to, and how 150 entries ended."""
    vins = [f"WMANF0LD{number:09d}" for number in range(VEHICLES)]
    data_id, trigger_seq = f"payload-{now_ms}", seq_of(now_ms + 1, NODE, 0)
    said = json.dumps({"ids": vins, "request_id": f"task_{now_ms}", "data_id": data_id}).encode()
    _write(archive, [_envelope(Stream.DATA, now_ms, data_topic(data_id), os.urandom(PAYLOAD))])
    _write(archive, [_envelope(Stream.TRIGGER, now_ms + 1, TRIGGER, said)])
    ends = [OutcomeRecord(vin, trigger_seq, Outcome.DELIVERED, now_ms + 9, dispatched_ms=now_ms + 5, attempts=1) for vin in vins]
    _write(
        archive,
        [_envelope(Stream.OUTCOME, now_ms + 10 + at, f"outcomes/{e.vin}", e.to_wire()) for at, e in enumerate(ends[:ENDED])],
    )


def _envelope(stream: Stream, ms: int, topic: str, payload: bytes) -> Envelope:
    return Envelope(seq_of(ms, NODE, 0), datetime.fromtimestamp(ms / 1000, UTC), stream, topic, payload, applied=True)


def _write(archive: Path, envelopes: list[Envelope]) -> None:
    file = archive / segment_path(envelopes[0].stream, envelopes[0].seq, NODE)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(to_arrow(envelopes), file)


def _one(settings: Settings, api: AirflowApi) -> Run:
    write_segments(Path(settings.archive.removeprefix("file://")), time.time_ns() // 1_000_000 - 1000)
    before = _rows(settings)
    run_id = api.trigger_dag(DAG)
    published = _when_published(settings, before)
    state = api.wait(DAG, run_id, within_s=WITHIN_S)
    added = tuple(now - then for now, then in zip(_rows(settings), before, strict=True))
    if state != "success" or added != (VEHICLES, ENDED):
        raise RuntimeError(f"run {run_id} was to publish {VEHICLES} ids and {ENDED} outcomes: {state}, {added}")
    run = api.run(DAG, run_id)
    due = datetime.fromisoformat(run["run_after"])

    def since(moment: str) -> float:
        return (datetime.fromisoformat(moment) - due).total_seconds()

    found = {name: api.task(DAG, run_id, name) for name in TASKS}
    tasks = {
        name: (since(task["start_date"]), since(task["end_date"])) for name, task in found.items() if task["state"] == "success"
    }
    return Run(since(run["start_date"]), tasks, (published - due).total_seconds(), since(run["end_date"]))


def _when_published(settings: Settings, before: tuple[int, int]) -> datetime:
    """When a reader of the lake finds more ids and outcomes than there were."""
    look = Retrying(retry=retry_if_result(lambda new: not new), wait=wait_fixed(LOOK_S), stop=stop_after_delay(WITHIN_S))
    look(lambda: all(now > then for now, then in zip(_rows(settings), before, strict=True)))
    return datetime.now(UTC)


def _rows(settings: Settings) -> tuple[int, int]:
    catalog = open_catalog(settings)
    heads = [catalog.load_table(table.identifier).current_snapshot() for table in (IDS, OUTCOMES)]
    ids, ended = (int(head.summary["total-records"] or 0) if head and head.summary else 0 for head in heads)
    return ids, ended


def measure_rebuild(settings: Settings) -> tuple[int, Cost]:
    """How many entries `manifold rebuild` queued in a Redis that was wiped, and what it took."""
    with connect(settings.redis) as redis:
        redis.flushall()
    given = {f"MANIFOLD_{name.upper()}": str(value) for name, value in _chosen(settings).items()}
    said: list[str] = []

    def rebuild() -> None:
        command = [sys.executable, "-m", "manifold.console", "rebuild", "--json"]
        said.append(subprocess.run(command, env=os.environ | given, capture_output=True, text=True, check=True).stdout)

    cost = cost_of(rebuild)
    return int(json.loads(said[0])["populated"]["queued"]), cost


def _chosen(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.model_fields_set}


def run(runs: int = RUNS, *, with_rebuild: bool = False) -> list[Row]:
    """Measure on a platform of its own."""
    with platform() as settings:
        rows = _report(*measure(settings, partial(_one, settings), runs, idle_s=IDLE_S))
        if with_rebuild:
            queued, cost = measure_rebuild(settings)
            met = cost.wall_s <= AIM_REBUILD_S
            rows.append(Row(f"rebuild of {queued} entries", f"{cost.wall_s:.1f} s", aim=f"≤ {AIM_REBUILD_S:g} s", met=met))
            rows.append(Row("… its CPU", f"{cost.cpu_s:.1f} s"))
        return rows


def _report(runs: list[Run], load: Load) -> list[Row]:
    cpu_s = load.run_cpu_s
    whole = [each.published for each in runs]
    median = statistics.median(whole)
    rows = [
        Row("due → published, median", f"{median:.1f} s", aim=f"≤ {AIM_S:g} s", met=median <= AIM_S),
        Row("due → published, worst", f"{max(whole):.1f} s"),
        Row("due → success of the run, median", f"{statistics.median(each.ended for each in runs):.1f} s"),
        Row("CPU of one run, all of Airflow and its tasks", f"{cpu_s:.1f} s", aim=f"≤ {AIM_CPU_S:g} s", met=cpu_s <= AIM_CPU_S),
        Row("CPU of Airflow when nothing runs", f"{load.idle_rate * 100:.0f} % of a core"),
        Row("… until the scheduler takes the run up", f"{statistics.median(each.begun for each in runs):.1f} s"),
    ]
    before = "begun"
    for name in (name for name in TASKS if name in runs[0].tasks):
        waited = statistics.median(
            each.tasks[name][0] - (each.tasks[before][1] if before in TASKS else each.begun) for each in runs
        )
        took = statistics.median(each.tasks[name][1] - each.tasks[name][0] for each in runs)
        rows.append(Row(f"… until `{name}` begins; `{name}` itself", f"{waited:.1f} s; {took:.1f} s"))
        before = name
    return rows


if __name__ == "__main__":
    configure_logging("benchmark", level="warning")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--rebuild", action="store_true", help="measure a rebuild afterwards")
    options = parser.parse_args()
    report("small_run", SETTING.format(runs=options.runs), run(options.runs, with_rebuild=options.rebuild))
