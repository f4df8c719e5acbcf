"""Compacted messages that are not part of their claim: from Redis if large, otherwise from the lake."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from redis import Redis

from dispatcher._ecq_messages import EcqMessages
from dispatcher._lake import Lake
from dispatcher._payloads import Found, MissingData
from manifold.contracts import keys
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import datetime_of, seq_of, wall_clock_ms
from manifold.contracts.tables import ECQ_PAYLOAD
from manifold.queues import Policy, Queues, connect
from manifold.queues.verbs.ecq import Append, LiveMessage, Load
from manifold.settings import Settings
from tests.support.lake_rows import append, new_lake
from tests.support.servers import Server

NOON_MS = round(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
ID = "client-1"
LARGE = bytes(range(256)) * 400


@pytest.fixture
def settings(redis_server: Server, tmp_path: Path) -> Settings:
    with Redis(port=redis_server.port) as redis:
        redis.flushall()
    return Settings(home=tmp_path, redis_port=redis_server.port)


def fetched(settings: Settings, seqs: list[int], *fills: Append | Load) -> list[Found | MissingData]:
    """The payloads that a dispatcher finds for these messages with this content in Redis."""

    async def main() -> list[Found | MissingData]:
        lake = Lake(settings)
        async with connect(settings.redis) as redis:
            queues = Queues(redis, Policy.of(settings))
            batch = queues.batch()
            for fill in fills:
                batch.add(ecq_queue(ID), fill, wall_clock_ms())
            await batch.run()
            messages = EcqMessages(queues, lake)
            found: dict[int, asyncio.Future[Found | MissingData]] = {
                seq: asyncio.get_running_loop().create_future() for seq in seqs
            }
            try:
                async with asyncio.timeout(60):
                    for seq, answer in found.items():
                        messages.fetch(ecq_queue(ID), seq, answer.set_result)
                    return [await answer for answer in found.values()]
            finally:
                await messages.close()
                lake.close()

    return asyncio.run(main())


def test_a_large_message_is_read_from_redis(settings: Settings) -> None:
    seq = seq_of(NOON_MS, 0, 0)
    assert fetched(settings, [seq], Append(seq, "a/b", LARGE)) == [Found("a/b", "", LARGE)]


def test_a_message_missing_in_redis_is_read_from_the_lake_and_cached(settings: Settings) -> None:
    """As after a rebuild, which loads no payloads."""
    seqs = [seq_of(NOON_MS + day * 86_400_000, 0, 0) for day in range(3)]
    rows = [{"client_id": ID, "seq": s, "key": f"k{n}", "ts": datetime_of(s), "payload": b"%d" % n} for n, s in enumerate(seqs)]
    other = [row | {"client_id": "client-2", "payload": b"another client's"} for row in rows]
    append(new_lake(settings), ECQ_PAYLOAD, rows + other)
    load = Load(0, None, None, [LiveMessage(seq, f"k{n}", False) for n, seq in enumerate(seqs)])

    assert fetched(settings, seqs, load) == [Found(f"k{n}", "", b"%d" % n) for n in range(3)]

    with Redis.from_url(settings.redis) as redis:
        assert redis.hget(keys.ecq_messages(ID), str(seqs[1])) == b"k1\x001"


def test_an_unknown_message_is_missing_even_if_the_lake_has_no_tables(settings: Settings) -> None:
    assert fetched(settings, [seq_of(NOON_MS, 0, 0)]) == [MissingData("")]
    new_lake(settings)
    assert fetched(settings, [seq_of(NOON_MS, 0, 1)]) == [MissingData("")]


def test_a_superseded_message_is_not_cached_again(settings: Settings) -> None:
    old, new = seq_of(NOON_MS, 0, 0), seq_of(NOON_MS, 0, 1)
    append(
        new_lake(settings), ECQ_PAYLOAD, [{"client_id": ID, "seq": old, "key": "a", "ts": datetime_of(old), "payload": b"old"}]
    )
    fetched(settings, [old], Append(new, "a", b"new"))
    with Redis.from_url(settings.redis) as redis:
        assert redis.hkeys(keys.ecq_messages(ID)) == [str(new).encode()]
