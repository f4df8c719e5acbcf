"""`python -m tests.faults.lake --rounds 200`: concurrent ingests, collection and compaction, killed and paused anywhere.

All of them work on one lake through PyIceberg's catalog (`tests.pipelines.plain`), one call at a time: a seed chooses whose turn
it is, who is paused for how long, who dies and who returns. One more ingest follows, as every five minutes in production; then
`manifold lake check` must find nothing, and no branch may be left.
"""

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Annotated, Any

import structlog
import typer
from pyiceberg.catalog.sql import SqlCatalog
from rich.console import Console

from manifold.contracts.envelope import Stream
from manifold.contracts.tables import DATA, IDS, META, OUTCOMES, QUARANTINE, RUN_TABLES
from manifold.lake.catalog import open_catalog
from manifold.settings import Settings
from pipelines.ingest.branches import PREFIX
from pipelines.maintenance.check import disagreements
from tests.pipelines.lakes import Lake, new_lake
from tests.pipelines.makers import at, data, outcome, trigger
from tests.pipelines.plain import collect, compact, fold, ingest, read, sightings
from tests.pipelines.stepping import Player

DAY_MS = 86_400_000
TODAY_MS = 40 * DAY_MS
CUT = at(TODAY_MS - 30 * DAY_MS)
TURNS = 40
KILLS = 0.08  # the share of turns
MAX_STEPS = 12  # per turn

Work = Callable[[SqlCatalog, Settings, str], Any]


def _ingest(catalog: SqlCatalog, settings: Settings, run_id: str) -> None:
    ingest(catalog, settings, run_id=run_id, now=at(TODAY_MS))


def _collect(catalog: SqlCatalog, settings: Settings, run_id: str) -> None:
    collect(catalog, settings, run_id=run_id, now=at(TODAY_MS), cut=CUT)


def _compact(catalog: SqlCatalog, settings: Settings, run_id: str) -> None:
    fold(catalog, settings, run_id=run_id, now=at(TODAY_MS))
    for table in (DATA, META, IDS, OUTCOMES):
        compact(catalog, table)


WORK: dict[str, Work] = {"ingest": _ingest, "another": _ingest, "collect": _collect, "compact": _compact}


def play(lake: Lake, seed: int) -> dict[str, int]:
    """Play one round; return what happened in it, by kind. An `AssertionError` names the violation."""
    chance, happened = Random(seed), Counter[str]()
    lake.renew()
    players: dict[str, Player] = {}
    for turn in range(TURNS):
        if turn % 10 == 0:
            _record(lake, turn)
        name = chance.choice(list(WORK))
        player = players.get(name)
        if player is None or player.is_over:
            work, run_id = WORK[name], f"{name}_{turn}"
            player = lake.player(lambda catalog, work=work, run_id=run_id: work(catalog, lake.settings, run_id), fine=True)  # type: ignore[misc]
            players[name] = player
            happened["began"] += 1
        if chance.random() < KILLS:
            player.kill()
            happened["killed"] += 1
        else:
            player.go(chance.randrange(MAX_STEPS))
    for player in chance.sample(list(players.values()), len(players)):
        player.go()
    tomorrow = at(TODAY_MS + 2 * DAY_MS)
    ingest(open_catalog(lake.settings), lake.settings, run_id="last", now=tomorrow)
    _assert_sound(lake)
    return dict(happened)


def _record(lake: Lake, turn: int) -> None:
    """Extend the archive: a batch for two vehicles, new and old data, an outcome, and a malformed message."""
    young, old = TODAY_MS - 1000 + turn, DAY_MS + turn
    lake.archive(Stream.TRIGGER, [trigger(young, [f"V{turn}", "V"], "young"), trigger(young + 1, [7])])
    lake.archive(Stream.DATA, [data(old, f"old_{turn}", b"old")])
    lake.archive(Stream.DATA, [data(young + 2, "young", b"young")])
    lake.archive(Stream.OUTCOME, [outcome(young + 3, "V", young)])


def _assert_sound(lake: Lake) -> None:
    catalog = open_catalog(lake.settings)
    found, segments, _ = disagreements(catalog, lake.settings, now=at(TODAY_MS))
    assert not found, found
    batches = segments // 4
    assert [len(read(catalog, table)) for table in (IDS, OUTCOMES, QUARANTINE)] == [2 * batches, batches, batches]
    assert {row["data_id"]: row["times_seen"] for row in sightings(catalog)}["young"] == batches
    branches = [
        f"{t.name}.{name}" for t in RUN_TABLES for name in catalog.load_table(t.identifier).refs() if name.startswith(PREFIX)
    ]
    assert not branches, branches


def main(
    rounds: Annotated[int, typer.Option(min=1, help="how many")] = 200,
    first: Annotated[int, typer.Option(help="the seed of the first; the next one has the next")] = 0,
) -> None:
    """Play rounds until one fails; its seed replays it."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    console, total = Console(), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="manifold-faults-") as folder:
        lake = new_lake(Path(folder))
        for seed in range(first, first + rounds):
            try:
                total.update(play(lake, seed))
            except BaseException:
                console.print(f"seed {seed} FAILED", style="red")
                raise
    console.print(f"{rounds} rounds, {total['began']} jobs, {total['killed']} of them killed: manifold lake check finds nothing")


if __name__ == "__main__":
    typer.run(main)
