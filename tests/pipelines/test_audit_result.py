"""A run without an audit is not published, and an audit result applies to its attempt only."""

import argparse
import json
from dataclasses import replace

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table.snapshots import Snapshot

from expectations import Audit, Finding, Severity, results_of
from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import IDS, QUALITY, SEGMENTS
from manifold.lake.catalog import open_catalog
from pipelines.ingest import backlog
from pipelines.ingest.audit import append_audit_result, may_be_published, passed_already
from pipelines.ingest.backlog import ingest_audit_publish, ingest_in_runs
from pipelines.ingest.branches import head_of
from pipelines.ingest.planning import Plan
from pipelines.ingest.publish import publish
from pipelines.ingest.run import Ingested, Run
from pipelines.ingest.write import begin
from pipelines.stages import ingest as stages
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import at, trigger
from tests.pipelines.plain import ingest, ingest_and_audit, read, without_spark, write

RUN = "scheduled__2026-03-01T12:00:00+00:00"


def a_run(lake: Lake, run_id: str, ms: int) -> Run:
    return without_spark(open_catalog(lake.settings), lake.settings, run_id, at(ms))


def begun(lake: Lake, run_id: str, ms: int, paths: list[str] | None = None) -> Plan:
    """A run begun at that instant; it takes the segments at `paths`, or everything new."""
    todo = begin(a_run(lake, run_id, ms))
    assert todo is not None
    return todo if paths is None else replace(todo, segments=[s for s in todo.segments if s.path in paths])


def written(lake: Lake, run_id: str, ms: int, paths: list[str] | None = None) -> None:
    """A run with rows on its branches and no audit."""
    todo = begun(lake, run_id, ms, paths)
    write(a_run(lake, run_id, ms), todo)


def head(catalog: Catalog, run_id: str) -> Snapshot:
    """The last snapshot of the run."""
    written = head_of(catalog, SEGMENTS, run_id)
    assert written is not None
    return written


def publishing(lake: Lake) -> str:
    return stages.publish.run(lake.settings, argparse.Namespace(run_id=RUN))


def test_a_restarted_and_interrupted_run_is_not_published(lake: Lake) -> None:
    lake.renew()
    lake.archive(Stream.TRIGGER, [trigger(1, ["V1"])])
    begun(lake, RUN, 0)
    with pytest.raises(Permanent, match=r"interrupted before it recorded its segments.*clear its task `ingest`"):
        publishing(lake)
    assert read(open_catalog(lake.settings), IDS) == []


def test_each_attempt_has_its_own_instant(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.renew()
    catalog, settings = open_catalog(lake.settings), lake.settings
    mine = lake.archive(Stream.TRIGGER, [trigger(1, ["V1"])])
    audited_before: list[object] = []

    def write_and_audit(run: Run) -> tuple[Ingested, None]:
        todo = begin(run)
        assert todo is not None
        write(run, todo)
        audited_before.append(passed_already(catalog, settings, run.run_id))
        passed = Audit(run.run_id, True, (), (), {IDS.name: 1}, "page")
        append_audit_result(catalog, head(catalog, run.run_id), results_of(passed, run.now))
        if len(audited_before) == 1:  # another run comes first
            other = lake.archive(Stream.TRIGGER, [trigger(9000, ["V9"])])
            written(lake, "other", 1, [other])
            publish(catalog, "other")
        return Ingested(run.run_id, segments=len(todo.segments)), None

    monkeypatch.setattr(backlog, "ingest_and_audit", write_and_audit)
    ingest_audit_publish(a_run(lake, "mine", 0))
    assert (audited_before, len(mine) > 0) == ([None, None], True)
    keys = [(row["run_id"], row["suite"], row["rule"], row["at"]) for row in read(catalog, QUALITY)]
    assert len(keys) == len(set(keys))


def test_a_branch_replaced_by_another_process_is_not_published_with_the_old_audit(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.renew()
    catalog = open_catalog(lake.settings)
    paths = [lake.archive(Stream.TRIGGER, [trigger(n * 9000, [f"V{n}"])]) for n in range(2)]
    audited: list[object] = []

    def write_and_audit(run: Run) -> tuple[Ingested, None]:
        written(lake, RUN, 0, paths[:1])
        append_audit_result(catalog, head(catalog, RUN), results_of(Audit(RUN, True, (), (), {IDS.name: 1}, "page"), run.now))
        audited.append(head(catalog, RUN).snapshot_id)
        if len(audited) == 1:
            written(lake, RUN, 1, paths)  # the same run in another process, with further rows and no audit
        return Ingested(RUN), None

    monkeypatch.setattr(backlog, "ingest_and_audit", write_and_audit)
    ingest_audit_publish(a_run(lake, RUN, 0))
    assert {row["vin"] for row in read(catalog, IDS)} == {"V0"}
    current = catalog.load_table(SEGMENTS.identifier).current_snapshot()
    assert current is not None
    assert current.snapshot_id == audited[-1]


def test_a_failed_audit_forbids_publication(lake: Lake) -> None:
    lake.renew()
    catalog = open_catalog(lake.settings)
    lake.archive(Stream.TRIGGER, [trigger(1, ["V1"])])
    written(lake, RUN, 0)
    mine = head(catalog, RUN)
    assert not may_be_published(catalog, mine)
    finding = Finding(IDS.name, "vin_seq_is_unique", Severity.ERROR, "a rule", "a reason to have it", 1, 1, (), ())
    for passed, findings in ((True, ()), (False, (finding,)), (True, ())):
        append_audit_result(catalog, mine, results_of(Audit(RUN, passed, findings, (), {IDS.name: 1}, "page"), at(0)))
        assert may_be_published(catalog, mine) is passed


@pytest.mark.parametrize("ms", [-60_000, 60_000], ids=["behind", "ahead"])
def test_an_audit_result_is_found_by_its_attempt_on_any_clock(lake: Lake, ms: int) -> None:
    lake.renew()
    catalog, settings = open_catalog(lake.settings), lake.settings
    paths = [lake.archive(Stream.TRIGGER, [trigger(n * 9000, [f"V{n}"])]) for n in range(2)]
    written(lake, RUN, 0, paths[:1])
    append_audit_result(catalog, head(catalog, RUN), results_of(Audit(RUN, True, (), (), {IDS.name: 1}, "page"), at(ms)))
    elsewhere = settings.model_copy(update={"home": settings.home / "of another worker"})
    assert passed_already(catalog, elsewhere, RUN) is not None

    written(lake, RUN, 1, paths)  # again, with other rows and no audit

    assert passed_already(catalog, settings, RUN) is None
    publish(catalog, RUN)
    assert passed_already(catalog, settings, RUN) == {"report": None, "warnings": 0}


@pytest.mark.slow
@pytest.mark.usefixtures("shared_session")
def test_rows_rewritten_by_an_earlier_attempt_are_audited_before_publication(lake: Lake) -> None:
    lake.renew()
    catalog = open_catalog(lake.settings)
    first = lake.archive(Stream.TRIGGER, [trigger(1, ["V1"])])
    late = lake.archive(Stream.TRIGGER, [trigger(9000, ["V9"])])
    written(lake, RUN, 0, [first])
    written(lake, "backfill", 1, [late])
    publish(catalog, "backfill")
    written(lake, RUN, 2, [first])  # the task `publish`, overtaken and killed here
    assert passed_already(catalog, lake.settings, RUN) is None
    assert json.loads(publishing(lake))["published"] is True
    assert {row["vin"] for row in read(catalog, IDS)} == {"V1", "V9"}
    assert {row["run_id"] for row in read(catalog, QUALITY)} == {RUN}


def test_a_committed_run_ingests_new_segments_under_new_run_ids(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.renew()
    monkeypatch.setattr(backlog, "ingest_and_audit", ingest_and_audit)
    catalog = open_catalog(lake.settings)
    lake.archive(Stream.TRIGGER, [trigger(1, ["V1"])])
    ingest(catalog, lake.settings, run_id=RUN, now=at(0))
    lake.archive(Stream.TRIGGER, [trigger(5000, ["V2"])])
    run = without_spark(catalog, lake.settings, RUN, at(3_600_000))
    done = ingest_in_runs(run)
    assert [name.startswith(f"{RUN}_") for name in done.runs] == [True]
    assert {row["vin"] for row in read(catalog, IDS)} == {"V1", "V2"}
    again = ingest_in_runs(run)
    assert again.runs == []
