"""Processes that are paused, lose a reply or have their run closed by another one: nothing is doubled, lost or left behind."""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table import CommitTableResponse
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.update import SetSnapshotRefUpdate

from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Retryable
from manifold.contracts.tables import ACTIONS, IDS, INSTANT, QUALITY, RUN_TABLES, SEGMENTS
from manifold.lake.catalog import open_catalog
from manifold.lake.commits import MAIN, append_nothing, append_rows
from pipelines.erasure.files import expire_snapshots
from pipelines.erasure.names import ErasedVehicle
from pipelines.erasure.search import erase_texts
from pipelines.ingest import backlog
from pipelines.ingest.audit import append_audit_result
from pipelines.ingest.branches import BEGAN, RUN_ID, Overtaken, branch_of, drop_branches, head_of, properties_of
from pipelines.ingest.maintenance_run import MaintenanceRun
from pipelines.ingest.publish import committed_runs, finish_committed_runs, main_snapshots, publish
from pipelines.ingest.run import Ingested, Run
from pipelines.ingest.write import begin
from pipelines.maintenance.rollback import rollback
from pipelines.maintenance.snapshots import READ_GRACE, expire_by_count
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import at, seq_at, trigger
from tests.pipelines.plain import compact, ingest, read, without_spark, write
from tests.pipelines.stepping import Player

VIN = "WVWZZZ1JZXW000001"
COMMIT, LOOK = f"commit {SEGMENTS.identifier}", f"read {SEGMENTS.identifier}"


@pytest.fixture
def one_run(lake: Lake) -> Lake:
    """A lake with one run, which brought the vehicle V1."""
    lake.renew()
    bring(lake, 1)
    return lake


def bring(lake: Lake, n: int) -> None:
    lake.archive(Stream.TRIGGER, [trigger(n, [f"V{n}"])])
    ingest(open_catalog(lake.settings), lake.settings, run_id=f"run_{n}", now=at(n))


def vehicles(lake: Lake) -> list[str]:
    return sorted(row["vin"] for row in read(open_catalog(lake.settings), IDS))


def branches(lake: Lake) -> list[tuple[str, str]]:
    catalog = open_catalog(lake.settings)
    return [(t.name, ref) for t in RUN_TABLES for ref in catalog.load_table(t.identifier).refs() if ref != MAIN]


def about_to_count(lake: Lake, run_id: str, n: int) -> Player:
    """An ingest of the vehicle Vn, written and not published."""
    lake.archive(Stream.TRIGGER, [trigger(n, [f"V{n}"])])
    player = lake.ingesting(run_id, ms=n)
    while player.steps.count(COMMIT) < 2:
        player.go(1)
    return player


def test_a_finisher_that_was_paused_until_history_expired_repeats_nothing(one_run: Lake) -> None:
    """An open run keeps the snapshot that the finisher looks for, but main's history does not reach it any more."""
    paused = one_run.player(finish_committed_runs).go(until=f"read {IDS.identifier}")
    about_to_count(one_run, "open", 50)
    for n in range(2, 7):
        bring(one_run, n)
    few = one_run.settings.model_copy(update={"snapshot_max": 2})
    assert expire_by_count(open_catalog(few), few, now=datetime.now(UTC) + 2 * READ_GRACE)[IDS.name]
    paused.go()
    assert vehicles(one_run) == ["V1", "V2", "V3", "V4", "V5", "V50", "V6"]


def test_a_change_is_repeated_again_where_its_branch_was_dropped(one_run: Lake) -> None:
    """Main was compacted two days ago, so a branch that begins there looks abandoned. PyIceberg would make it anew, empty."""
    about_to_count(one_run, "late", 2).kill()
    assert compact(open_catalog(one_run.settings), IDS)
    after = datetime.now(UTC) + timedelta(days=2)
    commit = f"commit {IDS.identifier}"
    other = one_run.player(lambda catalog: ingest(catalog, one_run.settings, run_id="other", now=after), fine=True)
    other.go(until=commit)  # it has finished what it found, and drops what is abandoned
    late = one_run.player(lambda catalog: publish(catalog, "late"), fine=True)
    late.go(until=commit).go(1).go(until=commit)  # it has made the branch, and is about to append
    other.go(1).go(until=commit).go(1)
    late.go()
    assert vehicles(one_run) == ["V1", "V2"]
    other.go()
    assert vehicles(one_run) == ["V1", "V2"]
    assert branches(one_run) == []


def test_a_run_whose_reply_is_lost_counts_also_under_another_run(one_run: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    bring(one_run, 2)
    catalog, lost = open_catalog(one_run.settings), list[tuple[str, ...]]()
    commit = catalog.commit_table

    def losing_the_first_reply(table: IcebergTable, requirements: Any, updates: Any) -> CommitTableResponse:
        reply = commit(table, requirements, updates)
        if not lost and any(isinstance(update, SetSnapshotRefUpdate) and update.ref_name == MAIN for update in updates):
            lost.append(table.name())
            bring(one_run, 3)
            raise CommitStateUnknownException("no reply")
        return reply

    monkeypatch.setattr(catalog, "commit_table", losing_the_first_reply)
    assert rollback(catalog, one_run.settings, run_id="run_2", now=at(4)).undone == ["run_2"]
    assert lost == [("sdv", SEGMENTS.name)]
    counted = [properties_of(run)[RUN_ID] for run in committed_runs(catalog.load_table(SEGMENTS.identifier))]
    assert [run_id.split("_2026")[0] for run_id in counted] == ["run_3", "rollback", "run_1"]


def test_a_job_whose_run_is_closed_before_it_counts_does_not_take_it_for_published(one_run: Lake) -> None:
    runs: list[MaintenanceRun] = []

    def work(catalog: Catalog) -> None:
        base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
        runs.append(MaintenanceRun(catalog, "work", base, at(5)))
        runs[0].publish(partial(append_nothing, catalog, SEGMENTS))

    job = one_run.player(work, fine=True)
    while job.steps.count(COMMIT) < 2 or job.steps[-1] != LOOK:  # it has opened its run and written it
        job.go(1)
    job.go(1)  # it has seen what it has written, and is about to publish
    drop_branches(open_catalog(one_run.settings), branch_of(runs[0].run_id))
    with pytest.raises(Overtaken, match="another job has closed run work_"):
        job.go()


def test_a_job_whose_run_is_closed_while_it_writes_leaves_no_branch(one_run: Lake) -> None:
    runs: list[MaintenanceRun] = []

    def work(catalog: Catalog) -> None:
        base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
        runs.append(MaintenanceRun(catalog, "work", base, at(5)))
        runs[0].change(IDS, partial(append_nothing, catalog, IDS))

    job = one_run.player(work, fine=True).go(until=f"commit {IDS.identifier}")
    drop_branches(open_catalog(one_run.settings), branch_of(runs[0].run_id))
    job.go(1)  # the branch
    drop_branches(open_catalog(one_run.settings), branch_of(runs[0].run_id))
    with pytest.raises(Overtaken, match="another job has closed run work_"):
        job.go()
    assert branches(one_run) == []


def test_a_job_whose_run_is_closed_before_it_writes_is_told_to_repeat_it(one_run: Lake) -> None:
    catalog = open_catalog(one_run.settings)
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    run = MaintenanceRun(catalog, "work", base, at(5))
    drop_branches(catalog, branch_of(run.run_id))
    with pytest.raises(Overtaken, match="another job has closed run work_"):
        run.change(IDS, partial(append_nothing, catalog, IDS))
    assert branches(one_run) == []


def test_an_ingest_whose_run_is_closed_before_it_counts_does_it_again(one_run: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, closed = open_catalog(one_run.settings), list[str]()
    one_run.archive(Stream.TRIGGER, [trigger(2, ["V2"])])

    def closed_the_first_time(run: Run) -> tuple[Ingested, None]:
        todo = begin(run)
        assert todo is not None
        write(run, todo)
        head = head_of(catalog, SEGMENTS, run.run_id)
        assert head is not None
        append_audit_result(catalog, head, QUALITY.arrow_schema.empty_table())  # it breaks no rule
        if not closed:
            closed.append(run.run_id)
            drop_branches(catalog, branch_of(run.run_id))  # as an erasure does that has waited for it in vain
        return Ingested(run.run_id, len(todo.segments)), None

    monkeypatch.setattr(backlog, "ingest_and_audit", closed_the_first_time)
    backlog.ingest_audit_publish(without_spark(catalog, one_run.settings, "run", at(9)))
    assert closed == ["run"]
    assert vehicles(one_run) == ["V1", "V2"]


def test_a_run_that_was_closed_removes_what_it_still_wrote(one_run: Lake) -> None:
    one_run.archive(Stream.TRIGGER, [trigger(2, ["V2"])])
    catalog = open_catalog(one_run.settings)
    before = sorted(path for path in (one_run.settings.home / "lake").rglob("*.parquet"))
    slow = one_run.ingesting("slow", fine=True, ms=2).go(until=f"commit {IDS.identifier}")
    drop_branches(catalog, branch_of("slow"))
    with pytest.raises(Retryable, match="run slow"):
        slow.go()
    assert branches(one_run) == []
    assert sorted(path for path in (one_run.settings.home / "lake").rglob("*.parquet")) == before
    ingest(catalog, one_run.settings, run_id="next", now=datetime.now(UTC))
    assert vehicles(one_run) == ["V1", "V2"]


def test_a_branch_that_a_killed_process_recreated_is_dropped_after_a_day(one_run: Lake) -> None:
    one_run.archive(Stream.TRIGGER, [trigger(2, ["V2"])])
    catalog = open_catalog(one_run.settings)
    slow = one_run.ingesting("slow", fine=True, ms=2).go(until=f"commit {IDS.identifier}")
    drop_branches(catalog, branch_of("slow"))
    slow.go(2).kill()  # the branch, and its rows
    assert branches(one_run) == [(IDS.name, "run_slow")]
    assert not any(name.startswith(BEGAN) for name in catalog.load_table(SEGMENTS.identifier).properties)
    ingest(catalog, one_run.settings, run_id="soon", now=datetime.now(UTC) + timedelta(hours=23))
    assert branches(one_run)
    ingest(catalog, one_run.settings, run_id="late", now=datetime.now(UTC) + timedelta(hours=25))
    assert branches(one_run) == []
    assert vehicles(one_run) == ["V1", "V2"]


def test_an_erasure_drops_branches_that_no_open_run_owns(one_run: Lake) -> None:
    one_run.archive(Stream.TRIGGER, [trigger(2, ["V2"])])
    catalog = open_catalog(one_run.settings)
    slow = one_run.ingesting("slow", fine=True, ms=2).go(until=f"commit {IDS.identifier}")
    drop_branches(catalog, branch_of("slow"))
    slow.go(2).kill()  # the branch, and its rows
    assert branches(one_run) == [(IDS.name, "run_slow")]
    about_to_count(one_run, "open", 3)
    published = catalog.load_table(SEGMENTS.identifier).metadata.current_snapshot_id
    assert published is not None
    expire_snapshots(catalog, published, datetime.now(UTC))
    assert {name for _, name in branches(one_run)} == {"run_open"}


def test_of_two_processes_at_one_run_the_second_to_write_is_told_so(one_run: Lake) -> None:
    one_run.archive(Stream.TRIGGER, [trigger(2, ["V2"])])
    first, second = (one_run.ingesting("run", fine=True, ms=2) for _ in range(2))
    first.go(until=f"commit {IDS.identifier}")
    second.go(until=f"commit {IDS.identifier}")  # it has closed what the first one had opened
    first.go(1)
    with pytest.raises(Retryable, match="another process is working on run run; wait for it"):
        second.go()
    first.go()
    assert vehicles(one_run) == ["V1", "V2"]
    assert branches(one_run) == []


def test_of_two_processes_that_begin_one_run_at_once_only_one_continues(one_run: Lake) -> None:
    one_run.archive(Stream.TRIGGER, [trigger(2, ["V2"])])
    first, second = (one_run.ingesting("run", fine=True, ms=2).go(until=COMMIT) for _ in range(2))
    first.go(1)
    with pytest.raises(Retryable, match="another process is working on run run; wait for it"):
        second.go()
    first.go()
    assert vehicles(one_run) == ["V1", "V2"]


def test_a_text_is_emptied_although_rows_are_appended_meanwhile(one_run: Lake) -> None:
    """Each run appends its audit result to a table in which an erasure empties texts."""
    catalog = open_catalog(one_run.settings)
    append_rows(catalog, ACTIONS, note_about(VIN), {})
    vehicle = ErasedVehicle(VIN, seq_at(9), lambda _, sealed: sealed)
    erasing = one_run.player(lambda catalog: erase_texts(catalog, ACTIONS, "note", vehicle), fine=True)
    erasing.go(until=f"commit {ACTIONS.identifier}")
    append_rows(catalog, ACTIONS, note_about("another"), {})
    erasing.go()
    assert sorted(str(row["note"]) for row in read(catalog, ACTIONS)) == ["None", "about another"]


def note_about(name: str) -> pa.Table:
    values = {pa.string(): "some", pa.int64(): 1, INSTANT: at(1)}
    row = {column.name: values.get(column.type) for column in ACTIONS.columns} | {"note": f"about {name}"}
    return pa.Table.from_pylist([row], schema=ACTIONS.arrow_schema)
