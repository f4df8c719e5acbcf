"""Writes to compacted queues of a running platform: latency, CPU, and rates of rewriting and draining."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import uvloop

from benchmarks._fleet import Fleet
from benchmarks._ground import PAYLOAD, Ground, vin
from benchmarks._rates import Rate, cpu_s, cpu_us
from manifold.contracts import keys
from manifold.contracts.topics import ecq_filter, ecq_write_topic
from manifold.messaging.mqtt import Message, Mqtt
from manifold.messaging.publisher import Publisher

PUBLISHER = "sdv-pub-bench"
MAX_UNACKNOWLEDGED = 500  # writes
PAUSE_S, WITHIN_S = 0.02, 600.0


def latencies_ms(ground: Ground, consumers: int, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds from a write to its consumer, one at a time; and of plain publishes to the same consumers, in turn."""

    async def measure() -> tuple[list[float], list[float]]:
        writes, plain = [], []
        async with _clients(ground, consumers) as (publisher, dispatcher, vehicles):
            for number in range(rounds):
                vehicle = vehicles[number % consumers]
                writes.append(await vehicle.time(publisher.publish(ecq_write_topic(vehicle.name, f"k{number % 7}"), PAYLOAD)))
                plain.append(await vehicle.time(dispatcher.publish(f"$ECQ/{vehicle.name}/plain", PAYLOAD)))
        return writes, plain

    found: tuple[list[float], list[float]] = uvloop.run(measure())
    return found


def write_and_deliver(ground: Ground, fleet: Fleet, consumers: int, count: int) -> Rate:
    """Write to online consumers; each message is acknowledged before the next one of its consumer is written."""
    fleet.take()
    before, began = cpu_s(ground), time.monotonic()
    turn = consumers
    for first in range(0, count, turn):
        uvloop.run(_write(ground, [(vin(n), f"k{first // turn % 10}") for n in range(turn)]))
        ended = fleet.wait(first + turn, WITHIN_S)
    _settle(ground, [vin(n) for n in range(consumers)])
    return Rate(count / (ended - began), cpu_us(ground, before, count))


def rewrite_one_key(ground: Ground, count: int) -> list[float]:
    """Writes a second of one key of an offline client, for each tenth of `count`."""

    async def measure() -> list[float]:
        rates = []
        async with Mqtt(ground.settings.mqtt, PUBLISHER, username=PUBLISHER) as mqtt, Publisher(ground.settings) as last:
            await mqtt.wait_connected()
            for _ in range(10):
                began = time.monotonic()
                await _send(mqtt, [(vin(999_999), "one")] * (count // 10 - 1))
                await last.write(vin(999_999), "one", PAYLOAD)  # its receipt confirms all writes before it, too
                rates.append(count // 10 / (time.monotonic() - began))
        return rates

    rates: list[float] = uvloop.run(measure())
    return rates


def come_and_drain(ground: Ground, fleet: Fleet, first: int, consumers: int, each: int) -> Rate:
    """Let consumers with `each` live keys come online, a hundred at a time, until all is delivered."""
    names = [vin(number) for number in range(first, first + consumers)]
    uvloop.run(_write(ground, [(name, f"k{k}") for k in range(each) for name in names]))
    count = consumers * each
    ground.seal()
    fleet.take()
    before, began = cpu_s(ground), time.monotonic()
    fleet.connect(first, consumers)
    ended = fleet.wait(count, WITHIN_S * 2)
    _settle(ground, names)
    return Rate(count / (ended - began), cpu_us(ground, before, count))


class _Consumer:
    def __init__(self, ground: Ground, name: str) -> None:
        self.name, self._arrived, self._at = name, asyncio.Event(), 0.0
        self.mqtt = Mqtt(ground.settings.mqtt, name)
        self.mqtt.on_message = self._take

    def _take(self, message: Message) -> None:
        self._at = time.perf_counter()
        self.mqtt.ack(message)
        self._arrived.set()

    async def time(self, publish: Awaitable[Any]) -> float:
        """Milliseconds until the published message has arrived; then pause."""
        self._arrived.clear()
        began = time.perf_counter()
        sending = asyncio.ensure_future(publish)
        await self._arrived.wait()
        await sending
        await asyncio.sleep(PAUSE_S)
        return (self._at - began) * 1000


@asynccontextmanager
async def _clients(ground: Ground, consumers: int) -> AsyncIterator[tuple[Mqtt, Mqtt, list[_Consumer]]]:
    """A publisher, a client with the dispatcher's rights, and consumers that have subscribed."""
    s = ground.settings
    publisher = Mqtt(s.mqtt, PUBLISHER, username=PUBLISHER)
    dispatcher = Mqtt(s.mqtt, "sdv-bench-plain", username=s.mqtt_username_dispatcher)
    vehicles = [_Consumer(ground, f"LIGHT{n:03}") for n in range(consumers)]
    async with AsyncExitStack() as running:
        for mqtt in (publisher, dispatcher, *(vehicle.mqtt for vehicle in vehicles)):
            await running.enter_async_context(mqtt)
            await mqtt.wait_connected()
        for vehicle in vehicles:
            await vehicle.mqtt.subscribe(ecq_filter(vehicle.name))
        yield publisher, dispatcher, vehicles


async def _write(ground: Ground, messages: Sequence[tuple[str, str]]) -> None:
    async with Mqtt(ground.settings.mqtt, PUBLISHER, username=PUBLISHER) as mqtt:
        await mqtt.wait_connected()
        await _send(mqtt, messages)


async def _send(mqtt: Mqtt, messages: Sequence[tuple[str, str]]) -> None:
    under_way: deque[asyncio.Future[int]] = deque()
    for name, key in messages:
        if len(under_way) == MAX_UNACKNOWLEDGED:
            await under_way.popleft()
        under_way.append(mqtt.publish(ecq_write_topic(name, key), PAYLOAD))
    await asyncio.gather(*under_way)


def _settle(ground: Ground, names: Sequence[str]) -> None:
    deadline = time.monotonic() + 60
    while left := _pending(ground, names):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{left} messages are still pending")
        time.sleep(0.1)


def _pending(ground: Ground, names: Sequence[str]) -> int:
    pipe = ground.redis.pipeline(transaction=False)
    for name in names:
        pipe.zcard(keys.ecq_keys(name)[0])
    return sum(pipe.execute())
