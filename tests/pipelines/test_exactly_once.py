"""Publication: killed half-way and repeated, concurrent, or overtaken by maintenance, the tables are the same."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import SetSnapshotRefUpdate

from manifold.archive.segment import Interval
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import DATA, IDS, META, QUARANTINE, RUN_TABLES, SEGMENTS, TABLES, Table
from manifold.lake.catalog import open_catalog
from pipelines.ingest import backlog, write_triggers
from pipelines.ingest import publish as publication
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.branches import Overtaken, PinnedSnapshot, branch_of, head_of
from pipelines.ingest.publish import publish
from pipelines.ingest.run import Run
from pipelines.ingest.write import ingest
from tests.pipelines.conftest import SparkLake, new_session
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import at, data, trigger
from tests.pipelines.plain import read, sightings, without_spark, write_run

pytestmark = pytest.mark.slow
TRIGGER = Stream.TRIGGER


SOME = {
    TRIGGER: [trigger(1, ["V1", "V2"]), trigger(2, ["V1", 7])],
    Stream.DATA: [data(3, "d1", b"one"), data(4, "d1", b"one")],
}


def write_some(spark_lake: SparkLake) -> None:
    for stream, messages in SOME.items():
        spark_lake.write(stream, messages)


def assert_all_is_in_once(catalog: Catalog) -> None:
    assert sorted(row["vin"] for row in read(catalog, IDS)) == ["V1", "V2"]
    assert [row["data_id"] for row in read(catalog, DATA)] == ["d1"]
    assert [row["times_seen"] for row in sightings(catalog)] == [2]
    assert len(read(catalog, QUARANTINE)) == 1
    assert len(read(catalog, SEGMENTS)) == 2
    assert leftovers(catalog) == []


def leftovers(catalog: Catalog) -> list[str]:
    """Branches other than main."""
    return [f"{t.name}.{name}" for t in TABLES for name in catalog.load_table(t.identifier).refs() if name != "main"]


def write_without_spark(lake: Lake, run_id: str = "run", ms: int = 0) -> Catalog:
    """Write everything new on the branches of a run."""
    catalog = open_catalog(lake.settings)
    write_run(without_spark(catalog, lake.settings, run_id, at(ms)))
    return catalog


@pytest.fixture
def written(lake: Lake) -> Catalog:
    """The catalog of a lake with a run that is written and not published."""
    lake.renew()
    for stream, messages in SOME.items():
        lake.archive(stream, messages)
    return write_without_spark(lake)


@pytest.mark.parametrize("table", [DATA, META, IDS, QUARANTINE], ids=lambda table: table.name)
def test_a_run_killed_between_two_tables_is_finished_by_the_next(
    lake: Lake, written: Catalog, monkeypatch: pytest.MonkeyPatch, table: Table
) -> None:
    bring = publication._fast_forward

    def die_before(catalog: Catalog, pinned: PinnedSnapshot, run: Snapshot) -> None:
        if pinned.table is table:
            raise KeyboardInterrupt
        bring(catalog, pinned, run)

    with monkeypatch.context() as patched:
        patched.setattr(publication, "_fast_forward", die_before)
        with pytest.raises(KeyboardInterrupt):
            publish(written, "run")
    assert len(read(written, SEGMENTS)) == 2
    assert read(written, table) == []
    assert write_run(without_spark(written, lake.settings, "next", at(1))).segments == 0
    assert_all_is_in_once(written)


def test_an_overtaken_run_is_repeated(lake: Lake) -> None:
    lake.renew()
    lake.archive(TRIGGER, [trigger(1, ["V1"])])
    write_without_spark(lake, "slow")
    lake.archive(TRIGGER, [trigger(2, ["V2"])])
    catalog = write_without_spark(lake, "fast")
    publish(catalog, "fast")
    with pytest.raises(Overtaken, match="slow"):
        publish(catalog, "slow")
    assert sorted(row["vin"] for row in read(catalog, IDS)) == ["V1", "V2"]
    assert write_run(without_spark(catalog, lake.settings, "slow", at(1))).segments == 0
    assert leftovers(catalog) == []


@dataclass(frozen=True)
class Death:
    """Where a job dies: before or after a call of `name`, with this argument if one is given."""

    owner: object
    name: str
    of: Table | None = None
    after: bool = False

    def strike(self, patched: pytest.MonkeyPatch) -> None:
        right = getattr(self.owner, self.name)

        def dying(*args: Any, **named: Any) -> Any:
            mine = self.of is None or self.of in args
            if mine and not self.after:
                raise KeyboardInterrupt
            result = right(*args, **named)
            if mine:
                raise KeyboardInterrupt
            return result

        patched.setattr(self.owner, self.name, dying)


DEATHS = {
    "before the first write": Death(write_triggers, "read_and_parse"),
    "ids are committed, payloads are not": Death(Attempt, "append", IDS, after=True),
    "sightings are committed, the reply is lost": Death(Attempt, "append", META, after=True),
    "before the run is whole": Death(Attempt, "append_to_ledger"),
    "before the audit": Death(backlog, "audit_run"),
    "before the commit point": Death(publication, "_move_main", SEGMENTS),
}
COMMITTED = "the reply to the commit point is lost"


def test_a_job_killed_anywhere_is_completed_once_by_the_next(spark_lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    write_some(spark_lake)
    for stage, death in (DEATHS | {COMMITTED: Death(publication, "_move_main", SEGMENTS, after=True)}).items():
        with monkeypatch.context() as patched:
            death.strike(patched)
            with pytest.raises(KeyboardInterrupt):
                whole_run(spark_lake, "run")
        counts = [table.name for table in RUN_TABLES if spark_lake.rows(table)]
        assert counts == ([SEGMENTS.name] if stage == COMMITTED else []), stage
    whole_run(spark_lake, "another")
    assert_all_is_in_once(spark_lake.catalog)


def whole_run(spark_lake: SparkLake, run_id: str, interval: Interval | None = None) -> None:
    spark = new_session(spark_lake.spark, spark_lake.settings)
    catalog = open_catalog(spark_lake.settings)
    backlog.ingest_audit_publish(Run(spark, catalog, spark_lake.settings, run_id, at(10), interval))


def test_a_commit_with_a_lost_reply_is_verified(written: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, lost = written.commit_table, []

    def losing_each_first_reply(table: Any, requirements: Any, updates: Any) -> Any:
        reply = commit(table, requirements, updates)
        if any(isinstance(update, SetSnapshotRefUpdate) for update in updates) and table.name() not in lost:
            lost.append(table.name())
            raise CommitStateUnknownException("no reply")
        return reply

    with monkeypatch.context() as patched:
        patched.setattr(written, "commit_table", losing_each_first_reply)
        assert publish(written, "run")
    assert len(lost) == 5
    assert_all_is_in_once(written)


@pytest.mark.usefixtures("unaudited")
def test_two_concurrent_runs_of_overlapping_intervals_ingest_everything_once(spark_lake: SparkLake) -> None:
    write_some(spark_lake)
    hour = 3_600_000
    later = spark_lake.write(TRIGGER, [trigger(hour, ["V3"])])
    intervals = {"one": Interval(at(-hour), at(hour)), "other": Interval(at(0), at(2 * hour))}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda run_id: whole_run(spark_lake, run_id, intervals[run_id]), intervals))
    assert spark_lake.rows(IDS, "vin") == ["V1", "V2", "V3"]
    assert spark_lake.seen("times_seen") == [2]
    assert spark_lake.rows(SEGMENTS, "path").count(later) == 1
    assert leftovers(spark_lake.catalog) == []


def test_a_run_is_published_although_maintenance_rewrote_main(spark_lake: SparkLake) -> None:
    spark_lake.write(TRIGGER, [trigger(1, ["V0"])])
    spark_lake.write(Stream.DATA, [data(1, "d1", b"one"), data(2, "d0", b"zero")])
    spark_lake.ingest("before")
    spark_lake.write(TRIGGER, [trigger(5, ["V1"])])
    spark_lake.write(Stream.DATA, [data(6, "d1", b"one"), data(7, "d2", b"two")])
    ingest(spark_lake.run("run"))
    for table in (IDS, META):
        name = f"{spark_lake.settings.catalog_name}.{table.identifier}"
        options = "map('rewrite-all', 'true')"
        spark_lake.spark.sql(
            f"CALL {spark_lake.settings.catalog_name}.system.rewrite_data_files(table => '{name}', options => {options})"
        )
    publish(spark_lake.catalog, "run")
    publish(spark_lake.catalog, "run")
    assert spark_lake.rows(IDS, "vin") == ["V0", "V1"]
    assert spark_lake.seen("data_id", "times_seen", "last_seen_at") == [
        ("d0", 1, at(2)),
        ("d1", 2, at(6)),
        ("d2", 1, at(7)),
    ]
    assert leftovers(spark_lake.catalog) == []


def test_a_late_write_to_the_branch_is_not_published(spark_lake: SparkLake) -> None:
    spark_lake.write(TRIGGER, [trigger(1, ["V1"])])
    ingest(spark_lake.run("run"))
    twin = f"{spark_lake.settings.catalog_name}.{IDS.identifier}.`branch_{branch_of('run')}`"
    spark_lake.spark.sql(f"INSERT INTO {twin} SELECT * FROM {twin}")
    publish(spark_lake.catalog, "run")
    assert spark_lake.rows(IDS, "vin") == ["V1"]


def test_an_abandoned_run_loses_its_branches_after_a_day(lake: Lake) -> None:
    lake.renew()
    lake.archive(TRIGGER, [trigger(1, ["V1"])])
    write_without_spark(lake, "abandoned")
    day = 86_400_000
    assert head_of(write_without_spark(lake, "soon", day - 1000), IDS, "abandoned") is not None
    assert head_of(write_without_spark(lake, "late", day + 1000), IDS, "abandoned") is None


def test_run_ids_of_any_spelling_have_their_own_branches() -> None:
    ids = ["scheduled__2026-01-01T00:00:00+00:00", "scheduled__2026_01_01T00_00_00_00_00", "a b", "a-b", "ä"]
    names = [branch_of(run_id) for run_id in ids]
    assert len(set(names)) == len(ids)
    assert all(name.isascii() and name.replace("_", "").isalnum() for name in names)
