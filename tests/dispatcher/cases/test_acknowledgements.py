"""Acknowledgements: in time, late, repeated, or missing."""

import pytest

from manifold.contracts import keys
from manifold.contracts.outcomes import Outcome
from manifold.contracts.topics import Sign, request_topic
from tests.dispatcher.cases.ground import Ground
from tests.dispatcher.platform_client import PlatformClient
from tests.dispatcher.vehicle import Got, Vehicle
from tests.support.servers import wait_until


def silent(ground: Ground, protocol: int) -> Vehicle:
    """A connected and subscribed vehicle that does not acknowledge by itself."""
    vehicle = Vehicle(ground, protocol=protocol)
    vehicle.acks = False
    ground.seen(vehicle.connect(), connected="yes", subscribed="yes")
    return vehicle


def beat(ground: Ground, vehicle: Vehicle) -> None:
    """Send a heartbeat and wait until it, and so everything before it, is processed."""
    before = ground.presence(vehicle).get("heard")
    vehicle.say(Sign.HEARTBEAT)
    wait_until(lambda: ground.presence(vehicle).get("heard") not in (before, None))


def test_an_unacknowledged_entry_is_resent_with_its_seq_and_growing_delays(brisk: Ground, protocol: int) -> None:
    """A silent vehicle must not block its queue."""
    vehicle = silent(brisk, protocol)
    waits: list[int] = []

    def note_wait(_: Got) -> None:
        with brisk.platform.blocking() as redis:
            published, deadline = redis.hmget(keys.inflight(vehicle.vin), ["published_at", "deadline"])
        waits.append(int(deadline) - int(published))

    vehicle.look = note_wait
    seq = brisk.batch(vehicle.vin)

    vehicle.waits_for(3)
    vehicle.ack(vehicle.got[2])
    assert brisk.delivered(vehicle, seq)[seq].attempts == 3
    assert waits == [1000, 2000, 2000]
    assert [(got.seq, got.dup) for got in vehicle.got] == [(seq if protocol == 5 else None, False)] * 3
    vehicle.leave()


def test_an_entry_fails_after_its_last_attempt_and_the_next_one_is_sent(altered: Ground, protocol: int) -> None:
    vehicle = silent(altered, protocol)
    failing = altered.batch(vehicle.vin, request_id="failing")
    following = altered.batch(vehicle.vin, request_id="following")

    vehicle.waits_for(3)
    vehicle.ack(vehicle.got[2])
    ended = altered.ended(vehicle, failing, following)
    assert vehicle.requests == ["failing", "failing", "following"]
    failed = ended[failing]
    assert (failed.outcome, failed.attempts, failed.reason) == (Outcome.FAILED, 2, "not acknowledged after 2 attempts")
    assert ended[following].outcome is Outcome.DELIVERED
    vehicle.leave()


def test_a_qos_0_subscription_never_acknowledges_and_its_entry_fails(altered: Ground, protocol: int) -> None:
    """Nothing proves that the message arrived."""
    vehicle = Vehicle(altered, protocol=protocol).connect(subscribe=False)
    vehicle.subscribe(qos=0)
    altered.seen(vehicle, connected="yes", subscribed="yes")
    seq = altered.batch(vehicle.vin)

    vehicle.waits_for(2)
    assert altered.ended(vehicle, seq)[seq].outcome is Outcome.FAILED
    vehicle.leave()


def test_late_repeated_and_stale_acks_end_their_own_entry_once(brisk: Ground, protocol: int) -> None:
    """An acknowledgement names its seq."""
    vehicle = silent(brisk, protocol)
    first = brisk.batch(vehicle.vin, request_id="first")
    second = brisk.batch(vehicle.vin, request_id="second")
    copies = vehicle.waits_for(2)
    assert {got.request_id for got in copies} == {"first"}

    vehicle.ack(copies[0])  # its deadline has passed: released and in flight again
    wait_until(lambda: "second" in vehicle.requests)
    vehicle.ack(copies[1])  # the same entry once more, while the next one is in flight
    beat(brisk, vehicle)
    assert brisk.in_flight(vehicle) == second

    vehicle.ack(next(got for got in vehicle.got if got.request_id == "second"))
    brisk.delivered(vehicle, first, second)
    vehicle.leave()


def test_an_entry_whose_ack_event_is_lost_is_resent_at_its_deadline(brisk: Ground, protocol: int) -> None:
    """Delivery is at least once."""
    vehicle = Vehicle(brisk, protocol=protocol)
    vehicle.connect(port=brisk.settings.broker_port)  # bypasses the tap: its acknowledgements there are not reported
    vehicle.say(Sign.ONLINE)
    brisk.seen(vehicle, connected="heard")
    seq = brisk.batch(vehicle.vin)

    vehicle.waits_for(2)
    assert brisk.in_flight(vehicle) == seq
    vehicle.forget()
    vehicle.connect(subscribe=False).say(Sign.HEARTBEAT)
    brisk.delivered(vehicle, seq)
    assert {got.dup for got in vehicle.got} == {False}
    assert {got.seq for got in vehicle.got} == {seq if protocol == 5 else None}
    vehicle.leave()


def test_a_negative_ack_ends_the_entry_and_its_reason_is_kept(ground: Ground) -> None:
    """The broker will not redeliver the message."""
    vehicle = silent(ground, 5)
    refused, following = ground.batch(vehicle.vin), ground.batch(vehicle.vin)

    vehicle.refuse(vehicle.waits_for(1)[0], 0x97, "no space left")
    vehicle.ack(vehicle.waits_for(2)[1])

    ended = ground.delivered(vehicle, refused, following)
    assert ended[refused].reason == "no space left"
    assert ended[following].reason is None
    vehicle.leave()


def test_an_ack_of_a_foreign_message_ends_nothing(ground: Ground, protocol: int) -> None:
    """It carries no seq of the dispatcher."""
    vehicle = silent(ground, protocol)
    seq = ground.batch(vehicle.vin, request_id="ours")
    vehicle.waits_for(1)
    service = PlatformClient(ground.settings, ground.settings.mqtt_username_dispatcher)
    service.say(request_topic("agent", vehicle.vin, "foreign"), b"not of this dispatcher")
    service.close()

    vehicle.ack(vehicle.waits_for(2)[1])
    beat(ground, vehicle)
    assert ground.in_flight(vehicle) == seq

    vehicle.ack(vehicle.got[0])
    ground.delivered(vehicle, seq)
    assert vehicle.requests == ["ours", "foreign"]
    vehicle.leave()


def test_an_entry_is_marked_in_flight_before_it_reaches_the_vehicle(ground: Ground, protocol: int) -> None:
    """An acknowledgement may come before the PUBACK of the publish, and must find its entry."""
    vehicle = silent(ground, protocol)
    vehicle.acks = True
    in_flight: list[int | None] = []
    vehicle.look = lambda _: in_flight.append(ground.in_flight(vehicle))

    seqs = [ground.batch(vehicle.vin) for _ in range(20)]

    ground.delivered(vehicle, *seqs)
    assert in_flight == seqs
    vehicle.leave()


@pytest.mark.parametrize("second", ["agent/{vin}/#", "agent/{vin}/proxy/request/both"])
def test_overlapping_filters_end_each_entry_once(ground: Ground, protocol: int, second: str) -> None:
    vehicle = Vehicle(ground, protocol=protocol).connect()
    vehicle.subscribe(second.format(vin=vehicle.vin))
    ground.seen(vehicle, connected="yes", subscribed="yes")

    seqs = [ground.batch(vehicle.vin, request_id="both", data=str(n).encode()) for n in range(5)]

    ended = ground.delivered(vehicle, *seqs)
    assert {record.attempts for record in ended.values()} == {1}
    assert list(dict.fromkeys(got.payload for got in vehicle.got)) == [str(n).encode() for n in range(5)]
    vehicle.leave()
