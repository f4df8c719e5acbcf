"""`/vins/{vin}`: presence and entries that are pending, parked, in flight or remembered, page by page."""

import time

import httpx
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.events import Connected, Disconnected
from manifold.contracts.names import Owner
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import datetime_of, seq_of
from manifold.queues import Queues
from manifold.queues.verbs.claims import Park, UpdatePresence
from manifold.queues.verbs.ends import Ack
from tests.manifold.api.desk import Desk
from tests.manifold.queues.triggers import enqueue_trigger

NOW = time.time_ns() // 1_000_000


def seqs(count: int) -> list[int]:
    """Seqs that differ in their last bits only: equal as doubles."""
    return [seq_of(NOW, 0, n) for n in range(count)]


def test_an_unknown_vehicle_has_an_empty_queue(desk: Desk) -> None:
    assert desk.get("/vins/NOBODY").json() == {
        "vin": "NOBODY",
        "presence": None,
        "pending": 0,
        "parked": 0,
        "in_flight": 0,
        "remembered": 0,
        "entries": [],
        "after": None,
        "ended": [],
    }


def test_a_vehicle_is_returned_with_entry_states_and_presence(desk: Desk) -> None:
    vin, (first, second, third, fourth) = "STANDING", seqs(4)

    async def body(queues: Queues) -> None:
        batch = queues.batch()
        batch.add(vin, UpdatePresence(Connected(Owner(vin), NOW, True, 0), False), NOW)
        await batch.run()
        for seq in (first, second, third, fourth):
            await enqueue_trigger(queues, seq, [vin], f"task_{seq}", "d", NOW)
        claim = UpdatePresence(Connected(Owner(vin), NOW, False, 0), True)
        batch.add(vin, claim, NOW)
        await batch.run()
        batch.add(vin, Ack(OutcomeRecord(vin, first, Outcome.DELIVERED, NOW)), NOW)  # claims the second
        await batch.run()
        batch.add(vin, Park(second, "d"), NOW)
        batch.add(vin, claim, NOW)  # claims the third
        await batch.run()

    desk.use(body)

    vehicle = desk.get(f"/vins/{vin}").json()
    assert {name: vehicle[name] for name in ("pending", "parked", "in_flight", "remembered", "after")} == {
        "pending": 1,
        "parked": 1,
        "in_flight": 1,
        "remembered": 1,
        "after": None,
    }
    assert [(e["seq"], e["state"], e["attempts"]) for e in vehicle["entries"]] == [
        (second, "parked", 0),
        (third, "in flight", 1),
        (fourth, "pending", 0),
    ]
    assert [(e["seq"], e["state"], e["attempts"]) for e in vehicle["ended"]] == [(first, "delivered", None)]
    third_entry = vehicle["entries"][1]
    assert (third_entry["request_id"], third_entry["data_id"]) == (f"task_{third}", "d")
    assert third_entry["accepted_at"] == datetime_of(third).isoformat().replace("+00:00", "Z")
    assert third_entry["dispatched_at"] is not None
    assert (vehicle["presence"]["here"], vehicle["presence"]["listening"]) == (True, True)

    async def leave(queues: Queues) -> None:
        batch = queues.batch()
        batch.add(vin, UpdatePresence(Disconnected(Owner(vin), NOW + 1, NOW, None, "normal"), False), NOW + 1)
        await batch.run()

    desk.use(leave)
    assert (desk.get(f"/vins/{vin}").json()["presence"]["here"]) is False


def test_pages_list_each_entry_once_even_if_redis_scores_collide(desk: Desk) -> None:
    vin, wanted = "PAGES", [*seqs(7), seq_of(NOW + 1, 0, 0)]

    async def body(queues: Queues) -> None:
        for seq in wanted:
            await enqueue_trigger(queues, seq, [vin], "r", "d", NOW)

    desk.use(body)

    found: list[int] = []
    after: int | None = 0
    while after is not None:
        page = desk.get(f"/vins/{vin}", limit=3, after=after).json()
        assert len(page["entries"]) <= 3
        assert page["pending"] == 8
        found += [entry["seq"] for entry in page["entries"]]
        after = page["after"]
    assert found == wanted


def test_a_corrupt_key_is_named_without_an_internal_error(desk: Desk) -> None:
    with Redis(port=desk.redis.port) as redis:
        redis.set(keys.pending("SPOILT"), "something else")

    answer = desk.get("/vins/SPOILT")

    assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
    assert "SPOILT in Redis holds another type" in answer.json()["detail"]
