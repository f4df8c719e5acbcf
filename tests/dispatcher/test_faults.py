"""Killed processes and unreachable servers: nothing is lost, and service resumes by itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from manifold.contracts import keys
from manifold.contracts.outcomes import Outcome
from manifold.contracts.topics import Sign
from tests.dispatcher.platform import Platform, a_platform, healthy
from tests.dispatcher.vehicle import Vehicle
from tests.support.servers import start_redis, wait_until


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform with short deadlines."""
    home = tmp_path_factory.mktemp("faults")
    with a_platform(home, ack_deadline_seconds=1, ack_deadline_max_seconds=2, parked_retry_seconds=1) as platform:
        yield platform


@pytest.fixture
def brisk(shared: Platform) -> Platform:
    """The same platform with one dispatcher alive, whatever the previous test left behind."""
    for replica in [replica for replica in shared.dispatchers if replica]:
        shared.dispatchers.pop(replica).kill()
    first = shared.dispatchers.get(0)
    if first is None or first.process.poll() is not None:
        shared.start_dispatcher()
    return shared


@contextmanager
def fleet(platform: Platform, count: int) -> Iterator[list[Vehicle]]:
    """This many connected and subscribed vehicles."""
    vehicles = [Vehicle(platform, protocol=(4, 5)[n % 2]).connect() for n in range(count)]
    for vehicle in vehicles:
        vehicle.say(Sign.ONLINE)
    wait_until(lambda: all(platform.presence(v.vin).get("connected") == "yes" for v in vehicles))
    yield vehicles
    for vehicle in vehicles:
        vehicle.leave()


def batch(platform: Platform, vehicles: list[Vehicle], request_id: str = "task_a_1") -> int:
    return platform.enqueue(*(v.vin for v in vehicles), request_id=request_id)


def got_at_least(vehicles: list[Vehicle], count: int) -> bool:
    return sum(len(v.got) for v in vehicles) >= count


def all_delivered(platform: Platform, vehicles: list[Vehicle], seqs: list[int], *, within_s: float = 60) -> None:
    """Check that every vehicle has every entry, first copies in seq order, with an outcome on its way to the recorder."""
    wanted = {(v.vin, seq) for v in vehicles for seq in seqs}

    def ended() -> bool:
        return {(r.vin, r.seq) for r in platform.outcomes() if r.outcome is Outcome.DELIVERED} >= wanted

    wait_until(ended, within_s=within_s, what="every entry to be delivered")
    for vehicle in vehicles:
        assert platform.pending(vehicle.vin) == []
        assert platform.in_flight(vehicle.vin) is None
        if vehicle.protocol == 5:
            assert list(dict.fromkeys(got.seq for got in vehicle.got)) == seqs


def test_kill_9_during_a_batch_loses_nothing(brisk: Platform) -> None:
    with fleet(brisk, 10) as vehicles:
        seqs = []
        for n in range(6):
            seqs.append(batch(brisk, vehicles, f"task_{n}"))
            if n in (1, 3):
                brisk.dispatchers[0].kill()
                brisk.start_dispatcher()
        all_delivered(brisk, vehicles, seqs)


def test_kill_9_during_acks_loses_nothing(brisk: Platform) -> None:
    with fleet(brisk, 6) as vehicles:
        seqs = [batch(brisk, vehicles, f"task_{n}") for n in range(30)]
        for least in (30, 60, 90):
            wait_until(partial(got_at_least, vehicles, least))
            brisk.dispatchers[0].kill()
            brisk.start_dispatcher()
        all_delivered(brisk, vehicles, seqs)


def test_a_redis_outage_is_reported_and_waited_out(brisk: Platform) -> None:
    with fleet(brisk, 4) as vehicles:
        first = batch(brisk, vehicles, "before")
        all_delivered(brisk, vehicles, [first])
        brisk.redis.stop()
        for vehicle in vehicles:
            vehicle.say(Sign.HEARTBEAT)  # must be carried out, so the outage is noticed
        port = brisk.settings.dispatcher_port
        wait_until(lambda: not healthy(port), what="the dispatcher to report that it is not ready")
        assert brisk.metric("manifold_dispatcher_redis_up") == 0

        brisk.redis = start_redis(brisk.home / "redis", port=brisk.settings.redis_port, append_only=True)
        wait_until(lambda: healthy(port), what="the dispatcher to be ready again")
        second = batch(brisk, vehicles, "after")
        all_delivered(brisk, vehicles, [first, second])


def test_a_wiped_redis_is_served_again_and_late_acks_are_recorded(brisk: Platform) -> None:
    vehicle = Vehicle(brisk, protocol=5)
    vehicle.acks = False
    lost = brisk.enqueue(vehicle.vin)
    vehicle.connect().say(Sign.ONLINE)
    got = vehicle.waits_for(1)
    with brisk.blocking() as redis:
        redis.flushall()
    vehicle.ack(got[0])
    wait_until(lambda: {(r.seq, r.outcome) for r in brisk.outcomes(vehicle.vin)} == {(lost, Outcome.DELIVERED)})

    vehicle.acks = True
    vehicle.say(Sign.HEARTBEAT)
    wait_until(lambda: brisk.presence(vehicle.vin).get("connected") == "heard")
    following = brisk.enqueue(vehicle.vin)  # woken through a stream whose consumer group the dispatcher had to recreate
    wait_until(lambda: following in {r.seq for r in brisk.outcomes(vehicle.vin)})
    vehicle.leave()


def test_a_broker_restart_is_waited_out(brisk: Platform) -> None:
    with fleet(brisk, 4) as vehicles:
        for vehicle in vehicles:
            vehicle.acks = False
        first = batch(brisk, vehicles, "before")
        for vehicle in vehicles:
            vehicle.waits_for(1)
            vehicle.crash()
            vehicle.acks = True
        brisk.restart_broker()
        second = batch(brisk, vehicles, "after")
        wait_until(lambda: healthy(brisk.settings.dispatcher_port), within_s=60)
        for vehicle in vehicles:
            vehicle.connect().say(Sign.ONLINE)
        all_delivered(brisk, vehicles, [first, second])


def test_replicas_share_the_work_and_survive_the_death_of_one(brisk: Platform) -> None:
    brisk.start_dispatcher(1)
    with fleet(brisk, 10) as vehicles:
        seqs = [batch(brisk, vehicles, f"task_{n}") for n in range(20)]
        wait_until(partial(got_at_least, vehicles, 40))
        brisk.dispatchers[0].kill()
        all_delivered(brisk, vehicles, seqs)


def test_on_sigterm_the_dispatcher_finishes_work_in_hand(brisk: Platform) -> None:
    with fleet(brisk, 5) as vehicles:
        seq = batch(brisk, vehicles)
        wait_until(lambda: any(v.got for v in vehicles))
        server = brisk.dispatchers[0]
        server.stop()
        assert server.process.returncode == 0
        brisk.start_dispatcher()
        all_delivered(brisk, vehicles, [seq])


def test_a_port_in_use_is_named(brisk: Platform) -> None:
    with pytest.raises(RuntimeError, match=f"cannot listen on 127.0.0.1:{brisk.settings.dispatcher_port}"):
        brisk.start_dispatcher_on_the_same_port()


def test_a_vehicle_with_corrupt_keys_blocks_no_other(brisk: Platform) -> None:
    with fleet(brisk, 3) as vehicles:
        spoilt, *others = vehicles
        with brisk.blocking() as redis:
            redis.set(keys.presence(spoilt.vin), "not a hash")  # SET replaces a key of any type
        spoilt.say(Sign.HEARTBEAT)
        seq = batch(brisk, others)

        all_delivered(brisk, others, [seq])
