"""Direct enqueue of a small trigger, and many commands in one round trip."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from manifold.contracts import keys
from manifold.contracts.events import Connected
from manifold.contracts.names import Owner
from manifold.contracts.seq import EPOCH_MS, seq_of
from manifold.queues import Queues, connect
from manifold.queues._connection import exchange
from manifold.queues.verbs.claims import UpdatePresence
from manifold.queues.verbs.fills import DirectEnqueue, EnqueueReply
from tests.manifold.queues.conftest import POLICY, seqs_of
from tests.support.servers import Server

NOW = EPOCH_MS + 200_000_000_000
SEQ = [seq_of(NOW + n, 0, 0) for n in range(3)]
LOADING = b"%d" % NOW
Use = Callable[[Callable[[Queues], Awaitable[Any]]], Any]


@pytest.fixture
def use(redis_server: Server, redis: Redis) -> Use:
    """Run `body(queues)` on its own event loop over the services' kind of connection."""

    def run(body: Callable[[Queues], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            async with connect(f"redis://127.0.0.1:{redis_server.port}/0") as client:
                return await body(Queues(client, replace(POLICY, compaction=True)))

        return asyncio.run(main())

    return run


async def enqueue_directly(
    queues: Queues, seq: int, *, owner: str = "V1", digest: str = "digest", load_id: bytes = LOADING
) -> EnqueueReply:
    batch = queues.batch()
    batch.add(owner, DirectEnqueue(seq, "task_a_1", "d1", digest, load_id), NOW)
    (reply,) = await batch.run()
    assert isinstance(reply, EnqueueReply)
    return reply


def register(redis: Redis, seq: int) -> None:
    redis.set(keys.dedupe("digest"), seq)


def test_nothing_is_enqueued_if_the_queues_are_not_loaded(use: Use, redis: Redis) -> None:
    register(redis, SEQ[0])
    assert use(lambda queues: enqueue_directly(queues, SEQ[0])) == EnqueueReply("unloaded", 0, ())
    assert redis.keys("q:*") == []


def test_nothing_is_enqueued_if_the_queues_were_reloaded_meanwhile(use: Use, redis: Redis) -> None:
    redis.set(keys.LOADED, NOW + 1)
    register(redis, SEQ[0])
    assert use(lambda queues: enqueue_directly(queues, SEQ[0])) == EnqueueReply("unloaded", 0, ())
    assert redis.keys("q:*") == []


@pytest.mark.parametrize("first", [None, SEQ[1]], ids=["not registered", "registered for another"])
def test_nothing_is_enqueued_for_a_trigger_with_a_foreign_digest(use: Use, redis: Redis, first: int | None) -> None:
    redis.set(keys.LOADED, NOW)
    if first is not None:
        register(redis, first)
    assert use(lambda queues: enqueue_directly(queues, SEQ[0])) == EnqueueReply("duplicate", 0, ())
    assert redis.keys("q:*") == []


def test_an_absent_vehicle_wakes_no_dispatcher_and_its_trigger_is_superseded(use: Use, redis: Redis) -> None:
    redis.set(keys.LOADED, NOW)
    register(redis, SEQ[0])
    assert use(lambda queues: enqueue_directly(queues, SEQ[0])) == EnqueueReply("queued", 1, ())
    register(redis, SEQ[1])
    assert use(lambda queues: enqueue_directly(queues, SEQ[1])) == EnqueueReply("queued", 1, (SEQ[0],))
    assert seqs_of(redis, keys.pending("V1")) == [SEQ[1]]
    assert redis.keys("wake:*") == []


def test_a_connected_vehicle_wakes_a_dispatcher_with_the_trigger(use: Use, redis: Redis) -> None:
    redis.set(keys.LOADED, NOW)
    register(redis, SEQ[0])

    async def body(queues: Queues) -> None:
        await queues.join_wakes()
        batch = queues.batch()
        batch.add("V1", UpdatePresence(Connected(Owner("V1"), NOW, True, 0), False), NOW)
        await batch.run()
        assert (await enqueue_directly(queues, SEQ[0])).word == "ready"
        (wake,) = await queues.read_wakes("a", count=10, block_ms=1)
        assert (wake.owners, wake.trigger) == (["V1"], (SEQ[0], "task_a_1", "d1"))

    use(body)


def test_an_exchange_answers_each_command_in_order_refusals_included(use: Use) -> None:
    async def body(queues: Queues) -> None:
        commands = [
            ("SET", "a", "1"),
            ("INCR", "a"),
            ("LPUSH", "a", "x"),
            ("EVALSHA", "0" * 40, 0),
            ("GET", "a"),
            ("GET", "none"),
        ]
        ok, two, refused, forgotten, value, none = await exchange(queues.redis, commands)
        assert (ok, two, value, none) == (b"OK", 2, b"2", None)
        assert isinstance(refused, ResponseError)
        assert isinstance(forgotten, NoScriptError)
        large = await exchange(queues.redis, [("SET", "b", bytes(1 << 20)), *[("GET", "b")] * 20])
        assert [len(reply) for reply in large[1:]] == [1 << 20] * 20

    use(body)


def test_an_interrupted_exchange_leaves_no_answer_for_the_next(use: Use) -> None:
    async def body(queues: Queues) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await exchange(queues.redis, [("SET", "a", "old"), ("BLPOP", "nothing", 0), ("GET", "a")])
        assert await exchange(queues.redis, [("PING",)]) == [b"PONG"]
        killed = asyncio.create_task(exchange(queues.redis, [("BLPOP", "nothing", 0)]))
        await queues.redis.ping()
        while not any(client["cmd"] == "blpop" for client in await queues.redis.client_list()):
            pass
        await queues.redis.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(RedisError):
            await killed
        assert await exchange(queues.redis, [("PING",)]) == [b"PONG"]

    use(body)
