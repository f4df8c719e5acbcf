"""Connections that end, with sessions that outlive them and sessions that do not."""

import pytest

from manifold.contracts import keys
from manifold.contracts.outcomes import OutcomeRecord
from manifold.contracts.topics import Sign, request_topic
from manifold.settings.embedded_broker import SESSION_MAX_S
from tests.dispatcher.cases.ground import Ground
from tests.dispatcher.platform_client import PlatformClient
from tests.dispatcher.vehicle import Vehicle
from tests.support.servers import wait_until

NO_SUBSCRIBERS = 16


def test_batches_queued_while_away_are_sent_in_order_on_online(ground: Ground, protocol: int) -> None:
    """As `dispatch_on_connect` is off."""
    vehicle = Vehicle(ground, protocol=protocol)
    ground.here(vehicle.connect())
    ground.leaves(vehicle)
    seqs = [ground.batch(vehicle.vin, request_id=f"task_{n}") for n in range(4)]

    vehicle.connect(subscribe=False)
    ground.seen(vehicle, connected="yes")
    assert vehicle.session_present
    assert ground.in_flight(vehicle) is None
    assert vehicle.got == []
    vehicle.say(Sign.HEARTBEAT)

    vehicle.waits_for(4)
    ended = ground.delivered(vehicle, *seqs)
    assert vehicle.requests == [f"task_{n}" for n in range(4)]
    assert {record.attempts for record in ended.values()} == {1}
    vehicle.leave()


@pytest.mark.parametrize("end", ["crash", "leave"])
def test_an_unacknowledged_message_is_redelivered_by_the_broker_only(ground: Ground, protocol: int, end: str) -> None:
    """The broker holds the message and redelivers it, so the dispatcher must not."""
    vehicle = Vehicle(ground, protocol=protocol)
    seq = ground.one_unacknowledged(vehicle)
    getattr(vehicle, end)()
    ground.gone(vehicle)
    assert ground.in_flight(vehicle) == seq

    vehicle.connect(subscribe=False)
    assert vehicle.session_present
    vehicle.say(Sign.ONLINE)
    for _ in range(3):
        vehicle.say(Sign.HEARTBEAT)
    vehicle.ack(vehicle.waits_for(2)[1])

    assert ground.delivered(vehicle, seq)[seq].attempts == 1
    assert [(got.connection, got.dup) for got in vehicle.got] == [(1, False), (2, True)]
    vehicle.leave()


def test_entries_behind_a_redelivery_follow_its_ack(ground: Ground, protocol: int) -> None:
    """Acknowledgements are matched by seq."""
    vehicle = Vehicle(ground, protocol=protocol)
    first = ground.one_unacknowledged(vehicle)
    ground.crashes(vehicle)
    second = ground.batch(vehicle.vin, request_id="second")
    third = ground.batch(vehicle.vin, request_id="third")
    vehicle.acks = True

    vehicle.connect(subscribe=False).say(Sign.HEARTBEAT)

    vehicle.waits_for(4)
    ground.delivered(vehicle, first, second, third)
    assert vehicle.requests == [vehicle.requests[0]] * 2 + ["second", "third"]
    vehicle.leave()


def test_a_clean_start_resends_the_entry_with_its_seq(ground: Ground, protocol: int) -> None:
    """The session that held the message is gone."""
    vehicle = Vehicle(ground, protocol=protocol)
    seq = ground.one_unacknowledged(vehicle)
    ground.crashes(vehicle)

    vehicle.acks = True
    vehicle.connect(clean=True)
    ground.nothing_in_flight(vehicle)
    vehicle.say(Sign.HEARTBEAT)

    vehicle.waits_for(2)
    assert ground.delivered(vehicle, seq)[seq].attempts == 2
    assert [(got.connection, got.dup) for got in vehicle.got] == [(1, False), (2, False)]
    assert {got.seq for got in vehicle.got} == {seq if protocol == 5 else None}
    vehicle.leave()


def delivered_in_a_new_session(ground: Ground, vehicle: Vehicle, seq: int) -> OutcomeRecord:
    """The outcome of an entry sent a second time: the vehicle returns without a session, acknowledges and leaves."""
    vehicle.acks = True
    ground.here(vehicle.connect())
    assert not vehicle.session_present
    vehicle.waits_for(2)
    outcome = ground.delivered(vehicle, seq)[seq]
    vehicle.leave()
    return outcome


def test_an_entry_is_released_when_its_session_ends_with_the_connection(ground: Ground, protocol: int) -> None:
    """Nobody will redeliver it."""
    vehicle = Vehicle(ground, protocol=protocol, expiry_s=0)
    seq = ground.one_unacknowledged(vehicle)
    vehicle.crash()
    ground.given_back(vehicle, seq)

    delivered_in_a_new_session(ground, vehicle, seq)


def test_an_entry_is_released_when_its_session_expires(ground: Ground) -> None:
    """The CONNECT said after how long."""
    vehicle = Vehicle(ground, protocol=5, expiry_s=1)
    seq = ground.one_unacknowledged(vehicle)
    ground.crashes(vehicle)
    topic = request_topic("agent", vehicle.vin, "probe")
    service = PlatformClient(ground.settings, ground.settings.mqtt_username_dispatcher)
    wait_until(lambda: service.say(topic, b"") == NO_SUBSCRIBERS, what="the broker to forget the session")
    service.close()

    assert delivered_in_a_new_session(ground, vehicle, seq).attempts == 2
    assert [(got.seq, got.dup) for got in vehicle.got] == [(seq, False)] * 2


def test_an_entry_is_released_when_a_disconnect_ends_its_session(ground: Ground) -> None:
    """The expiry in its DISCONNECT replaces that of its CONNECT."""
    vehicle = Vehicle(ground, protocol=5, expiry_s=300)
    seq = ground.one_unacknowledged(vehicle)
    vehicle.leave(expiry_s=0)
    ground.given_back(vehicle, seq)

    delivered_in_a_new_session(ground, vehicle, seq)


def test_an_entry_waits_when_a_disconnect_extends_its_session(ground: Ground) -> None:
    """The expiry in its DISCONNECT replaces that of its CONNECT."""
    vehicle = Vehicle(ground, protocol=5, expiry_s=1)
    seq = ground.one_unacknowledged(vehicle)
    vehicle.leave(expiry_s=600)
    ground.seen(vehicle, connected="no", expiry="600")
    assert ground.in_flight(vehicle) == seq

    vehicle.connect(subscribe=False).say(Sign.HEARTBEAT)
    assert vehicle.session_present
    vehicle.ack(vehicle.waits_for(2)[1])
    ground.delivered(vehicle, seq)
    assert [got.dup for got in vehicle.got] == [False, True]
    vehicle.leave()


def test_the_deadline_waits_while_an_absent_vehicle_has_a_session(brisk: Ground, protocol: int) -> None:
    """The broker will redeliver; publishing again would double the message."""
    vehicle = Vehicle(brisk, protocol=protocol)
    seq = brisk.one_unacknowledged(vehicle)
    brisk.crashes(vehicle)
    copies = len(vehicle.got)
    seen = brisk.presence(vehicle)
    assert seen["expiry"] == ("300" if protocol == 5 else str(SESSION_MAX_S))  # on 3.1.1 the broker's own
    index = keys.deadlines(keys.shard_of(vehicle.vin, brisk.settings.wake_shards))
    with brisk.platform.blocking() as redis:  # the deadline passed and was extended to the session's end
        wait_until(lambda: redis.zscore(index, vehicle.vin) == float(seen["session_until"]))
    assert brisk.in_flight(vehicle) == seq

    vehicle.acks = True
    vehicle.connect(subscribe=False).say(Sign.HEARTBEAT)
    brisk.delivered(vehicle, seq)
    assert [got.dup for got in vehicle.got[copies:]] == [True]
    vehicle.leave()


def test_a_foreign_message_in_the_session_delays_nothing(ground: Ground, protocol: int) -> None:
    """Only own entries are waited for."""
    vehicle = Vehicle(ground, protocol=protocol)
    ground.here(vehicle.connect())
    ground.leaves(vehicle)
    service = PlatformClient(ground.settings, ground.settings.mqtt_username_dispatcher)
    service.say(request_topic("agent", vehicle.vin, "foreign"), b"not of this dispatcher")
    service.close()
    seq = ground.batch(vehicle.vin, request_id="ours")

    vehicle.connect(subscribe=False).say(Sign.HEARTBEAT)

    vehicle.waits_for(2)
    assert sorted(vehicle.requests) == ["foreign", "ours"]
    assert ground.delivered(vehicle, seq)[seq].attempts == 1
    vehicle.leave()
