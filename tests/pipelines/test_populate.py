"""Populate and rebuild: pending entries of the lake are queued once, and ended ones do not return."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError

from manifold.archive.recorded import RecordedSegments
from manifold.archive.store import Archive
from manifold.contracts import keys
from manifold.contracts.campaigns import Cancel, Command, Pause, Resume, encode
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import seq_of, unix_ms_of
from manifold.contracts.tables import IDS, OUTCOMES, SEGMENTS
from manifold.contracts.topics import CAMPAIGN
from manifold.lake.catalog import ensure_tables
from manifold.runtime.redis import advice
from manifold.sandbox.platform.bootstrap import prepare
from manifold.settings import Settings
from pipelines.cli import PERMANENT, main
from pipelines.populate import load as population
from pipelines.populate.ids_news import FORGET_AFTER, is_behind
from pipelines.populate.load import Populated, populate
from tests.pipelines.conftest import Kept, SparkLake, kept
from tests.pipelines.makers import at, seq_at
from tests.support.servers import Server


def add_ids(spark_lake: SparkLake, *entries: tuple[int, str, bool], request_id: str = "") -> None:
    """Append entries (milliseconds, vin, whether directly enqueued) to the lake."""
    rows = [
        {
            "vin": vin,
            "ts": at(ms),
            "request_id": request_id or f"task_a_{ms}",
            "seq": seq_at(ms),
            "data_id": "d1",
            "applied": applied,
        }
        for ms, vin, applied in entries
    ]
    spark_lake.append(IDS, rows)


def add_outcome(spark_lake: SparkLake, vin: str, ms: int) -> None:
    """Append to the lake that the entry of `ms` was delivered."""
    row = {"vin": vin, "seq": seq_at(ms), "outcome": "delivered", "accepted_at": at(ms), "ended_at": at(ms + 5)}
    spark_lake.append(OUTCOMES, [row])


@pytest.fixture(scope="module")
def made(new_spark_lake: Callable[[Path], SparkLake], tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """V1 has seq 1 queued, 2 and 3 not; V2's 2 has ended; V3's entry is past its retention."""
    lake = new_spark_lake(tmp_path_factory.mktemp("filled") / "home")
    ensure_tables(lake.catalog)
    old_ms = -31 * 86_400_000
    add_ids(lake, (1, "V1", True), (2, "V1", False), (2, "V2", False), (3, "V1", False), (old_ms, "V3", False))
    add_outcome(lake, "V2", 2)
    return kept(lake)


@pytest.fixture
def filled(made: Kept, redis: Redis, redis_server: Server) -> SparkLake:
    lake = made.renewed()
    redis.set(keys.LOADED, 1)
    return replace(lake, settings=Settings(home=lake.settings.home, redis_port=redis_server.port))


def run(spark_lake: SparkLake, *, everything: bool = False, ms: int = 100) -> Populated:
    return populate(spark_lake.spark, spark_lake.catalog, spark_lake.settings, now=at(ms), everything=everything)


def queued(redis: Redis, vin: str) -> list[int]:
    found: Any = redis.zrange(keys.pending(vin), 0, -1)
    return [int(seq) for seq in found]


def records(redis: Redis, stream: str) -> list[dict[bytes, bytes]]:
    found: Any = redis.xrange(stream)
    return [fields for _, fields in found]


@pytest.mark.parametrize("few", [0, population.MAX_BROADCAST_ROWS], ids=["many entries", "few entries"])
def test_entries_left_over_by_direct_enqueue_are_queued_in_seq_order(
    filled: SparkLake, redis: Redis, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(population, "MAX_BROADCAST_ROWS", few)
    done = run(filled)
    assert queued(redis, "V1") == [seq_at(2), seq_at(3)]
    assert queued(redis, "V2") == queued(redis, "V3") == []
    assert (done.vehicles, done.offered, done.queued) == (1, 2, 2)
    assert redis.hgetall(keys.trigger(seq_at(3))) == {b"request_id": b"task_a_3", b"data_id": b"d1"}
    assert not redis.exists(keys.trigger(seq_at(1)))


def test_unloaded_queues_are_left_alone_and_a_rebuild_loads_all_in_order(filled: SparkLake, redis: Redis) -> None:
    redis.delete(keys.LOADED)
    redis.zadd(keys.done("V2"), {str(seq_at(2)): 1})
    done = run(filled)
    assert redis.keys("*") == [keys.done("V2").encode()]  # no progress is noted either
    assert (done.rebuild_needed, done.offered, done.forgotten) == (True, 0, 0)
    assert is_behind(redis, filled.catalog, filled.settings, at(100))  # so that alerts repeat
    assert not run(filled, everything=True).rebuild_needed
    assert queued(redis, "V1") == [seq_at(1), seq_at(2), seq_at(3)]


def test_a_rebuild_loads_brakes_first_and_knows_releases_again(
    filled: SparkLake, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = at(5_000)
    row = {"vin": "V9", "ts": at(4), "request_id": "c", "seq": seq_at(4), "data_id": "d1", "applied": True}
    filled.append(IDS, [row | {"campaign": "c", "wave": 0, "step": 1, "until": until}])
    orders: list[Command] = [Pause("c", "ann"), Resume("c", "ann"), Cancel("other", "ann")]
    envelopes = [Envelope(seq_at(5 + n), at(5 + n), Stream.CAMPAIGN, CAMPAIGN, encode(each)) for n, each in enumerate(orders)]
    RecordedSegments(Archive(filled.settings.archive)).seal(envelopes, 0)
    redis.flushall()
    brakes: list[object] = []

    def load(*arguments: Any) -> Any:
        brakes.append(redis.hgetall(keys.BRAKES))
        return _load_entries(*arguments)

    _load_entries = population._load_entries
    monkeypatch.setattr(population, "_load_entries", load)
    run(filled, everything=True)

    assert brakes == [{b"c": f"{seq_at(5)} pause".encode(), b"other": f"{seq_at(7)} cancel".encode()}]
    until_ms = round(until.timestamp() * 1000)
    found = {b"request_id": b"c", b"data_id": b"d1", b"campaign": b"c", b"until": str(until_ms).encode()}
    assert redis.hgetall(keys.trigger(seq_at(4))) == found
    assert redis.zrange(keys.WINDOWS, 0, -1, withscores=True) == [(str(seq_at(4)).encode(), until_ms)]
    assert redis.zrange(keys.releases("c"), 0, -1) == [str(seq_at(4)).encode()]


@pytest.mark.usefixtures("shared_session")
def test_the_stage_fails_and_says_what_the_queues_need(
    filled: SparkLake, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    redis.delete(keys.LOADED)
    env = {"MANIFOLD_HOME": str(filled.settings.home), "MANIFOLD_REDIS_PORT": str(filled.settings.redis_port)}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in env.items():
            patched.setenv(name, value)
        assert main(["populate"]) == PERMANENT
    assert "rebuild needed" in capsys.readouterr().err


def test_populating_again_adds_nothing(filled: SparkLake, redis: Redis) -> None:
    run(filled)
    assert run(filled).queued == 0
    assert queued(redis, "V1") == [seq_at(2), seq_at(3)]


def test_only_entries_since_the_last_time_are_offered(filled: SparkLake, redis: Redis) -> None:
    hour = 3_600_000
    later = hour * 24 * 365 * 20  # well after the snapshots' wall-clock times
    filled.settings = filled.settings.model_copy(update={"retention_days": 36_500.0})
    run(filled, ms=later)
    add_ids(filled, (9, "V9", False))
    assert run(filled, ms=later).offered == 1
    assert queued(redis, "V9") == [seq_at(9)]


def test_a_connected_vehicle_is_woken(filled: SparkLake, redis: Redis) -> None:
    redis.hset(keys.presence("V1"), mapping={"connected": "yes"})
    run(filled)
    shard = keys.shard_of("V1", filled.settings.wake_shards)
    assert records(redis, keys.wake(shard)) == [{b"owners": b"V1"}]


def test_a_recently_ended_entry_does_not_return_before_the_lake_knows(filled: SparkLake, redis: Redis) -> None:
    redis.zadd(keys.done("V1"), {str(seq_at(2)): seq_at(2)})
    run(filled)
    assert queued(redis, "V1") == [seq_at(3)]
    assert redis.zcard(keys.done("V1")) == 1


def test_the_queues_forget_outcomes_that_the_lake_has(filled: SparkLake, redis: Redis) -> None:
    redis.zadd(keys.done("V2"), {str(seq_at(2)): seq_at(2), str(seq_at(7)): seq_at(7)})
    assert run(filled).forgotten == 1
    assert redis.zrange(keys.done("V2"), 0, -1) == [str(seq_at(7)).encode()]
    redis.zadd(keys.done("V1"), {str(seq_at(3)): seq_at(3)})
    add_outcome(filled, "V1", 3)
    assert run(filled).forgotten == 1
    assert queued(redis, "V1") == [seq_at(2), seq_at(3)]  # still queued from before its end: only the dispatcher removes it


def test_a_rebuild_loads_every_pending_entry_and_marks_the_queues_as_loaded(filled: SparkLake, redis: Redis) -> None:
    assert run(filled, everything=True).queued == 3
    assert queued(redis, "V1") == [seq_at(1), seq_at(2), seq_at(3)]
    assert queued(redis, "V2") == queued(redis, "V3") == []
    assert redis.exists(keys.LOADED)
    redis.flushall()
    assert run(filled, everything=True).queued == 3
    assert run(filled, everything=True).queued == 0


def test_a_rebuild_states_the_last_trigger_of_each_recorder_in_the_lake(filled: SparkLake, redis: Redis) -> None:
    first, second, other = seq_at(1), seq_at(3), seq_of(unix_ms_of(seq_at(2)), 7, 0)
    rows = [("data", seq_at(9)), ("trigger", second), ("trigger", first), ("trigger", other), ("ecq", seq_at(7))]
    segments = [
        {"path": f"{n}", "stream": stream, "messages": 1, "first_seq": seq, "last_seq": seq, "run_id": "r", "ingested_at": at(4)}
        for n, (stream, seq) in enumerate(rows)
    ]
    filled.append(SEGMENTS, segments)
    redis.delete(keys.LOADED)
    run(filled, everything=True)
    assert redis.hgetall(keys.REBUILT_UP_TO) == {b"0": b"%d" % second, b"7": b"%d" % other, b"ecq/0": b"%d" % seq_at(7)}


def test_an_outcome_is_remembered_while_a_recorder_may_offer_its_entry(filled: SparkLake, redis: Redis) -> None:
    redis.zadd(keys.done("V2"), {str(seq_at(2)): 1})
    (mark,) = keys.watermark_keys(0, of_cluster=False)
    redis.set(mark, f"1 {seq_at(1)}")
    assert run(filled).forgotten == 0
    assert is_behind(redis, filled.catalog, filled.settings, at(100))
    redis.set(mark, f"1 {seq_at(2)}")
    assert run(filled).forgotten == 1


@pytest.mark.parametrize("everything", [True, False])
def test_a_vehicle_with_corrupt_keys_is_named_and_others_are_loaded(filled: SparkLake, redis: Redis, everything: bool) -> None:
    add_ids(filled, (4, "V4", False), (5, "V5", False))
    redis.set(keys.pending("V1"), "something else")
    redis.set(keys.done("V2"), "something else")
    done = run(filled, everything=everything)

    assert (done.spoilt, done.spoilt_named) == (1, (f"V1: {keys.pending('V1')} is a string",))
    assert str(done.problem).endswith("is a string: delete these keys, then run `manifold rebuild`")
    assert queued(redis, "V4") + queued(redis, "V5") == [seq_at(4), seq_at(5)]
    assert redis.exists(keys.LOADED)

    redis.delete(keys.pending("V1"), keys.done("V2"))
    assert run(filled, everything=True).problem is None
    assert queued(redis, "V1") == [seq_at(1), seq_at(2), seq_at(3)]


def test_a_corrupt_trigger_key_is_named_and_every_entry_is_loaded(filled: SparkLake, redis: Redis) -> None:
    add_ids(filled, (4, "V4", False), (5, "V5", False))
    redis.sadd(keys.trigger(seq_at(4)), "something else")
    done = run(filled, everything=True)

    assert (done.spoilt_triggers, done.spoilt_triggers_named) == (1, (keys.trigger(seq_at(4)),))
    assert done.problem is None  # dispatchers read the trigger from the lake
    assert queued(redis, "V4") + queued(redis, "V5") == [seq_at(4), seq_at(5)]
    assert redis.hget(keys.trigger(seq_at(5)), "data_id")
    assert redis.exists(keys.LOADED)


def test_with_compaction_a_superseded_entry_is_recorded_as_an_outcome(filled: SparkLake, redis: Redis) -> None:
    filled.settings = filled.settings.model_copy(update={"compaction": "request_id"})
    add_ids(filled, (9, "V1", False), request_id="task_a_3")
    assert run(filled).superseded == 1
    assert queued(redis, "V1") == [seq_at(2), seq_at(9)]
    (fields,) = records(redis, keys.OUTCOMES)
    record = OutcomeRecord.from_wire(fields[b"o"])
    assert (record.vin, record.seq, record.outcome) == ("V1", seq_at(3), Outcome.SUPERSEDED)


def test_a_lake_without_rows_populates_nothing(spark_lake: SparkLake, redis: Redis, redis_server: Server) -> None:
    ensure_tables(spark_lake.catalog)
    spark_lake.settings = Settings(home=spark_lake.settings.home, redis_port=redis_server.port)
    assert run(spark_lake, everything=True) == Populated()
    assert redis.exists(keys.LOADED)


def test_directly_enqueued_entries_are_recognised_without_reading_them(spark_lake: SparkLake, redis: Redis) -> None:
    ensure_tables(spark_lake.catalog)
    redis.set(keys.LOADED, 1)
    add_ids(spark_lake, (1, "V1", True), (2, "V2", True))
    assert not is_behind(redis, spark_lake.catalog, spark_lake.settings, at(100))
    add_ids(spark_lake, (3, "V3", False))
    assert is_behind(redis, spark_lake.catalog, spark_lake.settings, at(100))


def test_ended_entries_are_forgotten_hourly_and_not_after_each_run(
    spark_lake: SparkLake, redis: Redis, redis_server: Server
) -> None:
    ensure_tables(spark_lake.catalog)
    redis.set(keys.LOADED, 1)
    add_outcome(spark_lake, "V1", 1)
    seen = spark_lake.catalog.load_table(OUTCOMES.identifier).current_snapshot()
    assert seen is not None
    redis.set(keys.DONE_PRUNED, seen.snapshot_id)
    add_outcome(spark_lake, "V1", 2)
    now = datetime.fromtimestamp(seen.timestamp_ms / 1000, UTC)
    assert not is_behind(redis, spark_lake.catalog, spark_lake.settings, now)
    assert is_behind(redis, spark_lake.catalog, spark_lake.settings, now + FORGET_AFTER)


def test_a_fresh_platform_forgets_no_ended_entries_in_its_first_hour(
    spark_lake: SparkLake, redis: Redis, redis_server: Server
) -> None:
    spark_lake.settings = spark_lake.settings.model_copy(update={"redis_port": redis_server.port})
    prepare(spark_lake.settings, fresh=True, given_up=Event())
    add_ids(spark_lake, (1, "V1", True))
    add_outcome(spark_lake, "V1", 1)
    now = datetime.now(UTC)
    assert not is_behind(redis, spark_lake.catalog, spark_lake.settings, now)
    assert is_behind(redis, spark_lake.catalog, spark_lake.settings, now + FORGET_AFTER + timedelta(minutes=1))


def test_a_full_redis_is_named_with_limit_and_remedy_and_loading_resumes_later(
    spark_lake: SparkLake, redis: Redis, redis_server: Server
) -> None:
    ensure_tables(spark_lake.catalog)
    add_ids(spark_lake, *((n % 4, f"V{n // 4}", False) for n in range(20_000)))
    settings = Settings(home=spark_lake.settings.home, redis_port=redis_server.port)
    used: Any = redis.info("memory")
    limit = used["used_memory"] + (1 << 18)
    spark = spark_lake.spark
    redis.config_set("maxmemory", limit)
    try:
        with pytest.raises(OutOfMemoryError) as refused:
            populate(spark, spark_lake.catalog, settings, now=at(30_000), everything=True)
        remedy = advice(settings.redis, refused.value)
    finally:
        redis.config_set("maxmemory", 0)
    where = rf"Redis at 127\.0\.0\.1:{redis_server.port} is out of memory \(\d+ bytes of maxmemory={limit}\)"
    assert re.fullmatch(f"{where}: raise its maxmemory, then run this again; nothing is lost", remedy)
    assert not redis.exists(keys.LOADED)
    before = sum(len(queued(redis, f"V{n}")) for n in range(5000))
    assert populate(spark, spark_lake.catalog, settings, now=at(30_000), everything=True).queued == 20_000 - before > 0
