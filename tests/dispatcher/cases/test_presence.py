"""Vehicles that connect, subscribe and send `online` or heartbeats."""

from manifold.contracts.topics import Sign
from tests.dispatcher.cases.ground import Ground
from tests.dispatcher.vehicle import Vehicle
from tests.support.servers import wait_until


def test_a_connected_and_subscribed_vehicle_gets_a_batch_at_once(ground: Ground, protocol: int) -> None:
    """A connection is proof enough that it is here: no sign is needed."""
    vehicle = Vehicle(ground, protocol=protocol).connect()
    ground.seen(vehicle, connected="yes", subscribed="yes")

    seq = ground.batch(vehicle.vin, request_id="task_ota_1", data=b"hello")

    (got,) = vehicle.waits_for(1)
    assert got.topic == f"agent/{vehicle.vin}/proxy/request/task_ota_1"
    assert (got.payload, got.dup) == (b"hello", False)
    assert got.seq == (seq if protocol == 5 else None)
    record = ground.delivered(vehicle, seq)[seq]
    assert record.attempts == 1
    assert record.dispatched_ms is not None
    assert record.dispatched_ms <= record.ended_ms + 1
    vehicle.leave()


def test_ten_vehicles_get_one_batch_in_parallel(ground: Ground) -> None:
    """Vehicles do not wait for each other."""
    vehicles = [Vehicle(ground, protocol=(4, 5)[n % 2]).connect() for n in range(10)]
    for vehicle in vehicles:
        ground.seen(vehicle, connected="yes", subscribed="yes")
        vehicle.acks = False  # so no delivery waits for an acknowledgement

    seq = ground.batch(*(vehicle.vin for vehicle in vehicles))

    for vehicle in vehicles:
        vehicle.ack(vehicle.waits_for(1)[0])
    for vehicle in vehicles:
        assert ground.delivered(vehicle, seq)[seq].attempts == 1
        vehicle.leave()


def test_pending_entries_are_sent_one_by_one_after_each_ack(ground: Ground, protocol: int) -> None:
    """Heartbeats in between change nothing."""
    vehicle = Vehicle(ground, protocol=protocol)
    vehicle.acks = False
    seqs = [ground.batch(vehicle.vin, request_id=f"task_a_{n}") for n in range(8, 13)]
    ground.here(vehicle.connect())

    for n, seq in enumerate(seqs):
        got = vehicle.waits_for(n + 1)
        assert vehicle.requests == [f"task_a_{8 + m}" for m in range(n + 1)]
        assert ground.in_flight(vehicle) == seq
        vehicle.say(Sign.HEARTBEAT)  # changes nothing while one is in flight
        vehicle.ack(got[n])

    ground.delivered(vehicle, *seqs)
    assert len(vehicle.got) == len(seqs)
    vehicle.leave()


def test_connecting_and_subscribing_alone_trigger_no_publish(ground: Ground, protocol: int) -> None:
    """The vehicle says when it is ready."""
    vehicle = Vehicle(ground, protocol=protocol)
    seq = ground.batch(vehicle.vin)
    vehicle.connect()
    ground.seen(vehicle, connected="yes", subscribed="yes")
    assert ground.in_flight(vehicle) is None
    assert vehicle.got == []

    vehicle.say(Sign.ONLINE)
    vehicle.waits_for(1)
    assert ground.delivered(vehicle, seq)[seq].attempts == 1
    vehicle.leave()


def test_an_unsubscribed_vehicle_loses_no_entry_and_no_attempt(ground: Ground, protocol: int) -> None:
    """The broker says that nobody had the message; the next sign brings it again."""
    vehicle = Vehicle(ground, protocol=protocol).connect(subscribe=False)
    ground.seen(vehicle, connected="yes")
    seq = ground.batch(vehicle.vin)  # published at once, and the broker has no subscriber: reason code 16
    ground.seen(vehicle, subscribed="no")
    ground.given_back(vehicle, seq)

    vehicle.subscribe()
    ground.seen(vehicle, subscribed="yes")
    assert ground.in_flight(vehicle) is None
    vehicle.say(Sign.HEARTBEAT)

    assert [got.dup for got in vehicle.waits_for(1)] == [False]
    assert ground.delivered(vehicle, seq)[seq].attempts == 1
    vehicle.leave()


def test_with_dispatch_on_subscribe_a_subscription_triggers_delivery(altered: Ground, protocol: int) -> None:
    vehicle = Vehicle(altered, protocol=protocol).connect(subscribe=False)
    altered.seen(vehicle, connected="yes")
    seq = altered.batch(vehicle.vin)
    altered.seen(vehicle, subscribed="no")
    altered.nothing_in_flight(vehicle)

    vehicle.subscribe()

    vehicle.waits_for(1)
    assert altered.delivered(vehicle, seq)[seq].attempts == 1
    vehicle.leave()


def test_with_dispatch_on_connect_a_resumed_session_triggers_delivery(altered: Ground, protocol: int) -> None:
    vehicle = Vehicle(altered, protocol=protocol).connect()
    altered.seen(vehicle, subscribed="yes")
    altered.leaves(vehicle)
    seq = altered.batch(vehicle.vin)

    vehicle.connect(subscribe=False)

    assert [got.dup for got in vehicle.waits_for(1)] == [False]
    altered.delivered(vehicle, seq)
    vehicle.leave()


def test_a_vehicle_with_any_matching_filter_is_served(ground: Ground, protocol: int) -> None:
    """The filter of a subscription is between the vehicle and its broker."""
    for topic_filter in (
        "agent/{vin}/#",
        "agent/{vin}/proxy/#",
        "agent/{vin}/proxy/request/#",
        "agent/{vin}/proxy/request/exact",
    ):
        vehicle = Vehicle(ground, protocol=protocol, expiry_s=0)
        seq = ground.batch(vehicle.vin, request_id="exact")
        vehicle.connect(subscribe=False).subscribe(topic_filter.format(vin=vehicle.vin))
        ground.here(vehicle)
        vehicle.waits_for(1)
        ground.delivered(vehicle, seq)
        vehicle.leave()


def test_an_unsubscribed_vehicle_gets_nothing_until_it_subscribes_again(ground: Ground, protocol: int) -> None:
    """After a sign it is tried: the vehicle may have subscribed while nobody saw it."""
    vehicle = Vehicle(ground, protocol=protocol).connect()
    ground.seen(vehicle, subscribed="yes")
    vehicle.unsubscribe()
    ground.seen(vehicle, subscribed="no")
    seq = ground.batch(vehicle.vin)
    wait_until(lambda: ground.pending(vehicle) == [seq])
    assert ground.in_flight(vehicle) is None

    vehicle.say(Sign.HEARTBEAT)  # it may have subscribed unnoticed: tried, and reason code 16 again
    ground.seen(vehicle, subscribed="no")
    vehicle.subscribe()
    vehicle.say(Sign.HEARTBEAT)

    vehicle.waits_for(1)
    assert ground.delivered(vehicle, seq)[seq].attempts == 1
    vehicle.leave()


def test_a_vehicle_known_only_from_its_heartbeat_is_served(brisk: Ground, protocol: int) -> None:
    """A dispatcher may have been down when it connected."""
    vehicle = Vehicle(brisk, protocol=protocol)
    seq = brisk.batch(vehicle.vin)
    vehicle.connect(port=brisk.settings.broker_port)  # bypasses the tap: no event reports the connection
    vehicle.say(Sign.HEARTBEAT)
    brisk.seen(vehicle, connected="heard")

    assert [got.topic for got in vehicle.waits_for(1)] == [f"agent/{vehicle.vin}/proxy/request/{vehicle.requests[0]}"]
    vehicle.forget()
    vehicle.connect(subscribe=False).say(Sign.ONLINE)  # its acknowledgement was not reported either: it is resent at the deadline
    vehicle.waits_for(2)
    brisk.delivered(vehicle, seq)
    vehicle.leave()


def test_a_custom_topic_prefix_is_used_end_to_end(altered: Ground, protocol: int) -> None:
    vehicle = Vehicle(altered, protocol=protocol).connect()
    altered.seen(vehicle, connected="yes", subscribed="yes")

    seqs = [altered.batch(vehicle.vin, request_id=f"task_{n}") for n in range(3)]

    vehicle.waits_for(3)
    altered.delivered(vehicle, *seqs)
    assert [got.topic for got in vehicle.got] == [f"fleet/eu/{vehicle.vin}/proxy/request/task_{n}" for n in range(3)]
    vehicle.leave()
