"""Several connections of one client: takeovers and flapping vehicles."""

from manifold.contracts.outcomes import Outcome
from manifold.contracts.topics import Sign
from tests.dispatcher.cases.ground import Ground
from tests.dispatcher.vehicle import Vehicle


def test_a_takeover_keeps_the_session_and_the_entry_in_flight(ground: Ground, protocol: int) -> None:
    """The session is the same."""
    vehicle = Vehicle(ground, protocol=protocol)
    seq = ground.one_unacknowledged(vehicle)

    again = Vehicle(ground, protocol=protocol, vin=vehicle.vin).connect(subscribe=False)
    vehicle.forget()
    assert again.session_present
    again.say(Sign.HEARTBEAT)

    assert [got.dup for got in again.waits_for(1)] == [True]
    assert ground.delivered(vehicle, seq)[seq].attempts == 1
    assert len(again.got) == 1
    again.leave()


def test_a_takeover_with_clean_start_resends_the_entry(ground: Ground, protocol: int) -> None:
    """The session is another one."""
    vehicle = Vehicle(ground, protocol=protocol)
    seq = ground.one_unacknowledged(vehicle)

    again = Vehicle(ground, protocol=protocol, vin=vehicle.vin).connect(clean=True)
    vehicle.forget()
    ground.nothing_in_flight(again)
    again.say(Sign.HEARTBEAT)

    assert [got.dup for got in again.waits_for(1)] == [False]
    assert ground.delivered(vehicle, seq)[seq].attempts == 2
    again.leave()


def test_a_flapping_vehicle_gets_each_entry_published_once_and_in_order(ground: Ground, protocol: int) -> None:
    """A new connection alone loses nothing."""
    vehicle = Vehicle(ground, protocol=protocol)
    vehicle.acks = False
    names = [f"task_{n}" for n in range(12)]
    seqs = [ground.batch(vehicle.vin, request_id=name) for name in names]
    for n in range(20):
        before = len(vehicle.got)
        vehicle.connect(subscribe=n == 0).say(Sign.ONLINE)
        got = vehicle.waits_for(before + 1)
        if n % 2:  # every other connection ends before the acknowledgement
            vehicle.ack(got[before])
        vehicle.crash()

    vehicle.acks = True
    vehicle.connect(subscribe=False).say(Sign.HEARTBEAT)
    ended = ground.delivered(vehicle, *seqs)
    assert {record.attempts for record in ended.values()} == {1}
    assert list(dict.fromkeys(vehicle.requests)) == names
    vehicle.leave()


def test_an_entry_too_large_for_the_connection_fails_and_the_next_is_sent(ground: Ground) -> None:
    """No attempt can succeed while this connection lasts."""
    vehicle = ground.here(Vehicle(ground, largest_packet=256).connect())
    too_large = ground.batch(vehicle.vin, data=bytes(5_000))
    small = [ground.batch(vehicle.vin, data=b"small") for _ in range(2)]

    assert [got.seq for got in vehicle.waits_for(2)] == small
    ended = ground.ended(vehicle, too_large, *small)
    assert {seq: record.outcome for seq, record in ended.items()} == {
        too_large: Outcome.FAILED,
        small[0]: Outcome.DELIVERED,
        small[1]: Outcome.DELIVERED,
    }
    assert "is over the 256 that the vehicle takes" in (ended[too_large].reason or "")
    ground.leaves(vehicle)

    again = ground.here(Vehicle(ground, vin=vehicle.vin).connect(subscribe=False))  # this one accepts packets of any size
    large = ground.batch(vehicle.vin, data=bytes(5_000))
    assert [got.seq for got in again.waits_for(1)] == [large]
    again.leave()
