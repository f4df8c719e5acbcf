"""What a dispatcher knows of the brakes: fresh or not at all, and windows by the clock of Redis."""

import asyncio
from collections.abc import Awaitable, Callable

import mqtt5
import pytest
from redis import Redis

from dispatcher import _brakes
from dispatcher._brakes import FRESH_MS, WINDOW_OVER, Brakes, Ruling
from dispatcher._monotonic import monotonic_ms
from manifold.contracts.brakes import OFF, Brake, Braking
from manifold.contracts.messages import LATEST_MS
from manifold.contracts.seq import wall_clock_ms
from manifold.queues import Policy, Queues, connect
from manifold.settings import Settings
from tests.support.servers import Server

Play = Callable[[Callable[[Brakes, Queues], Awaitable[None]]], None]


@pytest.fixture
def play(redis_server: Server, redis: Redis) -> Play:
    redis.flushall()

    def run(scenario: Callable[[Brakes, Queues], Awaitable[None]], *, port: int = redis_server.port) -> None:
        async def main() -> None:
            async with connect(f"redis://127.0.0.1:{port}/0") as client:
                queues = Queues(client, Policy.of(Settings()))
                await scenario(Brakes(queues), queues)

        asyncio.run(main())

    return run


def test_nothing_is_known_before_the_first_look_or_after_news(play: Play) -> None:
    async def scenario(brakes: Brakes, queues: Queues) -> None:
        await queues.load_brakes([Braking("c", Brake(7, "pause"))])
        assert (brakes.is_outdated, brakes.ruling("c", None)) == (True, None)
        await brakes.read()
        assert brakes.ruling("c", None) == Ruling("campaign c is paused")
        assert brakes.ruling("other", None) == Ruling()

        await queues.turn_brake("c", Brake(7, "pause"), Brake(7, OFF))
        brakes.compare_version((await queues.brakes()).version, monotonic_ms())
        assert (brakes.is_outdated, brakes.ruling("other", None)) == (True, None)
        await brakes.read()
        assert brakes.ruling("c", None) == Ruling()

    play(scenario)


def test_what_was_asked_for_too_long_ago_is_not_known(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(brakes: Brakes, queues: Queues) -> None:
        await queues.load_brakes([])
        await brakes.read()
        version, now = (await queues.brakes()).version, monotonic_ms()
        monkeypatch.setattr(_brakes, "monotonic_ms", lambda: now + FRESH_MS + 1)
        assert brakes.ruling("c", None) is None
        brakes.compare_version(version, now + FRESH_MS)
        assert brakes.ruling("c", None) == Ruling()

    play(scenario)


def test_a_redis_that_has_lost_the_brakes_lets_nothing_of_a_campaign_pass(play: Play, redis: Redis) -> None:
    async def scenario(brakes: Brakes, queues: Queues) -> None:
        await queues.load_brakes([])
        await brakes.read()
        redis.flushall()
        brakes.compare_version(b"", monotonic_ms())
        assert brakes.ruling("c", None) is None
        await brakes.read()
        ruling = brakes.ruling("c", None)
        assert ruling is not None
        assert ruling.why_not == "Redis lost its data, and the brakes of campaigns are not loaded again yet"

    play(scenario)


def test_a_window_ends_by_the_clock_of_redis(play: Play) -> None:
    async def scenario(brakes: Brakes, queues: Queues) -> None:
        await queues.load_brakes([])
        await brakes.read()
        until_ms = wall_clock_ms() + 60_000
        ruling = brakes.ruling("c", until_ms)
        assert ruling is not None
        assert ruling.expiry_s is not None
        assert 30 < ruling.expiry_s <= 60  # whole seconds that were left when it asked
        assert brakes.ruling("c", wall_clock_ms()) == Ruling(WINDOW_OVER)

    play(scenario)


def test_a_window_that_ends_in_the_year_9999_gives_an_expiry_that_a_packet_can_carry(play: Play) -> None:
    async def scenario(brakes: Brakes, queues: Queues) -> None:
        await queues.load_brakes([])
        await brakes.read()
        ruling = brakes.ruling("c", LATEST_MS)
        assert ruling is not None
        assert ruling.why_not is None
        assert mqtt5.PublishPacket(
            "t", b"x", qos=mqtt5.QoS.AT_LEAST_ONCE, packet_id=1, message_expiry_interval=ruling.expiry_s
        ).write()

    play(scenario)
