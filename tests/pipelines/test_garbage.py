"""Garbage collection on a lake, an archive and a Redis: what is removed, what stays, killed anywhere."""

import os
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.transforms import BucketTransform
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import DATA, IDS, META, OUTCOMES, QUARANTINE, SEGMENTS
from manifold.lake.catalog import ensure_tables
from manifold.queues import Loader, Policy
from pipelines.ingest import publish as publication
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.branches import Overtaken, open_run
from pipelines.ingest.publish import finish_committed_runs, main_snapshots, publish
from pipelines.ingest.run import Ingested
from pipelines.maintenance import garbage_run
from pipelines.maintenance.garbage import RECORDER_NOT_FLUSHED, collect_garbage
from pipelines.maintenance.garbage_days import remembered_closed_days
from pipelines.maintenance.garbage_files import expire_snapshots
from pipelines.maintenance.garbage_rows import GarbageRows
from pipelines.maintenance.garbage_run import Removal
from tests.pipelines.conftest import Kept, SparkLake, kept
from tests.pipelines.garbage_oracle import Entry, overdue, unneeded_data
from tests.pipelines.makers import at, data, outcome, seq_at, trigger
from tests.support.servers import Server, free_port

DAY_MS = 86_400_000
NOW_MS = 40 * DAY_MS


@pytest.fixture
def home(spark_lake: SparkLake, redis_server: Server) -> SparkLake:
    return with_servers(spark_lake, redis_server)


def with_servers(lake: SparkLake, redis_server: Server) -> SparkLake:
    """The lake on Spark with a Redis and no recorder."""
    more = {"redis_port": redis_server.port, "recorder_port": free_port()}
    return replace(lake, settings=lake.settings.model_copy(update=more))


def collect(spark_lake: SparkLake, **more: Any) -> tuple[Removal, Removal]:
    """The row-changing part of garbage collection."""
    return garbage_run.collect(spark_lake.run("gc", NOW_MS), cutoff=at(NOW_MS - 30 * DAY_MS), **more)


def add_entry(spark_lake: SparkLake, ms: int, vin: str, data_id: str, *, outcome: str | None = None) -> None:
    row = {"vin": vin, "ts": at(ms), "request_id": "r", "seq": seq_at(ms), "data_id": data_id, "applied": True}
    spark_lake.append(IDS, [row])
    if outcome is not None:
        row = {"vin": vin, "seq": seq_at(ms), "outcome": outcome, "accepted_at": at(ms), "ended_at": at(ms + 1)}
        spark_lake.append(OUTCOMES, [row])


def sighting(data_id: str, seen_at: datetime) -> dict[str, Any]:
    seen = {"first_seen_at": seen_at, "last_seen_at": seen_at, "times_seen": 1}
    return {"data_id": data_id, **seen, "sha1": "0" * 40, "stored_at": seen_at}


@pytest.fixture(scope="module")
def made(new_spark_lake: Callable[[Path], SparkLake], tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Day 0: V1 and V2 get `old`, V2 acknowledges. Day 39: V3 needs `needed`, last seen on day 0; `fresh` is new."""
    lake = new_spark_lake(tmp_path_factory.mktemp("history") / "home")
    ensure_tables(lake.catalog)
    days = {"old": 1, "needed": 2, "done": 3, "fresh": 39 * DAY_MS}
    payloads = [
        {"data_id": d, "payload": d.encode(), "sha1": "0" * 40, "size_bytes": len(d), "seq": seq_at(ms), "first_seen_at": at(ms)}
        for d, ms in days.items()
    ]
    lake.append(DATA, payloads)
    lake.append(META, [sighting(d, at(ms)) for d, ms in days.items()])
    add_entry(lake, 4, "V1", "old")
    add_entry(lake, 5, "V2", "done", outcome="delivered")
    add_entry(lake, 39 * DAY_MS, "V3", "needed")
    return kept(lake)


@pytest.fixture
def history(made: Kept, redis_server: Server) -> SparkLake:
    return with_servers(made.renewed(), redis_server)


def test_expired_rows_go_and_data_of_younger_entries_stays(history: SparkLake, redis: Redis) -> None:
    Loader(redis, Policy.of(history.settings)).enqueue([("V1", [(seq_at(4), "")])], 0)
    would = garbage_run.discover(history.run("gc", NOW_MS), cutoff=at(NOW_MS - 30 * DAY_MS))
    assert would == (Removal(1, [f"V1 {seq_at(4)}"]), Removal(2, ["done", "old"], 7))
    assert len(history.rows(DATA)) == 4
    assert redis.zcard(keys.pending("V1")) == 1
    assert collect(history) == would
    assert history.rows(DATA, "data_id") == history.rows(META, "data_id") == ["fresh", "needed"]
    assert history.rows(OUTCOMES, "vin", "outcome") == [("V1", "expired"), ("V2", "delivered")]
    assert redis.zcard(keys.pending("V1")) == 0
    assert [gone.count for gone in collect(history)] == [0, 0]


@pytest.mark.parametrize("kept", [True, False], ids=["days and buckets", "no days"])
def test_custom_partitions_of_a_site_hide_no_open_entry(home: SparkLake, redis: Redis, kept: bool) -> None:
    ensure_tables(home.catalog)
    for table in (IDS, OUTCOMES):
        with home.catalog.load_table(table.identifier).update_spec() as partitions:
            partitions.add_field("vin", BucketTransform(8), "vin_bucket")
            if not kept:
                partitions.remove_field(f"{table.day_of}_day")
    add_entry(home, 4, "V1", "old")
    for n in range(2, 6):
        add_entry(home, n, f"V{n}", "done", outcome="delivered")

    expired, _ = collect(home)

    assert expired.sample == [f"V1 {seq_at(4)}"]


def test_an_entry_in_flight_stays_and_an_outcome_without_an_entry_hides_it_not(history: SparkLake, redis: Redis) -> None:
    """E.g. the trigger's segment was quarantined: outcomes and entries of that day are equally many, and one entry is open."""
    stray = {"vin": "V9", "seq": seq_at(6), "outcome": "delivered", "accepted_at": at(6), "ended_at": at(7)}
    history.append(OUTCOMES, [stray])
    Loader(redis, Policy.of(history.settings)).enqueue([("V1", [(seq_at(4), "")])], 0)
    redis.hset(keys.inflight("V1"), mapping={"seq": seq_at(4), "published_at": 1, "attempts": 1, "deadline": 2})
    for gone in (["done"], []):
        expired, data = collect(history)
        assert (expired.count, data.sample) == (0, gone)
    assert history.rows(DATA, "data_id") == ["fresh", "needed", "old"]
    assert history.rows(OUTCOMES, "vin") == ["V2", "V9"]


def test_a_collection_killed_anywhere_loses_nothing_and_the_next_one_completes(
    history: SparkLake, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    for module, name in ((garbage_run, "_remove_data"), (garbage_run, "publish"), (publication, "_fast_forward")):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, die)
            with pytest.raises(KeyboardInterrupt):
                collect(history)
        assert len(history.rows(DATA)) == 4
        assert history.rows(OUTCOMES, "vin") == ["V2"]
    finish_committed_runs(history.catalog)  # committed before it died, so the next run completes it
    assert history.rows(DATA, "data_id") == history.rows(META, "data_id") == ["fresh", "needed"]
    assert history.rows(OUTCOMES, "vin", "outcome") == [("V1", "expired"), ("V2", "delivered")]


def test_a_run_that_began_before_data_was_removed_is_repeated(history: SparkLake, redis: Redis) -> None:
    slow = Attempt.on_main(history.run("slow", NOW_MS))
    open_run(history.catalog, "slow", slow.base[SEGMENTS.name], at(NOW_MS))
    slow.append_to_ledger(SEGMENTS.arrow_schema.empty_table(), Ingested("slow"))
    collect(history, keep_data_because="this is about the entries")
    assert len(history.rows(DATA)) == 4
    with pytest.raises(Overtaken, match="slow"):
        publish(history.catalog, "slow")


@pytest.mark.usefixtures("unaudited")
def test_the_whole_job_ingests_recorded_segments_and_removes_unneeded_data(home: SparkLake, redis: Redis) -> None:
    home.write(Stream.DATA, [data(1, "old", b"old"), data(2, "needed", b"needed")])
    home.write(Stream.TRIGGER, [trigger(4, ["V1"], "old"), trigger(6, [7])])
    last = home.write(Stream.TRIGGER, [trigger(39 * DAY_MS, ["V3"], "needed")])
    more = {"archive_retention_days": 20.0, "quarantine_retention_days": 20.0, "snapshot_retention_days": 20.0}
    home.settings = home.settings.model_copy(update=more)
    ensure_tables(home.catalog)
    orphan = home.settings.home / "lake/warehouse/sdv/sdv_fanout_ids/data/orphan.parquet"
    orphan.parent.mkdir(parents=True, exist_ok=True)
    orphan.write_bytes(b"left by a crash")
    os.utime(orphan, (0, 0))

    done = collect_garbage(home.spark, home.catalog, home.settings, run_id="gc", now=at(NOW_MS))
    assert done.expired.sample == [f"V1 {seq_at(4)}"]
    assert done.data == Removal(kept_because=RECORDER_NOT_FLUSHED)  # no recorder responds here
    assert (done.quarantine.count, home.rows(QUARANTINE)) == (1, [])
    assert done.orphans[IDS.name].sample == [f"file:{orphan}"]
    assert not orphan.exists()
    assert home.file(last).exists()
    assert not home.file("trigger/dt=2026-03-01").exists()
    assert done.ledger.count == done.segments.count == 1
    assert set(done.ledger.sample).isdisjoint(home.rows(SEGMENTS, "path")), "pruned with its file"
    assert home.rows(IDS, "vin") == ["V1", "V3"]
    assert sum(gone.count for gone in done.snapshots.values()) == 0

    later = datetime.now(UTC) + timedelta(days=21)  # snapshots have wall-clock times
    assert expire_snapshots(home.spark, home.catalog, home.settings, now=later, dry_run=False)[IDS.name].count >= 1
    assert home.rows(IDS, "vin") == ["V1", "V3"]
    finish_committed_runs(home.catalog)
    assert home.ingest("afterwards").segments == 0


def test_the_decision_on_the_lake_matches_the_pure_function(home: SparkLake) -> None:
    """Spark and the functions under the property test decide alike on a random history, now and after its continuation.

    Some outcomes have no entry; some entries and outcomes arrive after a collection remembered which days are closed.
    """
    chance = random.Random(5)
    ensure_tables(home.catalog)
    entries, ended, last_seen = [], set(), {}
    for n in range(80):
        last_seen[f"d{n}"] = at(chance.randrange(NOW_MS))
    home.append(META, [sighting(d, s) for d, s in last_seen.items()])
    home.append(META, [sighting(d, s - timedelta(days=chance.randrange(40))) for d, s in last_seen.items()])
    cut = at(NOW_MS - 30 * DAY_MS)
    for more in (150, 3, 0):
        new = [Entry(f"V{chance.randrange(9)}", seq_at(ms), f"d{chance.randrange(60)}", at(ms)) for ms in chances(chance, more)]
        entries += new
        strays = [Entry(f"X{n}", seq_at(ms), "", at(ms)) for n, ms in enumerate(chances(chance, more // 2))]
        late = [e for e in entries if e.key not in ended and chance.random() < (0.8 if e in new else 0.3)]
        ended |= {e.key for e in late}
        home.append(IDS, [row_of(entry) for entry in new])
        home.append(OUTCOMES, [outcome_of(entry) for entry in late + strays])
        attempt = Attempt.on_main(home.run("gc", NOW_MS))
        rows = GarbageRows(attempt, cutoff=cut)
        expiring = overdue(entries, ended, cut=cut)
        found_overdue = rows.overdue().persist()
        assert {(r["vin"], r["seq"]) for r in found_overdue.collect()} == {e.key for e in expiring}
        ended_later = ended | {e.key for e in expiring}
        found = {r["data_id"] for r in rows.unneeded(attempt.main(OUTCOMES), overdue_are_ended=True).collect()}
        assert found == unneeded_data(last_seen, entries, ended_later, cut=cut)
        found = {r["data_id"] for r in rows.unneeded(attempt.main(OUTCOMES)).collect()}
        assert found == unneeded_data(last_seen, entries, ended, cut=cut)
        assert found < set(last_seen)
        assert rows.remember_closed_days(found_overdue) == len({e.accepted_at.date() for e in expiring})
    known = remembered_closed_days(home.catalog, attempt.base)
    assert known
    assert not known.keys() & {e.accepted_at.date() for e in expiring}


def chances(chance: random.Random, count: int) -> list[int]:
    """Milliseconds from few days, so that some days are closed and others are not."""
    return [chance.randrange(20) * 2 * DAY_MS + chance.randrange(DAY_MS // 2) for _ in range(count)]


def row_of(e: Entry) -> dict[str, Any]:
    return {"vin": e.vin, "ts": e.accepted_at, "request_id": "r", "seq": e.seq, "data_id": e.data_id, "applied": True}


def outcome_of(e: Entry) -> dict[str, Any]:
    return {"vin": e.vin, "seq": e.seq, "outcome": "delivered", "accepted_at": e.accepted_at, "ended_at": e.accepted_at}


def test_the_cache_of_closed_days_survives_ingest_and_compaction(history: SparkLake, redis: Redis) -> None:
    collect(history)
    collect(history)
    history.write(Stream.TRIGGER, [trigger(39 * DAY_MS, ["V4"], "fresh")])
    history.write(Stream.OUTCOME, [outcome(39 * DAY_MS, "V3", 39 * DAY_MS)])
    history.ingest()
    for table in (IDS, OUTCOMES):
        name = f"{history.settings.catalog_name}.{table.identifier}"
        options = "options => map('rewrite-all', 'true')"
        history.spark.sql(f"CALL {history.settings.catalog_name}.system.rewrite_data_files(table => '{name}', {options})")
    base = main_snapshots(history.catalog, history.catalog.load_table(SEGMENTS.identifier))
    assert remembered_closed_days(history.catalog, base) == {at(4).date(): 2}


def test_a_collection_reads_its_own_snapshots_despite_newer_commits(history: SparkLake, redis: Redis) -> None:
    attempt = Attempt.on_main(history.run("gc", NOW_MS))
    rows = GarbageRows(attempt, cutoff=at(NOW_MS - 30 * DAY_MS))
    history.append(OUTCOMES, [outcome_of(Entry("V1", seq_at(4), "old", at(4)))])
    add_entry(history, 7, "V4", "old")
    found = rows.overdue()
    assert [row["vin"] for row in found.collect()] == ["V1"]
    assert rows.remember_closed_days(found) == 1
    assert remembered_closed_days(history.catalog, attempt.base) == {}
