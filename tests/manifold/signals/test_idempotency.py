"""Nonces and idempotency keys in a real Redis: the known state of a message, its lifetime, and its size."""

import asyncio
import hashlib
import itertools
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from manifold.contracts.signals import keys, topology
from manifold.contracts.signals.messages import RawSignal, parse_raw
from manifold.queues import connect
from manifold.settings import Settings
from manifold.signals import _idempotency
from manifold.signals._idempotency import Claim, IdempotencyStore
from manifold.signals._received import Accepted, Received
from tests.manifold.signals.gateway import body_of
from tests.support.servers import Server

NEW, AGAIN, DUPLICATE, BUSY, REPLAY, CONFLICT = Claim
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NONCES = (os.urandom(16).hex() for _ in itertools.count())


def message(content: str, nonce: str | None, *, device: str = "d", key: str | None = None) -> Accepted:
    said = parse_raw(body_of(device))
    assert isinstance(said, RawSignal)
    digest = hashlib.sha256(content.encode()).hexdigest()
    return Accepted(Received(topology.RAW, b"", {}, NOW), said, b"", digest, key or digest, digest, nonce, None)


@pytest.fixture
def redis(own_redis: Server) -> Redis:
    return Redis(port=own_redis.port)


@pytest.fixture
def ask(own_redis: Server, tmp_path: Path) -> Callable[[Callable[[IdempotencyStore], Awaitable[Any]]], Any]:
    """Ask a new IdempotencyStore over a new connection; return its answer."""
    settings = Settings(home=tmp_path, signals_nonce_seconds=3600, signals_tolerance_seconds=300)

    def ask(question: Callable[[IdempotencyStore], Awaitable[Any]]) -> Any:
        async def answer() -> Any:
            client = connect(f"redis://127.0.0.1:{own_redis.port}/0")
            try:
                return await question(IdempotencyStore(client, settings))
            finally:
                await client.aclose()

        return asyncio.run(answer())

    return ask


def test_redis_knows_the_state_of_a_message(ask: Any) -> None:
    n1, n2, n3 = (next(NONCES) for _ in range(3))
    a, other = message("a", n1), message("b", n1)
    assert ask(lambda once: once.claim([a, a, other])) == [NEW, AGAIN, REPLAY]
    assert ask(lambda once: once.claim([message("a", n1, key="k"), message("a", n2)])) == [REPLAY, BUSY]
    ask(lambda once: once.release([a]))
    assert ask(lambda once: once.claim([message("a", n2)])) == [NEW]
    ask(lambda once: once.release([a]))  # now held by another
    ask(lambda once: once.mark_processed([message("a", n2)]))
    assert ask(lambda once: once.claim([a, message("a", n3), message("a", n1, device="e")])) == [DUPLICATE, DUPLICATE, NEW]
    assert ask(lambda once: once.claim([message("c", next(NONCES), key="k"), message("d", next(NONCES), key="k")])) == [
        NEW,
        CONFLICT,
    ]
    assert ask(lambda once: once.claim([message("e", None), message("e", None)])) == [NEW, AGAIN]


@pytest.mark.parametrize(
    ("later_s", "known"),
    [
        pytest.param(3899, REPLAY, id="as long as its message is fresh"),
        pytest.param(-900, REPLAY, id="written by a service with a slow clock"),
        pytest.param(6000, NEW, id="at most one generation longer"),
    ],
)
@pytest.mark.parametrize("at", [1_800_000_000.0, 1_800_000_500.0, 1_800_000_974.0])
def test_a_nonce_is_known_for_as_long_as_required(
    ask: Any, monkeypatch: pytest.MonkeyPatch, at: float, later_s: float, known: Claim
) -> None:
    nonce = next(NONCES)
    monkeypatch.setattr(_idempotency, "time", _Clock(at))
    ask(lambda once: once.claim([message("a", nonce)]))
    monkeypatch.setattr(_idempotency, "time", _Clock(at + later_s))

    assert ask(lambda once: once.claim([message("b", nonce)])) == [known]


class _Clock:
    def __init__(self, now: float) -> None:
        self._now = now

    def time(self) -> float:
        return self._now


def test_every_key_expires_and_none_names_its_device(ask: Any, redis: Redis) -> None:
    device = "device-8f3a"
    signals = [message(str(n), next(NONCES), device=device) for n in range(20)]
    ask(lambda once: once.claim(signals))
    ask(lambda once: once.mark_processed(signals[:10]))
    found = {key: redis.ttl(key) for key in redis.scan_iter()}

    assert len(found) == 21
    assert all(0 < left <= 4875 for left in found.values())
    assert not any(device.encode() in key for key in found)
    assert {redis.object("encoding", key) for key in found if b":n:" in key} == {b"listpack"}


def test_a_nonce_takes_less_than_sixty_bytes(ask: Any, redis: Redis) -> None:
    """A hundred devices, a hundred nonces each: what the sizing in docs/guides/signals.md counts with."""

    async def note(once: IdempotencyStore) -> None:
        for _ in range(100):
            await once.claim([message("a", next(NONCES), device=f"device-{d}", key="one") for d in range(100)])

    ask(lambda once: once.claim([message("a", None, device=f"device-{d}", key="one") for d in range(100)]))
    before = int(redis.info("memory")["used_memory"])
    ask(note)
    of_hashes = sum(int(redis.memory_usage(key) or 0) for key in redis.scan_iter(match="x:*:n:*"))

    assert of_hashes / 10_000 < 60, f"{(int(redis.info('memory')['used_memory']) - before) / 10_000} in all"
    assert keys.GENERATIONS == 4
