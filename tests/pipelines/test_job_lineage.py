"""Lineage of jobs other than the ingest: start, inputs, outputs, and end."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.tables import ERASURES, IDS, SEGMENTS, XRAY_RAW
from manifold.lake.catalog import ensure_tables, make_signal_tables, open_catalog
from manifold.lake.commits import append_rows
from manifold.lake.key_ring import new_key_line
from manifold.runtime import secret_files
from manifold.settings import Settings
from pipelines.cli import DONE, main
from pipelines.erasure.run import erase_vehicle
from pipelines.ingest.run_all import rebuild
from pipelines.lineage import emits_lineage, jobs
from pipelines.maintenance.repair import repair
from pipelines.maintenance.rollback import rollback_run
from pipelines.populate.load import Populated
from pipelines.signals.process import process_again
from pipelines.stages.ingest import populate_queues
from pipelines.stages.maintenance import migrate_lake, rotate_day_keys
from tests.pipelines.conftest import SparkLake
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import at, data, seq_at, trigger
from tests.pipelines.plain import ingest
from tests.support.lineage import names, runs_of, telling, told_in
from tests.support.platforms import variables
from tests.support.servers import ROOT, Server, free_port

VIN = "1M8GDM9AXKP042788"
PARENT = "airflow/compact_tables.compact/01940f6c-8000-7a0d-8000-000000000001"
ROW: dict[str, Any] = {"vin": VIN, "ts": at(1), "request_id": "r", "seq": seq_at(1), "data_id": "d", "applied": False}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@pytest.fixture
def settings(lake: Lake, redis_server: Server, redis: Redis, file: Path) -> Settings:
    """Settings of a new lake with a batch in the archive, and of an empty, loaded Redis."""
    lake.renew()
    lake.archive(Stream.TRIGGER, [trigger(1, [VIN])])
    lake.archive(Stream.DATA, [data(2, "d1", b"one")])
    redis.set(keys.LOADED, 1)
    return telling(lake.settings, f"file://{file}", redis_port=redis_server.port)


def appended(settings: Settings, count: int = 1) -> None:
    """Append a snapshot to main of ids."""
    append_rows(open_catalog(settings), IDS, pa.Table.from_pylist([ROW] * count, schema=IDS.arrow_schema), {})


def one(file: Path, job: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The start and end events of a job's only run."""
    ((began, ended),) = runs_of(told_in(file), job)
    assert began["eventType"] == "START"
    assert began["run"]["runId"] == ended["run"]["runId"]
    return began, ended


def test_a_job_names_its_changed_tables_before_and_after(settings: Settings, file: Path) -> None:
    before = open_catalog(settings).load_table(IDS.identifier).current_snapshot()

    @emits_lineage("work", reads=["archive"], writes=["queues"])
    def work(settings: Settings) -> str:
        appended(settings, 2)
        appended(settings, 3)
        return "done"

    assert work(settings) == "done"
    began, ended = one(file, "work")
    assert ended["eventType"] == "COMPLETE"
    assert (names(began["inputs"]), began["outputs"]) == (["archive"], [])
    _, table = ended["inputs"]
    assert before is not None
    assert table["facets"]["version"]["datasetVersion"] == str(before.snapshot_id)
    table, queues = ended["outputs"]
    loaded = open_catalog(settings).load_table(IDS.identifier)
    now = loaded.current_snapshot()
    assert now is not None
    assert (table["namespace"], table["name"]) == ("file", loaded.location().removeprefix("file://"))
    assert table["facets"]["version"]["datasetVersion"] == str(now.snapshot_id)
    assert table["facets"]["symlinks"]["identifiers"][0]["name"] == "sdv.sdv_fanout_ids"
    statistics = table["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["fileCount"]) == (5, 2)
    assert queues == {"namespace": f"redis://127.0.0.1:{settings.redis_port}", "name": "queues", "facets": {}}


def test_commits_by_others_are_not_attributed_to_the_job(settings: Settings, file: Path) -> None:
    script = """
import sys
import pyarrow as pa
from manifold.lake.commits import append_rows
from manifold.lake.catalog import open_catalog
from manifold.settings import Settings
from manifold.contracts.tables import IDS, SEGMENTS
for table in (IDS, SEGMENTS):
    append_rows(open_catalog(Settings(home=sys.argv[1])), table, table.arrow_schema.empty_table(), {})
"""

    @emits_lineage("work")
    def work(settings: Settings) -> None:
        appended(settings)
        subprocess.run([sys.executable, "-c", script, str(settings.home)], cwd=ROOT, check=True, timeout=60)

    work(settings)
    loaded = open_catalog(settings).load_table(IDS.identifier)
    ours = loaded.snapshots()[-2]
    (table,) = one(file, "work")[1]["outputs"]
    assert table["facets"]["version"]["datasetVersion"] == str(ours.snapshot_id)
    assert SEGMENTS.name not in table["name"]


@pytest.mark.parametrize(
    ("error", "ended", "why"),
    [
        pytest.param(ValueError(f"{VIN}: odd"), "FAIL", "ValueError; the job's log has the rest", id="an error"),
        pytest.param(Retryable(f"{VIN}: away"), "FAIL", "Retryable; the job's log has the rest", id="a retryable error"),
        pytest.param(KeyboardInterrupt(), "ABORT", None, id="an interruption"),
    ],
)
def test_a_failed_job_reports_why_and_how_far_it_came_and_names_no_vehicle(
    settings: Settings, file: Path, error: BaseException, ended: str, why: str | None
) -> None:
    @emits_lineage("work", writes=["queues"])
    def work(settings: Settings, vin: str) -> None:
        appended(settings)
        raise error

    with pytest.raises(type(error)):
        work(settings, VIN)
    _, end = one(file, "work")
    assert (end["eventType"], names(end["outputs"])) == (ended, [IDS.name])
    assert end["run"]["facets"].get("errorMessage", {}).get("message") == why
    assert VIN not in file.read_text()


def test_a_result_with_a_problem_is_a_failure(settings: Settings, file: Path) -> None:
    @emits_lineage("work", writes=["queues"])
    def work(settings: Settings) -> Populated:
        return Populated(rebuild_needed=True)

    work(settings)
    _, ended = one(file, "work")
    assert (ended["eventType"], ended["outputs"]) == ("FAIL", [])


def test_an_error_while_emitting_does_not_affect_the_job(settings: Settings, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @emits_lineage("work", writes=["queues"])
    def work(settings: Settings) -> str:
        appended(settings)
        return "done"

    def away(_: Settings) -> None:
        raise RuntimeError("the catalog is away")

    monkeypatch.setattr(jobs, "open_catalog", away)
    assert work(settings) == "done"
    _, ended = one(file, "work")
    assert (ended["eventType"], names(ended["outputs"])) == ("COMPLETE", ["queues"])


def test_a_nested_job_names_its_parent_and_the_root_job(settings: Settings, file: Path) -> None:
    @emits_lineage("outer")
    def outer(settings: Settings) -> None:
        inner(settings)

    @emits_lineage("inner")
    def inner(settings: Settings) -> None:
        pass

    outer(settings.model_copy(update={"lineage_parent": PARENT}))
    _, ended = one(file, "outer")
    parent = ended["run"]["facets"]["parent"]
    assert "/".join([parent["job"]["namespace"], parent["job"]["name"], parent["run"]["runId"]]) == PARENT
    under = one(file, "inner")[1]["run"]["facets"]["parent"]
    assert (under["job"]["name"], under["run"]["runId"]) == ("manifold.outer", ended["run"]["runId"])


@pytest.mark.parametrize("argument", [pytest.param("plan", id="a plan"), pytest.param("dry_run", id="a dry run")])
def test_a_job_without_changes_emits_nothing(settings: Settings, file: Path, argument: str) -> None:
    @emits_lineage("work", unless=argument)
    def work(settings: Settings, **_: bool) -> None:
        pass

    work(settings, **{argument: True})
    assert told_in(file) == []
    work(settings, **{argument: False})
    assert len(told_in(file)) == 2


def test_without_a_lineage_setting_nothing_is_emitted(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "JobRun", None)
    migrate_lake(telling(settings, ""))


@pytest.mark.usefixtures("shared_session")
def test_a_rebuild_emits_the_runs_and_the_populate_it_consists_of(settings: Settings, file: Path) -> None:
    rebuild(settings, flush_first=False)
    events = told_in(file)
    order = [(event["job"]["name"].removeprefix("manifold."), event["eventType"]) for event in events]
    inside = [(job, kind) for job in ("ingest", "audit", "populate") for kind in ("START", "COMPLETE")]
    assert order == [("rebuild", "START"), *inside, ("rebuild", "COMPLETE")]
    ((_, whole),) = runs_of(events, "rebuild")
    assert {event["run"]["facets"]["parent"]["run"]["runId"] for event in events[1:-1]} == {whole["run"]["runId"]}
    assert "queues" in names(whole["outputs"])
    assert IDS.name in names(whole["outputs"])
    _, populated = one(file, "populate")
    assert {IDS.name, "sdv_fanout_outcomes", "sdv_fanout_data"} <= set(names(populated["inputs"]))
    assert names(populated["outputs"]) == ["queues"]


JOBS: dict[str, tuple[Callable[[Settings], object], str, list[str], list[str]]] = {
    "populate": (
        populate_queues,
        "COMPLETE",
        ["sdv_fanout_ids"],
        ["queues"],
    ),
    "rollback": (lambda settings: rollback_run(settings, "first"), "COMPLETE", ["sdv_fanout_ids"], ["sdv_fanout_ids"]),
    "migrate": (lambda settings: migrate_lake(settings), "COMPLETE", [], []),
    # no recorder to flush: it fails after reporting its start
    "erase": (
        lambda settings: erase_vehicle(settings, VIN, why="asked for", wait_s=0, say=lambda _: None),
        "FAIL",
        ["archive", "queues"],
        [ERASURES.name],
    ),
    "repair": (
        lambda settings: repair(None, open_catalog(settings), settings, now=at(10)),  # type: ignore[arg-type]  # no Spark
        "COMPLETE",
        ["archive"],
        [],
    ),
    "rotate_keys": (rotate_day_keys, "COMPLETE", ["keys"], ["keys"]),
    "process_signals": (
        lambda settings: process_again(open_catalog(settings), settings, now=at(10)),
        "COMPLETE",
        [XRAY_RAW.name],
        [],
    ),
}


@pytest.mark.usefixtures("shared_session")
@pytest.mark.parametrize("job", JOBS)
def test_each_job_names_its_inputs_and_outputs(settings: Settings, file: Path, job: str) -> None:
    work, how, inputs, outputs = JOBS[job]
    secret_files.get_or_create(settings.home, secret_files.KEYS, new_key_line)
    if job == "process_signals":
        make_signal_tables(open_catalog(settings))
    ingest(open_catalog(settings), settings, run_id="first", now=at(5))
    with suppress(Retryable, Permanent):
        work(settings)
    _, ended = one(file, job)
    assert ended["eventType"] == how
    assert set(inputs) <= set(names(ended["inputs"]))
    assert set(outputs) <= set(names(ended["outputs"]))
    assert VIN not in file.read_text()


@pytest.mark.usefixtures("shared_session")
def test_compaction_and_garbage_collection_are_emitted_by_any_caller(
    spark_lake: SparkLake, redis_server: Server, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = spark_lake.settings.home
    file = home / "events.jsonl"
    redis.set(keys.LOADED, 1)
    ensure_tables(spark_lake.catalog)
    for _ in range(4):
        appended(spark_lake.settings)
    own = {"home": home, "lineage_url": f"file://{file}", "compact_min_files": 4, "redis_port": redis_server.port}
    for name, value in variables(**own, recorder_port=free_port()).items():
        monkeypatch.setenv(name, value)

    assert main(["compact", "--lineage-parent", PARENT]) == DONE
    _, ended = one(file, "compact")
    assert ended["run"]["facets"]["parent"]["job"]["name"] == "compact_tables.compact"
    loaded = open_catalog(spark_lake.settings).load_table(IDS.identifier)
    now = loaded.current_snapshot()
    assert now is not None
    (written,) = (each for each in ended["outputs"] if each["name"].endswith(IDS.name))
    (read,) = (each for each in ended["inputs"] if each["name"].endswith(IDS.name))
    assert written["facets"]["version"]["datasetVersion"] == str(now.snapshot_id)
    assert read["facets"]["version"]["datasetVersion"] != str(now.snapshot_id)
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 4

    assert main(["garbage"]) == DONE
    _, ended = one(file, "garbage")
    assert ended["eventType"] == "COMPLETE"
    events = told_in(file)
    inside = [event for event in events if event["job"]["name"] == "manifold.populate"]
    assert {event["run"]["facets"]["parent"]["run"]["runId"] for event in inside} == {ended["run"]["runId"]}
