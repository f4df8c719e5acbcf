"""Input from the platform: order, repetition, errors and sizes."""

import itertools
import json
from typing import Any

import pytest

from manifold.archive.records import read_journal
from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.contracts.names import Owner
from manifold.contracts.seq import SeqSource, wall_clock_ms
from manifold.contracts.topics import FANOUT, TRIGGER, Sign, data_topic, request_filter, sign_topic
from manifold.queues import Queues
from manifold.queues.verbs.fills import Enqueue
from tests.dispatcher.cases.ground import Ground
from tests.dispatcher.vehicle import Vehicle
from tests.manifold.sandbox.tap import raw_connection
from tests.support.servers import wait_until
from tests.support.wire import trigger

MANY_VINS, MANY_ENTRIES, A_PART = 100_000, 3_000, 500


def test_batches_sent_back_to_back_arrive_in_sending_order(ground: Ground, protocol: int) -> None:
    """Order is by seq, not by name or clock."""
    vehicle = Vehicle(ground, protocol=protocol)
    names = [f"task_{kind}_{n}" for kind in "ab" for n in range(8, 12)] * 3
    ground.data("same", b"hello")
    pause = iter(range(len(names)))  # a repeated trigger would be a duplicate: each names another ghost

    receipts = ground.platform_client.send_all(
        [(TRIGGER, trigger([vehicle.vin, f"{vehicle.vin}-GHOST{next(pause)}"], name, "same")) for name in names]
    )
    ground.here(vehicle.connect())

    ground.delivered(vehicle, *(receipt["seq"] for receipt in receipts))
    assert vehicle.requests == names
    vehicle.leave()


def test_a_repeated_trigger_is_not_delivered_again(ground: Ground, protocol: int) -> None:
    vehicle = ground.here(Vehicle(ground, protocol=protocol).connect())
    first = ground.batch(vehicle.vin, request_id="task_again", data_id="again")
    ground.delivered(vehicle, first)

    again = ground.platform_client.send(TRIGGER, trigger([vehicle.vin, vehicle.vin], "task_again", "again"))
    other = ground.batch(vehicle.vin, request_id="task_other", data_id="again")

    assert (again["status"], again["duplicate_of"]) == ("duplicate", first)
    ground.delivered(vehicle, first, other)
    assert vehicle.requests == ["task_again", "task_other"]
    vehicle.leave()


VIN = "SPOILT"
SPOILT: list[tuple[str, str, Any]] = [
    ("not JSON", TRIGGER, "{"),
    ("a wrong type in second place", TRIGGER, {"ids": [VIN, 7], "request_id": "r", "data_id": "d"}),
    ("no VIN", TRIGGER, {"ids": [], "request_id": "r", "data_id": "d"}),
    ("ids is no list", TRIGGER, {"ids": VIN, "request_id": "r", "data_id": "d"}),
    ("a missing field", TRIGGER, {"ids": [VIN], "request_id": "r"}),
    ("a slash in the request_id", TRIGGER, {"ids": [VIN], "request_id": "a/b", "data_id": "d"}),
    ("a plus in the request_id", TRIGGER, {"ids": [VIN], "request_id": "a+b", "data_id": "d"}),
    ("an unknown topic", f"{FANOUT}/other", {"ids": [VIN], "request_id": "r", "data_id": "d"}),
]


@pytest.mark.parametrize(("topic", "body"), [row[1:] for row in SPOILT], ids=[row[0] for row in SPOILT])
def test_malformed_input_is_refused_as_a_whole_answered_and_kept(ground: Ground, topic: str, body: Any) -> None:
    """Bad input is not lost, and does not stop good input."""
    payload = (body if isinstance(body, str) else json.dumps(body)).encode()
    if topic == TRIGGER:
        receipt = ground.platform_client.send(topic, payload)
        assert receipt["status"] == "refused"
        assert receipt["reason"]
    else:
        ground.platform_client.say(topic, payload)  # refused by the broker's access rules

    with ground.platform.blocking() as redis:
        assert redis.exists(*keys.owner_keys(VIN)) == 0
    if topic == TRIGGER:
        files = [read_journal(path) for path in ground.settings.journal_folder.iterdir()]
        kept = {message.seq: message for file in files for message in file.messages}[receipt["seq"]]
        assert (kept.payload, kept.stream) == (payload, Stream.TRIGGER)
        assert kept.refused_because == receipt["reason"]


def test_other_bytes_under_a_known_data_id_are_refused(ground: Ground, protocol: int) -> None:
    """Data is never swapped under triggers that name it."""
    vehicle = ground.here(Vehicle(ground, protocol=protocol).connect())
    data_id = f"kept-{protocol}"
    ground.data(data_id, b"old")

    refused = ground.platform_client.send(data_topic(data_id), b"new")
    assert refused["status"] == "refused"
    assert data_id in refused["reason"]

    seq = ground.batch(vehicle.vin, data=b"old", data_id=data_id)
    assert vehicle.waits_for(1)[0].payload == b"old"
    ground.delivered(vehicle, seq)
    vehicle.leave()


def test_data_of_many_triggers_is_read_once_and_delivered_each_time(ground: Ground) -> None:
    vehicles = [ground.here(Vehicle(ground, protocol=(4, 5)[n % 2]).connect()) for n in range(10)]
    vins = [vehicle.vin for vehicle in vehicles]
    before = ground.platform.metric("manifold_dispatcher_payload_loads_total")
    ground.data("large", b"x" * 100_000)

    seqs = [ground.batch(*vins, data=None, data_id="large") for _ in range(5)]

    for vehicle in vehicles:
        assert [len(got.payload) for got in vehicle.waits_for(5)] == [100_000] * 5
        ground.delivered(vehicle, *seqs)
        vehicle.leave()
    assert ground.platform.metric("manifold_dispatcher_payload_loads_total") == before + 1


def test_accepted_batches_survive_a_recorder_kill_complete_and_in_order(ground: Ground) -> None:
    """A receipt means on disk."""
    vehicle = Vehicle(ground)
    vins = [vehicle.vin, *(f"{vehicle.vin}-{n}" for n in range(199))]
    ground.data("outlives", b"hello")
    receipts = ground.platform_client.send_all([(TRIGGER, trigger(vins, f"task_{n}", "outlives")) for n in range(20)])
    assert ground.platform.recorder is not None
    ground.platform.recorder.kill()
    ground.platform.start_recorder()
    seqs = [int(receipt["seq"]) for receipt in receipts]

    def torn() -> list[str]:
        with ground.platform.blocking() as redis:
            return [vin for vin in vins if redis.zcard(keys.pending(vin)) != len(seqs)]

    wait_until(lambda: not torn(), what="each vehicle to have every batch")
    ground.here(vehicle.connect())
    ground.delivered(vehicle, *seqs)
    assert [got.seq for got in vehicle.got] == seqs
    vehicle.leave()


def test_a_trigger_for_100000_vins_is_queued_and_reaches_connected_vehicles(ground: Ground) -> None:
    """Only vehicles that can have the message now wake a dispatcher."""
    here = [ground.here(Vehicle(ground, protocol=(4, 5)[n % 2]).connect()) for n in range(5)]
    others = [f"MAX_OWNERS_IN_HAND{n:06d}" for n in range(MANY_VINS - len(here))]
    ground.data("crowd", b"hello")

    named = [*others[: MANY_VINS // 2], *(vehicle.vin for vehicle in here), *others[MANY_VINS // 2 :]]
    seq = ground.platform_client.send(TRIGGER, trigger(named, "task_crowd", "crowd"))["seq"]

    for vehicle in here:
        ground.delivered(vehicle, seq)
        vehicle.leave()

    wait_until(lambda: ground.platform.pending(others[-1]) == [seq], within_s=60, what="the last entry to be queued")
    with ground.platform.blocking() as redis:
        parts = [others[start : start + A_PART] for start in range(0, len(others), A_PART)]
        assert [redis.exists(*map(keys.pending, part)) for part in parts] == [len(part) for part in parts]


def queue_many(ground: Ground, vin: str, count: int) -> list[int]:
    """Load this many entries of one vehicle into its queue, as a rebuild does."""
    source = SeqSource(0)
    seqs = [source.next() for _ in range(count)]

    async def queue(queues: Queues) -> None:
        await queues.store_data("many", b"hello", wall_clock_ms())
        for part in (seqs[start : start + A_PART] for start in range(0, count, A_PART)):
            batch = queues.batch()
            batch.add(vin, Enqueue([(seq, "task_many") for seq in part]), wall_clock_ms())
            for seq in part:
                batch.call(("HSET", keys.trigger(seq), "request_id", "task_many", "data_id", "many"), int)
            await batch.run()

    ground.platform.ask(queue)
    return seqs


def test_thousands_of_pending_entries_arrive_in_order_at_constant_cost(ground: Ground) -> None:
    """No verb looks through a queue."""
    vin = Owner("LONGQUEUE")
    seqs = queue_many(ground, vin, MANY_ENTRIES)
    got: list[int] = []

    def commands() -> int:
        """The number of write commands in Redis. Reads are excluded, because the walk over all queues reads too."""
        with ground.platform.blocking() as redis:
            stats: Any = redis.info("commandstats")
        return sum(stats[f"cmdstat_{name}"]["calls"] for name in ("zrem", "zadd", "hset"))

    def take(connection: raw_connection.RawConnection, count: int) -> int:
        """Acknowledge this many messages; return the number of commands used."""
        before = commands()
        for _ in range(count):
            message = connection.expect(raw_connection.PUBLISH)
            got.append(_seq_in(message.body))
            connection.send(raw_connection.puback(message.mid))
        return commands() - before

    with raw_connection.RawConnection(ground.settings.mqtt_port) as connection:
        connection.open(vin)
        connection.listen(request_filter("agent", vin))
        connection.send(raw_connection.publish(sign_topic(vin, Sign.ONLINE), mid=2))
        first = take(connection, A_PART)
        take(connection, MANY_ENTRIES - 2 * A_PART)
        last = take(connection, A_PART)

    assert got == seqs
    assert abs(last - first) <= first / 10
    wait_until(lambda: ground.platform.pending(vin) == [])


def _seq_in(body: bytes) -> int:
    after = body.index(b"seq") + 3
    length = int.from_bytes(body[after : after + 2])
    return int(body[after + 2 : after + 2 + length])


def test_a_vin_named_twice_in_a_trigger_gets_one_entry(ground: Ground, protocol: int) -> None:
    vehicle = ground.here(Vehicle(ground, protocol=protocol).connect())
    seqs = [ground.batch(*itertools.repeat(vehicle.vin, 3)), ground.batch(vehicle.vin)]
    ground.delivered(vehicle, *seqs)
    assert len(vehicle.got) == 2
    vehicle.leave()
