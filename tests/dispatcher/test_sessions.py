"""Every session case, with real vehicles on MQTT 3.1.1 and 5 and a real broker's sessions."""

from contracts.outcomes import Outcome
from contracts.topics import Sign
from tests.dispatcher.platform import Platform, Vehicle
from tests.servers import wait_until


def here(platform: Platform, vehicle: Vehicle) -> Vehicle:
    """The vehicle, as soon as the dispatcher knows that it is connected and has heard it."""
    vehicle.say(Sign.ONLINE)
    wait_until(lambda: platform.presence(vehicle.vin).get("connected") == "yes", what=f"{vehicle.vin} to be present")
    return vehicle


def gone(platform: Platform, vehicle: Vehicle) -> None:
    wait_until(lambda: platform.presence(vehicle.vin).get("connected") == "no", what=f"{vehicle.vin} to be absent")


def delivered(platform: Platform, vin: str, *seqs: int) -> None:
    """Returns when exactly these entries of the vehicle are delivered, and nothing is left."""
    wait_until(lambda: not platform.pending(vin), what=f"{vin} to have everything")
    wait_until(lambda: {r.seq for r in platform.outcomes() if r.vin == vin} >= set(seqs), what=f"outcomes {seqs} of {vin}")
    assert {(r.seq, r.outcome) for r in platform.outcomes() if r.vin == vin} == {(seq, Outcome.DELIVERED) for seq in seqs}


def test_a_vehicle_that_is_here_and_subscribed_gets_a_batch_at_once(platform: Platform, protocol: int) -> None:
    vehicle = here(platform, Vehicle(platform, protocol=protocol).connect())

    seq = platform.enqueue(vehicle.vin, request_id="task_ota_1", data=b"hello", data_id="d1")

    (got,) = vehicle.waits_for(1)
    assert got.topic == f"agent/{vehicle.vin}/proxy/request/task_ota_1"
    assert (got.payload, got.dup) == (b"hello", False)
    assert got.seq == (seq if protocol == 5 else None)
    delivered(platform, vehicle.vin, seq)
    record = next(r for r in platform.outcomes() if r.vin == vehicle.vin)
    assert record.attempts == 1
    assert record.dispatched_ms is not None
    assert record.dispatched_ms <= record.ended_ms + 1
    vehicle.leave()


def test_many_pending_go_one_by_one_each_after_the_acknowledgement(platform: Platform, protocol: int) -> None:
    vehicle = Vehicle(platform, protocol=protocol)
    vehicle.acks = False
    seqs = [platform.enqueue(vehicle.vin, request_id=f"task_a_{n}") for n in range(8, 13)]
    here(platform, vehicle.connect())

    for n, seq in enumerate(seqs):
        got = vehicle.waits_for(n + 1)
        assert [g.topic.rpartition("/")[2] for g in got] == [f"task_a_{8 + m}" for m in range(n + 1)]
        assert platform.in_flight(vehicle.vin) == seq
        vehicle.say(Sign.HEARTBEAT)  # changes nothing while one is in flight
        vehicle.ack(got[n])

    delivered(platform, vehicle.vin, *seqs)
    assert len(vehicle.got) == len(seqs)
    vehicle.leave()


def test_nothing_is_published_on_connecting_and_subscribing_alone(platform: Platform, protocol: int) -> None:
    vehicle = Vehicle(platform, protocol=protocol)
    seq = platform.enqueue(vehicle.vin)
    vehicle.connect()
    wait_until(lambda: platform.presence(vehicle.vin).get("subscribed") == "yes")
    assert platform.in_flight(vehicle.vin) is None
    assert vehicle.got == []

    vehicle.say(Sign.HEARTBEAT)
    vehicle.waits_for(1)
    delivered(platform, vehicle.vin, seq)
    vehicle.leave()


def test_a_vehicle_that_is_not_subscribed_loses_nothing_and_gets_it_on_its_next_heartbeat(
    platform: Platform, protocol: int
) -> None:
    vehicle = Vehicle(platform, protocol=protocol)
    vehicle.connect(subscribe=False)
    wait_until(lambda: platform.presence(vehicle.vin).get("connected") == "yes")
    seq = platform.enqueue(vehicle.vin)  # published at once, and the broker has nobody to give it to: reason code 16
    wait_until(lambda: platform.presence(vehicle.vin).get("subscribed") == "no")
    assert platform.in_flight(vehicle.vin) is None
    assert platform.pending(vehicle.vin) == [seq]

    vehicle.subscribe()
    wait_until(lambda: platform.presence(vehicle.vin).get("subscribed") == "yes")
    assert platform.in_flight(vehicle.vin) is None
    vehicle.say(Sign.HEARTBEAT)

    assert [got.dup for got in vehicle.waits_for(1)] == [False]
    delivered(platform, vehicle.vin, seq)
    assert next(r for r in platform.outcomes() if r.vin == vehicle.vin).attempts == 1
    vehicle.leave()


def test_a_resumed_session_gets_what_was_unacknowledged_once_from_the_broker(platform: Platform, protocol: int) -> None:
    vehicle = Vehicle(platform, protocol=protocol)
    vehicle.acks = False
    seq = platform.enqueue(vehicle.vin)
    here(platform, vehicle.connect())
    vehicle.waits_for(1)
    vehicle.crash()
    gone(platform, vehicle)
    assert platform.in_flight(vehicle.vin) == seq

    vehicle.connect(subscribe=False)
    assert vehicle.session_present
    for _ in range(3):
        vehicle.say(Sign.HEARTBEAT)
    got = vehicle.waits_for(2)
    vehicle.ack(got[1])

    delivered(platform, vehicle.vin, seq)
    assert [(g.connection, g.dup) for g in vehicle.got] == [(1, False), (2, True)]
    vehicle.leave()


def test_what_waits_behind_a_redelivery_follows_its_acknowledgement(platform: Platform, protocol: int) -> None:
    vehicle = Vehicle(platform, protocol=protocol)
    vehicle.acks = False
    first = platform.enqueue(vehicle.vin, request_id="first")
    here(platform, vehicle.connect())
    vehicle.waits_for(1)
    vehicle.crash()
    gone(platform, vehicle)
    second = platform.enqueue(vehicle.vin, request_id="second")
    vehicle.acks = True

    vehicle.connect(subscribe=False)
    vehicle.say(Sign.HEARTBEAT)

    vehicle.waits_for(3)
    delivered(platform, vehicle.vin, first, second)
    assert [got.topic.rpartition("/")[2] for got in vehicle.got] == ["first", "first", "second"]
    vehicle.leave()


def test_a_clean_start_has_it_published_again_with_the_same_seq(platform: Platform, protocol: int) -> None:
    vehicle = Vehicle(platform, protocol=protocol)
    vehicle.acks = False
    seq = platform.enqueue(vehicle.vin)
    here(platform, vehicle.connect())
    vehicle.waits_for(1)
    vehicle.crash()
    gone(platform, vehicle)

    vehicle.acks = True
    vehicle.connect(clean=True)
    wait_until(lambda: platform.in_flight(vehicle.vin) is None)
    vehicle.say(Sign.HEARTBEAT)

    vehicle.waits_for(2)
    delivered(platform, vehicle.vin, seq)
    assert [(g.connection, g.dup) for g in vehicle.got] == [(1, False), (2, False)]
    assert next(r for r in platform.outcomes() if r.vin == vehicle.vin).attempts == 2
    vehicle.leave()


def test_a_session_that_ends_with_its_connection_gives_its_entry_back_at_once(platform: Platform, protocol: int) -> None:
    vehicle = Vehicle(platform, protocol=protocol, persistent=False)
    vehicle.acks = False
    seq = platform.enqueue(vehicle.vin)
    here(platform, vehicle.connect())
    vehicle.waits_for(1)
    vehicle.crash()

    wait_until(lambda: platform.in_flight(vehicle.vin) is None)
    assert platform.pending(vehicle.vin) == [seq]
    vehicle.acks = True
    here(platform, vehicle.connect())
    vehicle.waits_for(2)
    delivered(platform, vehicle.vin, seq)
    vehicle.leave()


def test_a_second_connection_takes_the_session_over_with_what_is_in_flight(platform: Platform, protocol: int) -> None:
    vehicle = Vehicle(platform, protocol=protocol)
    vehicle.acks = False
    seq = platform.enqueue(vehicle.vin)
    here(platform, vehicle.connect())
    vehicle.waits_for(1)

    again = Vehicle(platform, protocol=protocol, vin=vehicle.vin).connect(subscribe=False)
    vehicle.forget()
    assert again.session_present
    again.say(Sign.HEARTBEAT)

    assert [got.dup for got in again.waits_for(1)] == [True]
    delivered(platform, vehicle.vin, seq)
    assert len(again.got) == 1
    again.leave()


def test_a_wildcard_subscription_is_served_like_any_other(platform: Platform, protocol: int) -> None:
    vehicle = Vehicle(platform, protocol=protocol)
    seq = platform.enqueue(vehicle.vin)
    vehicle.connect(subscribe=False)
    vehicle.subscribe(f"agent/{vehicle.vin}/#")
    here(platform, vehicle)
    vehicle.waits_for(1)
    delivered(platform, vehicle.vin, seq)
    vehicle.leave()


def test_a_batch_of_many_vehicles_reads_its_payload_once(platform: Platform) -> None:
    vehicles = [here(platform, Vehicle(platform, protocol=(4, 5)[n % 2]).connect()) for n in range(20)]
    before = platform.metric("manifold_dispatcher_payload_loads_total")
    seq = platform.enqueue(*(v.vin for v in vehicles), data=b"x" * 100_000, data_id="large")
    for vehicle in vehicles:
        assert [len(got.payload) for got in vehicle.waits_for(1)] == [100_000]
        delivered(platform, vehicle.vin, seq)
        vehicle.leave()
    assert platform.metric("manifold_dispatcher_payload_loads_total") == before + 1


def test_an_entry_without_its_data_lets_later_ones_pass_and_goes_before_younger_ones_when_it_comes(platform: Platform) -> None:
    vehicle = Vehicle(platform, protocol=5)
    lacking = platform.enqueue(vehicle.vin, request_id="lacking", data=None, data_id="comes-late")
    complete = platform.enqueue(vehicle.vin, request_id="complete")
    here(platform, vehicle.connect())
    assert [got.seq for got in vehicle.waits_for(1)] == [complete]
    wait_until(lambda: not platform.pending(vehicle.vin))

    vehicle.acks = False
    occupying = platform.enqueue(vehicle.vin, request_id="occupying")
    vehicle.waits_for(2)
    younger = platform.enqueue(vehicle.vin, request_id="younger")
    platform.store_data("comes-late", b"at last")
    vehicle.acks = True
    vehicle.ack(vehicle.got[1])

    assert [got.seq for got in vehicle.waits_for(4)] == [complete, occupying, lacking, younger]
    assert vehicle.got[2].payload == b"at last"
    delivered(platform, vehicle.vin, lacking, complete, occupying, younger)
    vehicle.leave()
