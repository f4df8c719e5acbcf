"""Two and three runs, paused and killed at every pair of steps: ledger and tables agree, and everything is in once."""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from random import Random

import pytest

from manifold.contracts.envelope import Stream
from manifold.contracts.tables import DATA, IDS, META, RUN_TABLES, SEGMENTS
from manifold.lake.catalog import open_catalog
from pipelines.ingest import publish as publication
from pipelines.ingest.branches import RUN_ID, properties_of
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import data, trigger
from tests.pipelines.plain import read


def assert_agree(lake: Lake, what: object, *, data_ids: Sequence[str] = ()) -> None:
    """Ledger and tables agree: what the archive has is in, once, and nobody has left anything."""
    catalog = open_catalog(lake.settings)
    assert sorted(row["vin"] for row in read(catalog, IDS)) == ["V1", "V2", "V3"], what
    assert [row["data_id"] for row in read(catalog, DATA)] == list(data_ids), what
    assert [row["times_seen"] for row in read(catalog, META)] == [2] * len(data_ids), what
    assert set(Counter(row["path"] for row in read(catalog, SEGMENTS)).values()) == {1}, what
    branches = [name for table in RUN_TABLES for name in catalog.load_table(table.identifier).refs() if name != "main"]
    assert branches == [], what


TWO_DAYS_MS = 2 * 86_400_000
STEPS = 8  # of one run, by which another can notice it


@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
@pytest.mark.parametrize("one", ["first", "second"])
@pytest.mark.parametrize("at_step", range(STEPS))
def test_two_runs_halted_at_any_pair_of_steps_bring_everything_once(lake: Lake, at_step: int, one: str, dies: bool) -> None:
    for steps in product([at_step], range(STEPS)):
        lake.renew()
        lake.archive(Stream.TRIGGER, [trigger(1, ["V1", "V2"])])
        first = lake.ingesting("first").go(steps[0])
        second = lake.ingesting("second").go(steps[1])
        lake.archive(Stream.TRIGGER, [trigger(11, ["V3"])])  # whoever looks now has something to do
        what = (first.steps, second.steps[:])
        early, late = (first, second) if one == "first" else (second, first)
        early.kill() if dies else early.go()
        late.go()
        lake.ingesting("last", ms=TWO_DAYS_MS).go()  # by then, what the dead have left is abandoned
        assert_agree(lake, what)


def test_a_run_has_no_more_steps_than_those_at_which_it_is_halted(lake: Lake) -> None:
    lake.renew()
    lake.archive(Stream.TRIGGER, [trigger(1, ["V1", "V2"])])
    assert len(lake.ingesting("alone").go().steps) == STEPS


@pytest.mark.parametrize("seed", range(6))
def test_three_runs_that_halt_and_die_anywhere_bring_everything_once(lake: Lake, seed: int) -> None:
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


def test_a_run_that_began_between_another_s_commit_and_its_mains_sees_what_it_brought(lake: Lake) -> None:
    """Nobody dies here: one looks, another is published, and before its other mains move the first one reads on."""
    lake.renew()
    lake.archive(Stream.DATA, [data(2, "d1", b"one")])
    lake.archive(Stream.TRIGGER, [trigger(1, ["V1", "V2"])])
    first = lake.ingesting("first").go(0)  # it has finished what it found: nothing
    second = lake.ingesting("second").go(until="commit sdv.sdv_fanout_data")
    assert second.steps[-2:] == ["commit sdv.ingested_segments", "commit sdv.sdv_fanout_data"]
    lake.archive(Stream.DATA, [data(12, "d1", b"one")])
    lake.archive(Stream.TRIGGER, [trigger(11, ["V3"])])
    first.go()
    second.go()
    assert_agree(lake, second.steps, data_ids=["d1"])


def test_branches_of_a_run_that_counts_are_finished_however_late(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier release could do: a run counted, a later one began from mains without it, and was published, too."""
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
