"""With a full disk, the recorder's memory is bounded, and no QoS 1 message is lost or recorded twice."""

import asyncio
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from manifold.contracts import topics
from manifold.contracts.envelope import Stream
from manifold.messaging.mqtt import Message, Mqtt
from manifold.recorder._window import MESSAGE_OVERHEAD, Window, weight
from tests.manifold.recorder.harness import Harness, harness, metric
from tests.manifold.recorder.publisher import platform
from tests.support.careless import careless
from tests.support.servers import wait_until
from tests.support.wire import trigger

LIMIT, LARGE, MANY = 1 << 20, 100_000, 40
A_READ = 300_000  # bytes per socket read
HELD = "manifold_recorder_held_bytes"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Harness]:
    with harness(tmp_path, intake_window_bytes=str(LIMIT), mqtt_shared="off") as it:
        it.load()
        yield it


def disk(home: Harness, size: int) -> None:
    """Let no file of the recorder grow beyond `size` bytes: a full disk, for root too."""
    resource.prlimit(home.running.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_window_closes_above_its_limit_reopens_at_half_and_drops_qos_0_between() -> None:
    calls: list[str] = []
    window = Window(10 * MESSAGE_OVERHEAD, on_full=lambda: calls.append("full"), on_free=lambda: calls.append("free"))
    message = Message("t", bytes(2 * MESSAGE_OVERHEAD - 1))
    assert weight(message) == 3 * MESSAGE_OVERHEAD
    loud = Message("t", b"", qos=0)
    assert all(window.admit(message) for _ in range(2))
    assert not window.admit(loud)
    assert window.admit(message)
    assert calls == []
    assert window.admit(message)
    assert window.admit(message)
    assert calls == ["full"]
    for _ in range(3):
        window.release(message)
    assert (calls, window.held_bytes) == (["full"], 6 * MESSAGE_OVERHEAD)
    window.release(message)
    assert calls == ["full", "free"]
    assert window.admit(loud)


def test_large_messages_wait_at_the_broker_across_reconnects(home: Harness) -> None:
    async def scenario() -> None:
        async with careless(home.broker.port) as cable, platform(home.broker.port) as publisher:
            home.env["MANIFOLD_MQTT_URL"] = f"mqtt://127.0.0.1:{cable.port}"
            await asyncio.to_thread(home.start)
            await asyncio.to_thread(home.wait_direct_enqueue)
            disk(home, 64)
            receipts = [await publisher.publish(topics.data_topic(f"d{n}"), bytes([n]) * LARGE) for n in range(MANY)]
            for cut in range(4):
                await asyncio.to_thread(wait_until, lambda: metric(home, HELD) > LIMIT, what="the window to be full")
                assert metric(home, HELD) < LIMIT + 2 * LARGE + A_READ
                if cut < 3:
                    cable.cut()
                    await publisher.client.publish(topics.TRIGGER, trigger([f"V{cut}"], "r"))
                    await asyncio.to_thread(wait_until, lambda n=cut + 1: cable.connections > n, what="another connection")
            disk(home, resource.RLIM_INFINITY)
            assert {(await receipt)["status"] for receipt in receipts} == {"recorded"}
            await asyncio.to_thread(wait_until, lambda: metric(home, HELD) == 0, what="all messages to be settled")
            await asyncio.to_thread(home.flush)

    asyncio.run(scenario())
    times = Counter(e.payload[0] for e in home.archived(Stream.DATA))
    assert sorted(times) == list(range(MANY))
    assert max(times.values()) <= 2  # messages being written when the first connection broke are repeated
    assert len(home.archived(Stream.TRIGGER)) == 3


def test_a_qos_0_flood_is_dropped_and_other_messages_are_not(home: Harness) -> None:
    async def scenario() -> None:
        home.start()
        home.wait_direct_enqueue()
        async with platform(home.broker.port) as publisher, Mqtt(f"mqtt://127.0.0.1:{home.broker.port}", "flood") as flood:
            await flood.wait_connected()
            disk(home, 64)
            receipt = await publisher.publish(topics.TRIGGER, trigger(["FLOODED"], "before"))
            for n in range(2000):
                await flood.publish(topics.TRIGGER, trigger(["FLOOD"], f"r{n}" + "x" * 1000), qos=0)
            dropped = "manifold_recorder_dropped_total"
            await asyncio.to_thread(wait_until, lambda: metric(home, dropped) > 0, what="some messages to be dropped")
            second = await publisher.publish(topics.TRIGGER, trigger(["FLOODED"], "after"))
            await asyncio.to_thread(wait_until, lambda: metric(home, HELD) > 0, what="a request")
            assert metric(home, HELD) < LIMIT
            disk(home, resource.RLIM_INFINITY)
            assert ((await receipt)["status"], (await second)["status"]) == ("recorded", "recorded")

    asyncio.run(scenario())
    assert len(home.pending("FLOODED")) == 2
