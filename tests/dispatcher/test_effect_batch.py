"""Replies of Redis to a batch if a vehicle's key has the wrong type."""

import asyncio
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from dispatcher._effect_batch import EffectBatch
from manifold.contracts import keys
from manifold.contracts.events import PresenceSign
from manifold.contracts.names import Owner
from manifold.contracts.seq import EPOCH_MS, seq_of
from manifold.queues import Policy, Queues
from manifold.queues.verbs.claims import Claim, ClaimWord, Park, UpdatePresence
from manifold.queues.verbs.fills import Enqueue
from manifold.settings import Settings
from tests.support.servers import Server

NOW = EPOCH_MS + 200_000_000_000
SEQ = seq_of(NOW, 0, 0)
SPOILT, SOUND = Owner("SPOILT"), Owner("SOUND")


def test_a_vehicle_with_keys_of_the_wrong_type_costs_no_other_its_claim(own_redis: Server) -> None:
    async def body() -> list[Any]:
        async with AsyncRedis(port=own_redis.port) as client:
            queues = Queues(client, Policy.of(Settings()))
            batch = queues.batch()
            batch.add(SOUND, Enqueue([(SEQ, "r")]), NOW)
            await batch.run()
            await client.hset(keys.pending(SPOILT), "not", "a queue")
            effects = EffectBatch(queues, NOW, asked_at=0)
            for owner in (SPOILT, SOUND):
                assert effects.add(owner, UpdatePresence(PresenceSign(), True))
            return await effects.run(repeated=False)

    spoilt, sound = asyncio.run(body())

    assert spoilt is None
    assert (sound.reply.next.word, sound.reply.next.seq) == (ClaimWord.CLAIMED, SEQ)


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        pytest.param(keys.pending, {"what is this": 0}, id="a member that is not a seq"),
        pytest.param(keys.pending, {"1e5": 0}, id="a number that is not a seq"),
        pytest.param(keys.presence, {"connected": "heard", "heard": "what is this"}, id="an invalid instant"),
        pytest.param(keys.inflight, {"seq": SEQ, "attempts": "what is this", "deadline": 5}, id="an invalid number of attempts"),
    ],
)
def test_a_vehicle_with_unreadable_values_costs_no_other_its_claim(own_redis: Server, kind: Any, held: dict[str, Any]) -> None:
    async def body() -> list[Any]:
        async with AsyncRedis(port=own_redis.port) as client:
            await client.flushall()
            queues = Queues(client, Policy.of(Settings()))
            batch = queues.batch()
            for owner in (SPOILT, SOUND):
                batch.add(owner, Enqueue([(SEQ, "r")]), NOW)
            await batch.run()
            write: Any = client.zadd if kind is keys.pending else client.hset
            await write(kind(SPOILT), mapping=held)
            effects = EffectBatch(queues, NOW, asked_at=0)
            for owner in (SPOILT, SOUND):
                assert effects.add(owner, Claim() if owner == SPOILT else UpdatePresence(PresenceSign(), True))
            return await effects.run(repeated=False)

    spoilt, sound = asyncio.run(body())

    assert spoilt is None
    assert (sound.reply.next.word, sound.reply.next.seq) == (ClaimWord.CLAIMED, SEQ)


def test_a_corrupt_waiting_key_fails_only_its_own_entry(own_redis: Server) -> None:
    async def body() -> list[Any]:
        async with AsyncRedis(port=own_redis.port) as client:
            queues = Queues(client, Policy.of(Settings()))
            await client.set(keys.waiting_for("d"), "not a set")
            effects = EffectBatch(queues, NOW, asked_at=0)
            effects.add(SPOILT, Park(SEQ, "d"))
            effects.add(SOUND, Park(SEQ, "other"))
            return await effects.run(repeated=False)

    spoilt, sound = asyncio.run(body())

    assert spoilt is None
    assert sound.reply.word is ClaimWord.NONE
    with Redis(port=own_redis.port) as client:
        assert client.smembers(keys.waiting_for("other")) == {f"{SOUND} {SEQ}".encode()}
