"""Data that arrives late or exists only in the lake."""

from manifold.contracts import keys
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import IDS
from manifold.contracts.topics import Sign
from manifold.lake.catalog import ensure_tables, open_catalog
from tests.dispatcher.cases.ground import Ground
from tests.dispatcher.vehicle import Vehicle
from tests.support.lake_rows import append, append_payloads
from tests.support.servers import wait_until

DAY_MS = 86_400_000


def test_a_parked_entry_lets_others_pass_and_is_sent_first_once_its_data_arrives(ground: Ground, protocol: int) -> None:
    """One missing payload must not block a vehicle."""
    vehicle = Vehicle(ground, protocol=protocol)
    late = f"late-{protocol}"
    lacking = ground.batch(vehicle.vin, request_id="lacking", data=None, data_id=late)
    complete = ground.batch(vehicle.vin, request_id="complete")
    ground.here(vehicle.connect())
    vehicle.waits_for(1)
    wait_until(lambda: ground.parked(vehicle) == [lacking] and not ground.pending(vehicle))

    vehicle.acks = False
    occupying = ground.batch(vehicle.vin, request_id="occupying")
    vehicle.waits_for(2)
    younger = ground.batch(vehicle.vin, request_id="younger")
    ground.data(late, b"at last")
    wait_until(lambda: not ground.parked(vehicle))
    vehicle.acks = True
    vehicle.ack(vehicle.got[1])

    ground.delivered(vehicle, lacking, complete, occupying, younger)
    assert vehicle.requests == ["complete", "occupying", "lacking", "younger"]
    assert vehicle.got[2].payload == b"at last"
    vehicle.leave()


def test_arriving_data_wakes_an_otherwise_idle_vehicle(ground: Ground, protocol: int) -> None:
    """Its arrival wakes a dispatcher."""
    vehicle = ground.here(Vehicle(ground, protocol=protocol).connect())
    data_id = f"alone-{protocol}"
    seq = ground.batch(vehicle.vin, data=None, data_id=data_id)
    wait_until(lambda: ground.parked(vehicle) == [seq])

    ground.data(data_id, b"at last")

    assert [got.payload for got in vehicle.waits_for(1)] == [b"at last"]
    assert ground.delivered(vehicle, seq)[seq].attempts == 1
    vehicle.leave()


def test_data_for_one_of_many_parked_entries_moves_no_other(ground: Ground) -> None:
    """Each entry was parked once: data of another entry must not make it claimed, looked up and parked again."""
    vehicle = ground.here(Vehicle(ground).connect())
    names = [f"one-of-many-{n}" for n in range(12)]
    before = ground.platform.metric("manifold_dispatcher_parked_total")
    seqs = [ground.batch(vehicle.vin, request_id=name, data=None, data_id=name) for name in names]
    wait_until(lambda: ground.parked(vehicle) == seqs)

    for name in names:
        ground.data(name, name.encode())
        vehicle.waits_for(names.index(name) + 1)

    ground.delivered(vehicle, *seqs)
    assert vehicle.requests == names
    assert ground.platform.metric("manifold_dispatcher_parked_total") - before == len(names)
    vehicle.leave()


def test_data_and_trigger_missing_in_redis_are_read_from_the_lake(altered: Ground, protocol: int) -> None:
    """What is found there goes back into Redis."""
    vehicle = Vehicle(altered, protocol=protocol)
    data_id, payload = f"lake-{protocol}", b"from the lake"
    seq = altered.batch(vehicle.vin, request_id="task_lake", data=payload, data_id=data_id)
    catalog = open_catalog(altered.settings)
    ensure_tables(catalog)
    at = datetime_of(seq)
    entry = {"vin": vehicle.vin, "ts": at, "request_id": "task_lake", "seq": seq, "data_id": data_id, "applied": True}
    append_payloads(catalog, {data_id: payload}, at=at, seq=seq)
    append(catalog, IDS, [entry])
    with altered.platform.blocking() as redis:
        assert redis.delete(keys.data(data_id), keys.trigger(seq)) == 2

    vehicle.connect().say(Sign.ONLINE)

    (got,) = vehicle.waits_for(1, within_s=60)  # the first lookup in the lake takes seconds
    assert (got.request_id, got.payload) == ("task_lake", payload)
    assert altered.delivered(vehicle, seq)[seq].attempts == 1  # however often its deadline passed during the lake lookup
    with altered.platform.blocking() as redis:
        assert redis.get(keys.data(data_id)) == payload  # cached for the others of its batch
    vehicle.leave()


def test_a_trigger_keeps_its_data_for_as_long_as_itself(ground: Ground) -> None:
    """Age alone must not remove data that is still to be sent."""
    vehicle = Vehicle(ground)
    ground.data("aged", b"hello")
    with ground.platform.blocking() as redis:
        redis.pexpire(keys.data("aged"), DAY_MS // 24)  # as if it had arrived long ago

        seq = ground.batch(vehicle.vin, data=None, data_id="aged")

        wait_until(lambda: ground.pending(vehicle) == [seq])
        assert redis.pttl(keys.data("aged")) > DAY_MS
    ground.here(vehicle.connect())
    ground.delivered(vehicle, seq)
    vehicle.leave()
