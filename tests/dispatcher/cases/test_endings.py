"""Entries that end without a delivery: superseded, cancelled, expired."""

from manifold.console._cancel import cancel as console_cancel
from manifold.contracts import keys
from manifold.contracts.events import PresenceSign
from manifold.contracts.outcomes import Outcome
from manifold.contracts.seq import SeqSource, unix_ms_of, wall_clock_ms
from manifold.queues import Queues
from manifold.queues.verbs.claims import Park, UpdatePresence
from tests.dispatcher.cases.ground import Ground
from tests.dispatcher.vehicle import Vehicle
from tests.manifold.queues.triggers import enqueue_trigger
from tests.support.servers import wait_until

SOON_MS, MINUTE_MS, DAY_MS = 3_000, 60_000, 86_400_000


def queue_aged(ground: Ground, vin: str, age_ms: int, data_id: str) -> int:
    """Load an entry of this age into the queue, as a rebuild does; return its seq."""
    now_ms = wall_clock_ms()
    seq = SeqSource(0, clock_ms=lambda: now_ms - age_ms).next()

    async def queue(queues: Queues) -> None:
        await enqueue_trigger(queues, seq, [vin], "task_aged", data_id, now_ms)

    ground.platform.ask(queue)
    return seq


def test_compaction_supersedes_a_pending_batch_but_not_one_in_flight(brisk: Ground, protocol: int) -> None:
    """The vehicle may have that already."""
    vehicle = Vehicle(brisk, protocol=protocol)
    vehicle.acks = False
    brisk.here(vehicle.connect())
    in_flight = brisk.batch(vehicle.vin, request_id="task_c", data=b"1")
    vehicle.waits_for(1)
    replaced = brisk.batch(vehicle.vin, request_id="task_c", data=b"2")
    other = brisk.batch(vehicle.vin, request_id="task_other", data=b"3")
    newest = brisk.batch(vehicle.vin, request_id="task_c", data=b"4")

    vehicle.acks = True
    vehicle.ack(vehicle.got[-1])

    ended = brisk.ended(vehicle, in_flight, replaced, other, newest)
    assert {seq for seq, record in ended.items() if record.outcome is Outcome.SUPERSEDED} == {replaced}
    assert {seq for seq, record in ended.items() if record.outcome is Outcome.DELIVERED} == {in_flight, other, newest}
    assert list(dict.fromkeys(got.payload for got in vehicle.got)) == [b"1", b"3", b"4"]
    vehicle.leave()


def test_compaction_supersedes_a_batch_parked_for_its_data(brisk: Ground, protocol: int) -> None:
    """Parked entries are pending."""
    vehicle = brisk.here(Vehicle(brisk, protocol=protocol).connect())
    data_id = f"old-{protocol}"
    old = brisk.batch(vehicle.vin, request_id="task_c", data=None, data_id=data_id)
    wait_until(lambda: brisk.parked(vehicle) == [old])

    new = brisk.batch(vehicle.vin, request_id="task_c", data=b"new")
    ended = brisk.ended(vehicle, old, new)
    brisk.data(data_id, b"old")

    assert {seq: record.outcome for seq, record in ended.items()} == {old: Outcome.SUPERSEDED, new: Outcome.DELIVERED}
    assert brisk.parked(vehicle) == []
    after = brisk.batch(vehicle.vin, data=b"after")
    brisk.ended(vehicle, old, new, after)
    assert [got.payload for got in vehicle.got] == [b"new", b"after"]
    vehicle.leave()


def test_an_entry_past_its_retention_expires_and_is_never_sent(ground: Ground, protocol: int) -> None:
    """It ends when its turn comes, and younger entries follow."""
    vehicle = Vehicle(ground, protocol=protocol)
    ground.data("aged-data", b"hello")
    expired = [queue_aged(ground, vehicle.vin, ground.retention_ms + 1000 * n, "aged-data") for n in (3, 2, 1)]
    young = ground.batch(vehicle.vin, request_id="young")

    ground.here(vehicle.connect())

    ended = ground.ended(vehicle, *expired, young)
    assert {seq for seq, record in ended.items() if record.outcome is Outcome.EXPIRED} == set(expired)
    assert ended[young].outcome is Outcome.DELIVERED
    assert vehicle.requests == ["young"]
    vehicle.leave()


def test_data_that_arrives_after_its_trigger_expired_sends_nothing(ground: Ground) -> None:
    vehicle = ground.here(Vehicle(ground).connect())
    seq = queue_aged(ground, vehicle.vin, ground.retention_ms - SOON_MS, "too-late")
    wait_until(lambda: ground.parked(vehicle) == [seq])
    wait_until(lambda: wall_clock_ms() > unix_ms_of(seq) + ground.retention_ms, what="its retention to pass")

    ground.data("too-late", b"too late")

    assert ground.ended(vehicle, seq)[seq].outcome is Outcome.EXPIRED
    assert vehicle.got == []
    with ground.platform.blocking() as redis:
        assert redis.exists(keys.waiting_for("too-late")) == 0
    vehicle.leave()


def test_entries_of_a_vehicle_that_never_connects_expire_even_without_data(brisk: Ground) -> None:
    """A slow walk over all queues ends such entries."""
    away, lacking = Vehicle(brisk), Vehicle(brisk)  # neither ever connects
    age_ms = brisk.retention_ms + 10 * MINUTE_MS
    seq = queue_aged(brisk, away.vin, age_ms, "aged-alone")
    parked = queue_aged(brisk, lacking.vin, age_ms, "never-came")

    async def park(queues: Queues) -> None:
        """Park the entry as a dispatcher did a day ago."""
        then_ms, batch = wall_clock_ms() - DAY_MS, queues.batch()
        batch.add(lacking.vin, UpdatePresence(PresenceSign(), True), then_ms)
        batch.add(lacking.vin, Park(parked, "never-came"), then_ms)
        await batch.run()

    brisk.platform.ask(park)
    assert brisk.pending(lacking) == []

    assert brisk.ended(away, seq)[seq].outcome is Outcome.EXPIRED
    assert brisk.ended(lacking, parked)[parked].outcome is Outcome.EXPIRED
    assert brisk.parked(lacking) == []


def cancel(ground: Ground, request_id: str, *vins: str) -> dict[str, int]:
    """Run the logic of `manifold batch cancel`; return the number of entries by state."""
    with ground.platform.blocking() as redis:
        return dict(console_cancel(ground.settings, redis, request_id, frozenset(vins)).entries)


def test_a_cancelled_batch_is_no_longer_sent_and_one_in_flight_ends_by_its_ack(ground: Ground, protocol: int) -> None:
    """What is in flight may have arrived."""
    busy, away = Vehicle(ground, protocol=protocol), Vehicle(ground, protocol=protocol)
    busy.acks = False
    ground.here(busy.connect())
    request_id = f"task_stop_{protocol}"
    seq = ground.batch(busy.vin, away.vin, request_id=request_id)
    following = ground.batch(busy.vin, away.vin, request_id="task_go")
    busy.waits_for(1)

    assert cancel(ground, request_id) == {"cancelled": 1, "in flight": 1}
    busy.acks = True
    busy.ack(busy.got[0])
    ground.here(away.connect())

    ground.delivered(busy, seq, following)
    ended = ground.ended(away, seq, following)
    assert [ended[seq].outcome, ended[following].outcome] == [Outcome.CANCELLED, Outcome.DELIVERED]
    assert (busy.requests, away.requests) == ([request_id, "task_go"], ["task_go"])
    busy.leave()
    away.leave()


def test_a_batch_can_be_cancelled_for_one_vehicle(ground: Ground, protocol: int) -> None:
    out, still = Vehicle(ground, protocol=protocol), Vehicle(ground, protocol=protocol)
    request_id = f"task_one_{protocol}"
    seq = ground.batch(out.vin, still.vin, request_id=request_id)

    assert cancel(ground, request_id, out.vin) == {"cancelled": 1}
    for vehicle in (out, still):
        ground.here(vehicle.connect())

    ground.delivered(still, seq)
    assert ground.ended(out, seq)[seq].outcome is Outcome.CANCELLED
    assert out.got == []
    out.leave()
    still.leave()


def test_an_entry_cancelled_in_flight_is_not_resent_at_its_deadline(brisk: Ground, protocol: int) -> None:
    """It ends as cancelled at its deadline."""
    vehicle = Vehicle(brisk, protocol=protocol)
    vehicle.acks = False
    brisk.here(vehicle.connect())
    request_id = f"task_silent_{protocol}"
    seq = brisk.batch(vehicle.vin, request_id=request_id)
    vehicle.waits_for(1)

    assert cancel(brisk, request_id) == {"in flight": 1}

    ended = brisk.ended(vehicle, seq)[seq]
    assert ended.outcome is Outcome.CANCELLED
    assert ended.attempts == len(vehicle.got)
    vehicle.leave()
