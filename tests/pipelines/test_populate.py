"""Populate and rebuild: what the lake has pending comes into the queues once, and what has ended does not come back."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from redis import Redis

from contracts import keys
from contracts.envelope import Stream
from contracts.outcomes import Outcome, OutcomeRecord
from contracts.settings import Settings
from pipelines import populate as population
from pipelines.populate import Populated, populate
from tests.pipelines.conftest import Place
from tests.pipelines.makers import at, outcome, seq_at, trigger
from tests.servers import Server


@pytest.fixture
def redis(redis_server: Server) -> Iterator[Redis]:
    with Redis(port=redis_server.port) as client:
        client.flushall()
        yield client


@pytest.fixture
def filled(place: Place, redis: Redis, redis_server: Server) -> Place:
    """V1 has seq 1 (express brought it) and 2, 3 (it did not); V2 has 2, which ended; V3 has an old entry."""
    old_ms = -31 * 86_400_000
    place.write(Stream.TRIGGER, [trigger(old_ms, ["V3"])])
    place.write(Stream.TRIGGER, [trigger(1, ["V1"], applied=True), trigger(2, ["V1", "V2"]), trigger(3, ["V1"])])
    place.write(Stream.OUTCOME, [outcome(5, "V2", 2)])
    place.ingest("first")
    settings = Settings(home=place.settings.home, redis_port=redis_server.port)
    return replace(place, settings=settings)


def run(place: Place, *, everything: bool = False, ms: int = 100) -> Populated:
    return populate(place.spark, place.catalog, place.settings, now=at(ms), everything=everything)


def queued(redis: Redis, vin: str) -> list[int]:
    found = redis.zrange(keys.pending(vin), 0, -1)
    assert isinstance(found, list)
    return [int(seq) for seq in found]


@pytest.mark.parametrize("few", [0, population.FEW], ids=["many entries", "few entries"])
def test_what_express_left_over_is_queued_in_seq_order(
    filled: Place, redis: Redis, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(population, "FEW", few)
    done = run(filled)
    assert queued(redis, "V1") == [seq_at(2), seq_at(3)]
    assert queued(redis, "V2") == queued(redis, "V3") == []
    assert (done.vehicles, done.offered, done.queued) == (1, 2, 2)
    assert redis.hgetall(keys.trigger(seq_at(3))) == {b"request_id": b"task_a_3", b"data_id": b"d1"}
    assert not redis.exists(keys.trigger(seq_at(1)))
    assert not redis.exists(keys.LOADED)


def test_populating_again_adds_nothing(filled: Place, redis: Redis) -> None:
    run(filled)
    assert run(filled).queued == 0
    assert queued(redis, "V1") == [seq_at(2), seq_at(3)]


def test_only_what_came_since_is_offered_the_next_time(filled: Place, redis: Redis) -> None:
    hour = 3_600_000
    later = hour * 24 * 365 * 20  # well after the snapshots, which the wall clock has dated
    filled.settings = filled.settings.model_copy(update={"retention_days": 36_500.0})
    run(filled, ms=later)
    filled.write(Stream.TRIGGER, [trigger(9, ["V9"])])
    filled.ingest("second")
    assert run(filled, ms=later).offered == 1
    assert queued(redis, "V9") == [seq_at(9)]


def test_a_vehicle_that_is_here_is_woken(filled: Place, redis: Redis) -> None:
    redis.hset(keys.presence("V1"), mapping={"connected": "1", "since": "1", "heard": str(round(at(90).timestamp() * 1000))})
    run(filled)
    shard = keys.shard_of("V1", filled.settings.wake_shards)
    assert [fields for _, fields in redis.xrange(keys.wake(shard))] == [{b"owners": b"V1"}]


def test_what_ended_lately_does_not_come_back_although_the_lake_has_not_heard(filled: Place, redis: Redis) -> None:
    redis.zadd(keys.done("V1"), {str(seq_at(2)): seq_at(2)})
    run(filled)
    assert queued(redis, "V1") == [seq_at(3)]
    assert redis.zcard(keys.done("V1")) == 1


def test_the_queues_forget_what_the_lake_knows(filled: Place, redis: Redis) -> None:
    redis.zadd(keys.done("V2"), {str(seq_at(2)): seq_at(2), str(seq_at(7)): seq_at(7)})
    assert run(filled).forgotten == 1
    assert redis.zrange(keys.done("V2"), 0, -1) == [str(seq_at(7)).encode()]
    redis.zadd(keys.done("V1"), {str(seq_at(3)): seq_at(3)})
    filled.write(Stream.OUTCOME, [outcome(8, "V1", 3)])
    filled.ingest("second")
    assert run(filled).forgotten == 1
    assert queued(redis, "V1") == [seq_at(2), seq_at(3)]  # still there from before it ended: only the dispatcher takes it out


def test_a_rebuild_brings_everything_that_is_pending_and_marks_the_queues_as_loaded(filled: Place, redis: Redis) -> None:
    assert run(filled, everything=True).queued == 3
    assert queued(redis, "V1") == [seq_at(1), seq_at(2), seq_at(3)]
    assert queued(redis, "V2") == queued(redis, "V3") == []
    assert redis.exists(keys.LOADED)
    redis.flushall()
    assert run(filled, everything=True).queued == 3
    assert run(filled, everything=True).queued == 0


def test_with_compaction_the_place_of_an_older_entry_is_told_as_an_outcome(filled: Place, redis: Redis) -> None:
    filled.settings = filled.settings.model_copy(update={"compaction": "request_id"})
    filled.write(Stream.TRIGGER, [trigger(9, ["V1"], request_id="task_a_3")])
    filled.ingest("second")
    assert run(filled).superseded == 1
    assert queued(redis, "V1") == [seq_at(2), seq_at(9)]
    ((_, fields),) = redis.xrange(keys.OUTCOMES)
    record = OutcomeRecord.from_wire(fields[b"o"])
    assert (record.vin, record.seq, record.outcome) == ("V1", seq_at(3), Outcome.SUPERSEDED)


def test_a_lake_without_rows_populates_nothing(place: Place, redis: Redis, redis_server: Server) -> None:
    place.ingest("nothing")
    place.settings = Settings(home=place.settings.home, redis_port=redis_server.port)
    assert run(place, everything=True) == Populated()
    assert redis.exists(keys.LOADED)
