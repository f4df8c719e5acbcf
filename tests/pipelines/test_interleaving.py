"""Runs and rewriting jobs, paused and killed at every pair of steps: ledger and tables agree, and everything is in once."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table.snapshots import Snapshot

from manifold.contracts.envelope import Stream
from manifold.contracts.tables import DATA, IDS, META, RUN_TABLES, SEGMENTS, Table
from manifold.lake.catalog import open_catalog
from manifold.lake.commits import append_nothing
from manifold.settings import Settings
from pipelines.ingest import lease
from pipelines.ingest import publish as publication
from pipelines.ingest.branches import RUN_ID, properties_of
from pipelines.ingest.erasing import erase_rows
from pipelines.ingest.lease import LeaseLost, rewriting
from pipelines.ingest.maintenance_run import MaintenanceRun, until_not_overtaken
from pipelines.ingest.publish import committed_runs, finish_committed_runs, main_snapshots
from tests.pipelines.lakes import Lake, keep, new_lake
from tests.pipelines.makers import at, data, trigger
from tests.pipelines.plain import collect, compact, fold, ingest, read, sightings


def assert_agree(lake: Lake, what: object, *, data_ids: Sequence[str] = ()) -> None:
    """Check that ledger and tables agree: the archive is in once, and no branch is left."""
    catalog = open_catalog(lake.settings)
    assert sorted(row["vin"] for row in read(catalog, IDS)) == ["V1", "V2", "V3"], what
    assert [row["data_id"] for row in read(catalog, DATA)] == list(data_ids), what
    assert [row["times_seen"] for row in sightings(catalog)] == [2] * len(data_ids), what
    assert set(Counter(row["path"] for row in read(catalog, SEGMENTS)).values()) == {1}, what
    branches = [name for table in RUN_TABLES for name in catalog.load_table(table.identifier).refs() if name != "main"]
    assert branches == [], what


TWO_DAYS_MS = 2 * 86_400_000
STEPS = 8  # of one run that others can observe
COMMITS = (3, 4, 6, 7)  # steps that change something: a run that dies at another leaves what it leaves at the next of these
# How it ends → where the first run is paused, and where the second. If the first one dies, or the second one goes on, the second
# one is not disturbed at its pause. Only one thing depends on the pause then: whether the second one lists the archive before or
# after the new segment. Of the second run's pauses, each pause of the first takes every other one, and the next takes the rest.
PAUSES: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    "first goes on": (range(STEPS), range(STEPS)),
    "first dies": (COMMITS, (0, STEPS - 1)),
    "second goes on": (range(STEPS), (0, STEPS - 1)),
    "second dies": (range(STEPS), COMMITS),
}


@pytest.mark.parametrize(("ends", "at_step"), [(ends, step) for ends, (steps, _) in PAUSES.items() for step in steps])
def test_two_runs_paused_at_any_pair_of_steps_ingest_everything_once(lake: Lake, ends: str, at_step: int) -> None:
    one, how = ends.split(maxsplit=1)
    for steps in PAUSES[ends][1][at_step % 2 :: 2]:
        lake.renew()
        lake.archive(Stream.TRIGGER, [trigger(1, ["V1", "V2"])])
        first = lake.ingesting("first").go(at_step)
        second = lake.ingesting("second").go(steps)
        lake.archive(Stream.TRIGGER, [trigger(11, ["V3"])])  # work for the next reader
        what = (first.steps, second.steps[:])
        early, late = (first, second) if one == "first" else (second, first)
        early.kill() if how == "dies" else early.go()
        late.go()
        lake.ingesting("last", ms=TWO_DAYS_MS).go()  # by then, branches of dead runs count as abandoned
        assert_agree(lake, what)


def test_a_run_has_no_more_steps_than_the_pause_points_cover(lake: Lake) -> None:
    lake.renew()
    lake.archive(Stream.TRIGGER, [trigger(1, ["V1", "V2"])])
    steps = lake.ingesting("alone").go().steps
    assert (len(steps), commits_in(steps)) == (STEPS, [*COMMITS])


def commits_in(steps: Sequence[str]) -> list[int]:
    """The places of commits."""
    return [place for place, step in enumerate(steps) if step.startswith("commit")]


@pytest.mark.parametrize("seed", range(6))
def test_three_runs_paused_and_killed_anywhere_ingest_everything_once(lake: Lake, seed: int) -> None:
    chance = Random(seed)
    lake.renew()
    lake.archive(Stream.TRIGGER, [trigger(1, ["V1", "V2"])])
    lake.archive(Stream.DATA, [data(2, "d1", b"one")])
    players = [lake.ingesting(name, fine=True) for name in ("first", "second", "third")]
    for place, player in enumerate(players):
        player.go(chance.randrange(35))
        if place == 1:
            lake.archive(Stream.TRIGGER, [trigger(11, ["V3"])])
            lake.archive(Stream.DATA, [data(12, "d1", b"one")])
    for player in chance.sample(players, 3):
        if chance.random() < 0.3:
            player.kill()
        else:
            player.go(chance.choice([chance.randrange(35), None]))
    for player in players:
        player.go()
    lake.ingesting("last", ms=TWO_DAYS_MS).go()
    assert_agree(lake, seed, data_ids=["d1"])


def test_a_run_that_reads_between_a_commit_and_its_publication_sees_the_new_rows(lake: Lake) -> None:
    """Nobody dies here. The first run reads on after the second is committed, but before all mains of the second have moved."""
    lake.renew()
    lake.archive(Stream.DATA, [data(2, "d1", b"one")])
    lake.archive(Stream.TRIGGER, [trigger(1, ["V1", "V2"])])
    first = lake.ingesting("first").go(0)  # has looked for committed runs to finish, and found none
    second = lake.ingesting("second").go(until="commit sdv.sdv_fanout_data")
    assert second.steps[-2:] == ["commit sdv.ingested_segments", "commit sdv.sdv_fanout_data"]
    lake.archive(Stream.DATA, [data(12, "d1", b"one")])
    lake.archive(Stream.TRIGGER, [trigger(11, ["V3"])])
    first.go()
    second.go()
    assert_agree(lake, second.steps, data_ids=["d1"])


def test_branches_of_a_committed_run_are_finished_however_late(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier release could commit a run, begin a later one from mains without it, and publish that too."""
    lake.renew()
    lake.archive(Stream.TRIGGER, [trigger(1, ["V1", "V2"])])
    lake.ingesting("first").go(until="commit sdv.sdv_fanout_ids").kill()
    lake.archive(Stream.TRIGGER, [trigger(11, ["V3"])])
    every = publication.unfinished
    with monkeypatch.context() as patched:
        only_later = lambda segments: [run for run in every(segments) if properties_of(run)[RUN_ID] == "later"]
        patched.setattr(publication, "unfinished", only_later)
        lake.ingesting("later").go()
    assert [row["vin"] for row in read(open_catalog(lake.settings), IDS)] == ["V3"]
    lake.ingesting("last", ms=TWO_DAYS_MS).go()
    assert_agree(lake, "late")


OLD_MS, YOUNG_MS = 1, 40 * 86_400_000
CUT = at(YOUNG_MS - 10 * 86_400_000)


def compacting(catalog: Catalog, _: Settings) -> None:
    """Compact as `compact` does: first complete unfinished work of others."""
    finish_committed_runs(catalog)
    for table in (DATA, META, IDS):
        compact(catalog, table)


def collecting(catalog: Catalog, settings: Settings) -> None:
    """Remove the data `old`."""
    collect(catalog, settings, run_id="collection", now=at(YOUNG_MS), cut=CUT)


def erasing(catalog: Catalog, _: Settings) -> None:
    """Erase the vehicle V1."""
    until_not_overtaken()(lambda: erase_once(catalog))


def erase_once(catalog: Catalog) -> None:
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    run = MaintenanceRun(catalog, "erasure", base, at(YOUNG_MS))
    run.change(IDS, partial(erase_rows, catalog, IDS, pa.table({"vin": ["V1"]})))
    run.publish(partial(append_nothing, catalog, SEGMENTS))


def folding(catalog: Catalog, settings: Settings) -> None:
    """As compaction does it before it sorts: of `young` there were two sightings."""
    fold(catalog, settings, run_id="folding", now=at(YOUNG_MS))


JOBS = {"compaction": compacting, "collection": collecting, "erasure": erasing, "folding": folding}


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with work for each job, and an archive with something new; made once, because two runs make it."""
    folder = tmp_path_factory.mktemp("worked")
    lake = new_lake(folder)
    lake.archive(Stream.DATA, [data(OLD_MS, "old", b"old")])
    lake.archive(Stream.DATA, [data(YOUNG_MS, "young", b"young")])
    ingest(open_catalog(lake.settings), lake.settings, run_id="before", now=at(YOUNG_MS))
    lake.archive(Stream.DATA, [data(YOUNG_MS + 4, "young", b"young")])
    lake.archive(Stream.TRIGGER, [trigger(YOUNG_MS + 1, ["V1", "V2"])])
    ingest(open_catalog(lake.settings), lake.settings, run_id="lately", now=at(YOUNG_MS))
    lake.archive(Stream.DATA, [data(YOUNG_MS + 2, "young", b"young")])
    lake.archive(Stream.TRIGGER, [trigger(YOUNG_MS + 3, ["V3"])])
    return keep(lake.settings, folder / "worked")


@pytest.fixture
def full(worked: Lake, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Lake]:
    """Restore that lake. No lease is renewed in the background."""
    monkeypatch.setattr(lease, "RENEW_S", 3600.0)

    def renew() -> Lake:
        worked.renew()
        return worked

    return renew


def assert_sound(lake: Lake, done: Sequence[str], what: object) -> None:
    """Check that everything is in once, without what the `done` jobs removed, and that no branch is left."""
    ingest(open_catalog(lake.settings), lake.settings, run_id="last", now=at(YOUNG_MS + TWO_DAYS_MS))
    catalog = open_catalog(lake.settings)
    vins = ["V2", "V3"] if "erasure" in done else ["V1", "V2", "V3"]
    seen = {"young": 3} if "collection" in done else {"old": 1, "young": 3}
    assert sorted(row["vin"] for row in read(catalog, IDS)) == vins, what
    assert sorted(row["data_id"] for row in read(catalog, DATA)) == sorted(seen), what
    assert {row["data_id"]: row["times_seen"] for row in sightings(catalog)} == seen, what
    assert set(Counter(row["path"] for row in read(catalog, SEGMENTS)).values()) == {1}, what
    refs = [name for table in RUN_TABLES for name in catalog.load_table(table.identifier).refs() if name != "main"]
    assert refs == [], what


def run_id(run: Snapshot) -> str:
    return properties_of(run)[RUN_ID]


def holding(lake: Lake, job: str, clock: Callable[[], datetime] = lease.now_utc) -> Callable[[Catalog], None]:
    """Run the job with the lease."""

    def work(catalog: Catalog) -> None:
        with rewriting(catalog, job, clock=clock):
            JOBS[job](catalog, lake.settings)

    return work


# By the ingest's pause, two pauses of the job: after the first the job ends before the ingest, after the second the ingest does.
JOB_PAUSES = ((1, 5), (3, 4), (5, 1), (4, 3))


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("at_step", range(STEPS))
def test_an_ingest_and_a_rewriting_job_paused_at_any_steps_are_sound(full: Callable[[], Lake], job: str, at_step: int) -> None:
    for place, ahead in enumerate(JOB_PAUSES[at_step % 4]):
        lake = full()
        ingesting = lake.ingesting("ingest", ms=YOUNG_MS).go(at_step)
        rewrites = lake.player(holding(lake, job)).go(ahead)
        for player in (ingesting, rewrites) if place else (rewrites, ingesting):
            player.go()
        assert_sound(lake, [job], (ingesting.steps, rewrites.steps))


def test_an_ingest_next_to_a_compaction_keeps_the_compacted_files(lake: Lake) -> None:
    """Otherwise a stream, which always has an open run, would undo every compaction."""
    lake.renew()
    catalog = open_catalog(lake.settings)
    for ms, data_id in ((1, "old"), (2, "new")):
        lake.archive(Stream.DATA, [data(ms, data_id, b"some")])
        lake.archive(Stream.TRIGGER, [trigger(ms, [data_id])])
        if data_id == "old":
            ingest(catalog, lake.settings, run_id="before", now=at(ms))
    ingesting = lake.ingesting("ingest")
    while ingesting.steps.count(f"commit {SEGMENTS.identifier}") < 2:  # opens its run and is about to commit
        ingesting.go(1)
    compacting(catalog, lake.settings)
    compacted = [(table, files_of(catalog, table)) for table in (DATA, META, IDS)]
    ingesting.go()
    for table, files in compacted:
        assert len(read(catalog, table)) == 2, table.name
        assert files < files_of(catalog, table), table.name


def files_of(catalog: Catalog, table: Table) -> set[str]:
    return {task.file.file_path for task in catalog.load_table(table.identifier).scan().plan_files()}


@pytest.mark.parametrize("first", JOBS)
def test_a_rewriting_job_killed_at_any_step_is_replaced_after_its_lease_expires(full: Callable[[], Lake], first: str) -> None:
    """Each kill is followed by another of the jobs."""
    long_ago, jobs = datetime.now(UTC) - timedelta(hours=1), [*JOBS]
    lake = full()
    # A job that dies before it reads leaves what it leaves before its next commit. Before the first one it has no lease.
    kills = commits_in(lake.player(holding(lake, first)).go().steps)[1:]
    for place, steps in enumerate(kills, jobs.index(first)):
        then = jobs[place % len(jobs)]
        lake = full()
        dying = lake.player(holding(lake, first, lambda: long_ago)).go(steps)
        dying.kill()
        runs = committed_runs(open_catalog(lake.settings).load_table(SEGMENTS.identifier))
        counted = [first for run in runs if first in run_id(run)]
        holding(lake, then)(open_catalog(lake.settings))
        assert_sound(lake, [then, *counted], (then, dying.steps))


@pytest.mark.parametrize("then", JOBS)
def test_a_holder_whose_lease_was_taken_over_publishes_nothing(full: Callable[[], Lake], then: str) -> None:
    lake = full()
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    slow = lake.player(holding(lake, "collection", lambda: long_ago))
    while slow.steps.count(f"commit {SEGMENTS.identifier}") < 3:  # takes the lease, opens its run and is about to commit
        slow.go(1)
    if then == "collection":
        with rewriting(open_catalog(lake.settings), then):
            pass
    else:
        holding(lake, then)(open_catalog(lake.settings))
    with pytest.raises(LeaseLost, match=r"collection \(process \d+ on .*another job took it; do it again"):
        slow.go()
    assert_sound(lake, [then] if then != "collection" else [], slow.steps)
