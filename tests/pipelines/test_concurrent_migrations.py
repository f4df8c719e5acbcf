"""Migrations killed anywhere, concurrent, or next to ingestion: no payload is lost or stored twice."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from manifold.contracts.envelope import Stream
from manifold.contracts.tables import DATA, ERASURES, META, SEGMENTS, Column, Table
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.lake.payloads import read_payloads
from manifold.settings import Settings
from pipelines.migrations.migrate import migrate, plan
from pipelines.migrations.steps import AddColumns, PartitionBy, SetProperties
from tests.pipelines.lakes import Lake, keep
from tests.pipelines.makers import at, data
from tests.pipelines.plain import compact, ingest, read, sightings
from tests.pipelines.stepping import Player
from tests.support.lake_rows import append_payloads, new_lake
from tests.support.releases import next_release

OLD = {f"d{n}": b"payload %d" % n for n in range(1, 6)}
REGION = Column("region", pa.string(), "where the data was published", required=False)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A lake with payloads, and a release that changes the payload index, the ledger, and a table outside runs."""
    folder = tmp_path_factory.mktemp("old")
    settings = Settings(home=folder / "home")
    catalog = new_lake(settings)
    payloads = list(OLD.items())
    append_payloads(catalog, dict(payloads[:2]), at=at(1))
    append_payloads(catalog, dict(payloads[2:]), at=at(2), seq=3)
    kept = keep(settings, folder / "template")
    with next_release() as define:
        define(META, AddColumns("region", (REGION,)), columns=(*META.columns, REGION))
        define(META, PartitionBy("by-day", (("last_seen_at", "day"),)))
        define(SEGMENTS, SetProperties("rarely", {"commit.retry.num-retries": "31"}))
        define(ERASURES, SetProperties("rarely", {"commit.retry.num-retries": "31"}))
        yield kept


def migrating(lake: Lake, *, fine: bool = False) -> Player:
    return lake.player(migrate, fine=fine)


def take_in(lake: Lake, run_id: str, ms: int) -> Player:
    """Start an ingest as the pipelines do."""

    def work(catalog: Catalog) -> None:
        ensure_tables(catalog)
        ingest(catalog, lake.settings, run_id=run_id, now=at(ms))

    return lake.player(work)


def require_sound(lake: Lake, more: dict[str, bytes] | None = None, *, seen: dict[str, int] | None = None) -> None:
    """Check that every payload is stored once, indexed once, and found; nothing is left to migrate."""
    catalog, expected = open_catalog(lake.settings), OLD | (more or {})
    assert sorted(row["data_id"] for row in read(catalog, DATA)) == sorted(expected)
    names = {row["data_id"]: row["times_seen"] for row in sightings(catalog)}
    assert names == dict.fromkeys(expected, 1) | (seen or {})
    assert read_payloads(catalog, expected.keys()) == expected
    assert len(catalog.load_table(META.identifier).spec().fields) == 1
    assert plan(catalog).steps == []


def commits_of(player: Player, last: Table | None = None) -> list[int]:
    """The pause points before commits, up to the last one to a table; between two of them the player only reads."""
    steps = player.go().steps
    places = [place for place, step in enumerate(steps) if step.startswith("commit")]
    end = max(place for place in places if last is None or steps[place] == f"commit {last.identifier}")
    return [place for place in places if place <= end]


def ingest_more(lake: Lake) -> Player:
    """Start an ingest of a known payload and a new one."""
    lake.archive(Stream.DATA, [data(100, "d1", OLD["d1"]), data(101, "d9", b"nine")])
    return take_in(lake, "run", 200)


def require_sound_with_more(lake: Lake) -> None:
    require_sound(lake, {"d9": b"nine"}, seen={"d1": 2})


def test_a_migration_killed_anywhere_is_completed_after_an_ingest(lake: Lake) -> None:
    lake.renew()
    for place in commits_of(migrating(lake, fine=True))[::4]:
        lake.renew()
        dying = migrating(lake, fine=True).go(place)
        dying.kill()
        catalog = open_catalog(lake.settings)
        assert read_payloads(catalog, OLD.keys()) == OLD, f"killed before {dying.steps[-1]}"
        ingest_more(lake).go()
        migrate(catalog)
        require_sound_with_more(lake)


def test_a_migration_paused_next_to_an_ingest_and_another_one_loses_nothing(lake: Lake) -> None:
    lake.renew()
    for place in commits_of(migrating(lake))[::3]:
        lake.renew()
        slow = migrating(lake).go(place)
        ingest_more(lake).go()
        migrate(open_catalog(lake.settings))
        slow.go()
        require_sound_with_more(lake)


def test_an_ingest_paused_anywhere_during_a_migration_stores_nothing_twice(lake: Lake) -> None:
    lake.renew()
    for place in commits_of(ingest_more(lake))[::3]:
        lake.renew()
        slow = ingest_more(lake).go(place)
        migrate(open_catalog(lake.settings))
        slow.go()
        require_sound_with_more(lake)


def test_a_table_rewritten_during_its_migration_has_the_migrated_values(lake: Lake) -> None:
    lake.renew()
    rewritten = 0
    for place in commits_of(migrating(lake), META)[::3]:
        lake.renew()
        slow = migrating(lake).go(place)
        rewritten += compact(open_catalog(lake.settings), META)
        slow.go()
        require_sound(lake)
    assert rewritten
