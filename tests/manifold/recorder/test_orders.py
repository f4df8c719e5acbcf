"""Orders to campaigns through a real broker and recorder: their receipts, and their order with what else one client publishes."""

import asyncio

from manifold.contracts import topics
from manifold.contracts.campaigns import Fence, Note, decode, encode
from manifold.contracts.envelope import Stream
from tests.manifold.recorder.harness import Harness
from tests.manifold.recorder.publisher import Platform, platform
from tests.support.wire import trigger

CLIENT = "sdv-campaigns-campaigner"
ROUNDS = 50


async def publish(client: Platform, rounds: range) -> "list[asyncio.Future[dict[str, object]]]":
    """Publish an order and a trigger in each round without waiting for receipts; return the receipts."""
    receipts = []
    for n in rounds:
        receipts.append(await client.publish(topics.CAMPAIGN, encode(Note("maps-47", "campaigner/1", why=str(n)))))
        receipts.append(await client.publish(topics.TRIGGER, trigger([f"OF{n}"], "maps-47")))
    return receipts


def test_orders_and_triggers_of_one_client_get_ascending_seqs(shared: Harness) -> None:
    async def scenario() -> list[dict[str, object]]:
        async with platform(shared.broker.port, CLIENT) as client:
            return list(await asyncio.gather(*await publish(client, range(ROUNDS))))

    receipts = asyncio.run(scenario())
    seqs = [receipt["seq"] for receipt in receipts]
    assert {receipt["status"] for receipt in receipts} == {"recorded"}
    assert seqs == sorted(set(seqs))  # type: ignore[type-var]  # ints


def test_a_refused_order_is_answered_with_field_and_remedy(shared: Harness) -> None:
    async def scenario() -> dict[str, object]:
        async with platform(shared.broker.port, CLIENT) as client:
            return await client.send(topics.CAMPAIGN, b'{"do": "pause", "campaign": "a b", "by": "ann"}')

    receipt = asyncio.run(scenario())
    assert receipt["status"] == "refused"
    assert "campaign: must be 1 to 128" in str(receipt["reason"])


def test_all_that_a_replaced_campaigner_published_comes_before_the_fence(home: Harness) -> None:
    """A campaigner that takes over publishes its fence under the same client id, even if the recorder died in between."""

    async def scenario() -> int:
        async with platform(home.broker.port, CLIENT) as old:
            await asyncio.gather(*await publish(old, range(ROUNDS)))
            home.running.kill()
            await publish(old, range(ROUNDS, 2 * ROUNDS))
        async with platform(home.broker.port, CLIENT) as new:
            fence = await new.publish(topics.CAMPAIGN, encode(Fence("maps-47", "campaigner/2", epoch=7)))
            await asyncio.to_thread(home.start)
            return int((await fence)["seq"])

    fence = asyncio.run(scenario())
    home.wait_direct_enqueue()
    home.flush()
    orders, triggers = home.archived(Stream.CAMPAIGN), home.archived(Stream.TRIGGER)
    notes = {note.why for note in (decode(each.payload) for each in orders) if isinstance(note, Note)}
    assert notes == {str(n) for n in range(2 * ROUNDS)}
    assert len({each.payload for each in triggers}) == 2 * ROUNDS
    assert max(each.seq for each in orders + triggers) == fence
