"""Processes that die, servers that go away, vehicles that keep silent: nothing is lost, and it goes on by itself."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from contracts import keys
from contracts.outcomes import Outcome
from contracts.topics import Sign
from tests.dispatcher.platform import Platform, a_platform, healthy
from tests.dispatcher.vehicle import Vehicle
from tests.servers import start_redis, wait_until


@pytest.fixture
def brisk(tmp_path: Path) -> Iterator[Platform]:
    """A platform whose deadlines pass quickly, with one dispatcher."""
    with a_platform(tmp_path, ack_deadline_seconds=1, ack_deadline_max_seconds=2, parked_retry_seconds=1) as platform:
        platform.start_dispatcher()
        yield platform


def fleet(platform: Platform, count: int) -> list[Vehicle]:
    vehicles = [Vehicle(platform, protocol=(4, 5)[n % 2]).connect() for n in range(count)]
    for vehicle in vehicles:
        vehicle.say(Sign.ONLINE)
    wait_until(lambda: all(platform.presence(v.vin).get("connected") == "yes" for v in vehicles))
    return vehicles


def got_at_least(vehicles: list[Vehicle], count: int) -> bool:
    return sum(len(v.got) for v in vehicles) >= count


def all_delivered(platform: Platform, vehicles: list[Vehicle], seqs: list[int], *, within_s: float = 40) -> None:
    """Every vehicle has every entry, the first copies in seq order, and an outcome for each is on its way to the recorder."""
    wanted = {(v.vin, seq) for v in vehicles for seq in seqs}

    def ended() -> bool:
        return {(r.vin, r.seq) for r in platform.outcomes() if r.outcome is Outcome.DELIVERED} >= wanted

    wait_until(ended, within_s=within_s, what="every entry to be delivered")
    for vehicle in vehicles:
        assert platform.pending(vehicle.vin) == []
        assert platform.in_flight(vehicle.vin) is None
        if vehicle.protocol == 5:
            assert list(dict.fromkeys(got.seq for got in vehicle.got)) == seqs


def test_a_silent_vehicle_gets_it_again_after_its_deadline_with_the_same_seq(brisk: Platform) -> None:
    vehicle = Vehicle(brisk, protocol=5)
    vehicle.acks = False
    seq = brisk.enqueue(vehicle.vin)
    vehicle.connect().say(Sign.ONLINE)

    got = vehicle.waits_for(3)
    assert [g.seq for g in got] == [seq] * len(got)
    vehicle.ack(got[0])  # of a copy that was released long ago: it still ends the entry
    wait_until(lambda: brisk.pending(vehicle.vin) == [])
    assert {(r.seq, r.outcome) for r in brisk.outcomes()} == {(seq, Outcome.DELIVERED)}
    vehicle.leave()


def test_used_up_attempts_fail_the_entry_and_let_the_next_one_go(tmp_path: Path) -> None:
    with a_platform(tmp_path, ack_deadline_seconds=0.5, ack_deadline_max_seconds=0.5, max_attempts=2) as platform:
        platform.start_dispatcher()
        vehicle = Vehicle(platform, protocol=5)
        vehicle.acks = False
        failing, following = platform.enqueue(vehicle.vin), platform.enqueue(vehicle.vin)
        vehicle.connect().say(Sign.ONLINE)

        got = vehicle.waits_for(3)
        assert [g.seq for g in got[:3]] == [failing, failing, following]
        failed = wait_until(lambda: [r for r in platform.outcomes() if r.seq == failing])[0]
        assert (failed.outcome, failed.attempts, failed.reason) == (Outcome.FAILED, 2, "not acknowledged after 2 attempts")
        assert platform.pending(vehicle.vin) == [following]
        vehicle.leave()


def test_an_absent_vehicle_whose_session_lives_keeps_its_entry_in_flight_beyond_the_deadline(brisk: Platform) -> None:
    vehicle = Vehicle(brisk, protocol=5)
    vehicle.acks = False
    seq = brisk.enqueue(vehicle.vin)
    vehicle.connect().say(Sign.ONLINE)
    vehicle.waits_for(1)
    vehicle.crash()
    copies = len(vehicle.got)
    wait_until(lambda: brisk.presence(vehicle.vin).get("connected") == "no")
    index = keys.deadlines(keys.shard_of(vehicle.vin, brisk.settings.wake_shards))
    until = float(brisk.presence(vehicle.vin)["session_until"])
    with brisk.blocking() as redis:  # it was looked at when its deadline had passed, and put off until the session's end
        wait_until(lambda: redis.zscore(index, vehicle.vin) == until)
    assert brisk.in_flight(vehicle.vin) == seq

    vehicle.acks = True
    vehicle.connect(subscribe=False).say(Sign.HEARTBEAT)
    wait_until(lambda: brisk.pending(vehicle.vin) == [])
    assert all(got.dup for got in vehicle.got[copies:])
    vehicle.leave()


def test_kill_9_in_a_batch_loses_nothing(brisk: Platform) -> None:
    vehicles = fleet(brisk, 10)
    seqs = []
    for n in range(6):
        seqs.append(brisk.enqueue(*(v.vin for v in vehicles), request_id=f"task_{n}"))
        if n in (1, 3):
            brisk.dispatchers[0].kill()
            brisk.start_dispatcher()
    all_delivered(brisk, vehicles, seqs)
    for vehicle in vehicles:
        vehicle.leave()


def test_kill_9_while_acknowledgements_are_under_way_loses_nothing(brisk: Platform) -> None:
    vehicles = fleet(brisk, 6)
    seqs = [brisk.enqueue(*(v.vin for v in vehicles), request_id=f"task_{n}") for n in range(30)]
    for least in (30, 60, 90):
        wait_until(partial(got_at_least, vehicles, least))
        brisk.dispatchers[0].kill()
        brisk.start_dispatcher()
    all_delivered(brisk, vehicles, seqs)
    for vehicle in vehicles:
        vehicle.leave()


def test_redis_away_is_said_and_waited_for(brisk: Platform) -> None:
    vehicles = fleet(brisk, 4)
    first = brisk.enqueue(*(v.vin for v in vehicles), request_id="before")
    for vehicle in vehicles:
        vehicle.waits_for(1)
    wait_until(lambda: len(brisk.outcomes()) == len(vehicles))
    brisk.redis.stop()
    for vehicle in vehicles:
        vehicle.say(Sign.HEARTBEAT)  # must be carried out, so it is noticed that Redis is away
    port = brisk.settings.dispatcher_port
    wait_until(lambda: not healthy(port), what="the dispatcher to say that it is not ready")
    assert brisk.metric("manifold_dispatcher_redis_up") == 0

    brisk.redis = start_redis(brisk.home / "redis", port=brisk.settings.redis_port, append_only=True)
    wait_until(lambda: healthy(port), what="the dispatcher to be ready again")
    second = brisk.enqueue(*(v.vin for v in vehicles), request_id="after")
    all_delivered(brisk, vehicles, [first, second])
    for vehicle in vehicles:
        vehicle.leave()


def test_a_wiped_redis_is_served_again_and_late_acknowledgements_are_recorded(brisk: Platform) -> None:
    vehicle = Vehicle(brisk, protocol=5)
    vehicle.acks = False
    lost = brisk.enqueue(vehicle.vin)
    vehicle.connect().say(Sign.ONLINE)
    got = vehicle.waits_for(1)
    with brisk.blocking() as redis:
        redis.flushall()
    vehicle.ack(got[0])
    wait_until(lambda: [(r.seq, r.outcome) for r in brisk.outcomes()] == [(lost, Outcome.DELIVERED)])

    vehicle.acks = True
    vehicle.say(Sign.HEARTBEAT)
    wait_until(lambda: brisk.presence(vehicle.vin).get("connected") == "heard")
    following = brisk.enqueue(vehicle.vin)  # wakes by a stream whose group the dispatcher had to make again
    wait_until(lambda: following in {r.seq for r in brisk.outcomes()})
    vehicle.leave()


def test_a_broker_that_restarts_is_waited_for(brisk: Platform) -> None:
    vehicles = fleet(brisk, 4)
    for vehicle in vehicles:
        vehicle.acks = False
    first = brisk.enqueue(*(v.vin for v in vehicles), request_id="before")
    for vehicle in vehicles:
        vehicle.waits_for(1)
        vehicle.crash()
        vehicle.acks = True
    brisk.restart_broker()
    second = brisk.enqueue(*(v.vin for v in vehicles), request_id="after")
    wait_until(lambda: healthy(brisk.settings.dispatcher_port), within_s=30)
    for vehicle in vehicles:
        vehicle.connect().say(Sign.ONLINE)
    all_delivered(brisk, vehicles, [first, second])
    for vehicle in vehicles:
        vehicle.leave()


def test_replicas_share_the_work_and_one_dies(brisk: Platform) -> None:
    brisk.start_dispatcher(1)
    vehicles = fleet(brisk, 10)
    seqs = [brisk.enqueue(*(v.vin for v in vehicles), request_id=f"task_{n}") for n in range(20)]
    wait_until(partial(got_at_least, vehicles, 40))
    brisk.dispatchers[0].kill()
    all_delivered(brisk, vehicles, seqs)
    for vehicle in vehicles:
        vehicle.leave()


def test_two_healthy_replicas_never_deliver_twice(tmp_path: Path) -> None:
    with a_platform(tmp_path) as platform:
        platform.start_dispatcher(0)
        platform.start_dispatcher(1)
        vehicles = fleet(platform, 10)
        seqs = []
        for n in range(20):
            seqs.append(platform.enqueue(*(v.vin for v in vehicles), request_id=f"task_{n}"))
            for vehicle in vehicles[n % 10 :: 3]:
                vehicle.say(Sign.HEARTBEAT)
        all_delivered(platform, vehicles, seqs)
        assert [len(v.got) for v in vehicles] == [len(seqs)] * len(vehicles)
        for vehicle in vehicles:
            vehicle.leave()


def test_asked_to_end_it_finishes_what_is_in_hand(brisk: Platform) -> None:
    vehicles = fleet(brisk, 5)
    seq = brisk.enqueue(*(v.vin for v in vehicles))
    wait_until(lambda: any(v.got for v in vehicles))
    server = brisk.dispatchers[0]
    server.stop()
    assert server.process.returncode == 0
    brisk.start_dispatcher()
    all_delivered(brisk, vehicles, [seq])
    for vehicle in vehicles:
        vehicle.leave()


def test_a_port_that_is_taken_is_named(brisk: Platform) -> None:
    with pytest.raises(RuntimeError, match=f"cannot listen on 127.0.0.1:{brisk.settings.dispatcher_port}"):
        brisk.start_dispatcher_on_the_same_port()
