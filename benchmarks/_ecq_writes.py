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
PAUSE_S, TIMEOUT_S = 0.02, 600.0


def latencies_ms(ground: Ground, consumers: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds from each write to its arrival at the consumer, and the same for plain publishes.

    Writes and plain publishes alternate, one message at a time.
    """

    async def measure() -> tuple[list[float], list[float]]:
        writes, plain = [], []
        async with _clients(ground, consumers) as (publisher, dispatcher, vehicles):
            for number in range(rounds):
                vehicle = vehicles[number % consumers]
                writes.append(await vehicle.time(publisher.publish(ecq_write_topic(vehicle.name, f"k{number % 7}"), PAYLOAD)))
                plain.append(await vehicle.time(dispatcher.publish(f"$ECQ/{vehicle.name}/plain", PAYLOAD)))
        return writes, plain

    latencies: tuple[list[float], list[float]] = uvloop.run(measure())
    return latencies


def write_and_deliver(ground: Ground, fleet: Fleet, consumers: int, count: int) -> Rate:
    """Write `count` messages to online consumers.

    The next message to a consumer is written after the previous was acknowledged.
    """
    fleet.take()
    cpu_before, began = cpu_s(ground), time.monotonic()
    for written in range(0, count, consumers):
        key = f"k{written // consumers % 10}"
        uvloop.run(_write(ground, [(vin(number), key) for number in range(consumers)]))
        ended = fleet.wait(written + consumers, TIMEOUT_S)
    _settle(ground, [vin(n) for n in range(consumers)])
    return Rate(count / (ended - began), cpu_us(ground, cpu_before, count))


def rewrite_one_key(ground: Ground, count: int) -> list[float]:
    """Write one key of an offline client `count` times; return the writes a second in each tenth of the writes."""

    async def measure() -> list[float]:
        rates = []
        async with Mqtt(ground.settings.mqtt, PUBLISHER, username=PUBLISHER) as mqtt, Publisher(ground.settings) as publisher:
            await mqtt.wait_connected()
            for _ in range(10):
                began = time.monotonic()
                await _send(mqtt, [(vin(999_999), "one")] * (count // 10 - 1))
                await publisher.write(vin(999_999), "one", PAYLOAD)  # the receipt of this write confirms all earlier ones, too
                rates.append(count // 10 / (time.monotonic() - began))
        return rates

    rates: list[float] = uvloop.run(measure())
    return rates


def come_and_drain(ground: Ground, fleet: Fleet, first: int, consumers: int, keys_each: int) -> Rate:
    """Let consumers with `keys_each` live keys come online, a hundred at a time; return the rate until all is delivered."""
    names = [vin(number) for number in range(first, first + consumers)]
    uvloop.run(_write(ground, [(name, f"k{key}") for key in range(keys_each) for name in names]))
    count = consumers * keys_each
    ground.seal()
    fleet.take()
    cpu_before, began = cpu_s(ground), time.monotonic()
    fleet.connect(first, consumers)
    ended = fleet.wait(count, TIMEOUT_S * 2)
    _settle(ground, names)
    return Rate(count / (ended - began), cpu_us(ground, cpu_before, count))


class _Consumer:
    """A consumer that notes when a message arrives."""

    def __init__(self, ground: Ground, name: str) -> None:
        self.name = name
        self._arrived = asyncio.Event()
        self._arrived_at = 0.0
        self.mqtt = Mqtt(ground.settings.mqtt, name)
        self.mqtt.on_message = self._take

    def _take(self, message: Message) -> None:
        self._arrived_at = time.perf_counter()
        self.mqtt.ack(message)
        self._arrived.set()

    async def time(self, publish: Awaitable[Any]) -> float:
        """Return the milliseconds until the published message has arrived, after a pause of `PAUSE_S`."""
        self._arrived.clear()
        began = time.perf_counter()
        sending = asyncio.ensure_future(publish)
        await self._arrived.wait()
        await sending
        await asyncio.sleep(PAUSE_S)
        return (self._arrived_at - began) * 1000


@asynccontextmanager
async def _clients(ground: Ground, consumers: int) -> AsyncIterator[tuple[Mqtt, Mqtt, list[_Consumer]]]:
    """Connect a publisher, a client with the dispatcher's rights, and consumers that have subscribed."""
    settings = ground.settings
    publisher = Mqtt(settings.mqtt, PUBLISHER, username=PUBLISHER)
    dispatcher = Mqtt(settings.mqtt, "sdv-bench-plain", username=settings.mqtt_username_dispatcher)
    vehicles = [_Consumer(ground, f"LIGHT{n:03}") for n in range(consumers)]
    async with AsyncExitStack() as running:
        for mqtt in (publisher, dispatcher, *(vehicle.mqtt for vehicle in vehicles)):
            await running.enter_async_context(mqtt)
            await mqtt.wait_connected()
        for vehicle in vehicles:
            await vehicle.mqtt.subscribe(ecq_filter(vehicle.name))
        yield publisher, dispatcher, vehicles


async def _write(ground: Ground, messages: Sequence[tuple[str, str]]) -> None:
    """Write messages, given as (client id, key), over a new connection; return once the broker has acknowledged all."""
    async with Mqtt(ground.settings.mqtt, PUBLISHER, username=PUBLISHER) as mqtt:
        await mqtt.wait_connected()
        await _send(mqtt, messages)


async def _send(mqtt: Mqtt, messages: Sequence[tuple[str, str]]) -> None:
    unacknowledged: deque[asyncio.Future[int]] = deque()
    for client_id, key in messages:
        if len(unacknowledged) == MAX_UNACKNOWLEDGED:
            await unacknowledged.popleft()
        unacknowledged.append(mqtt.publish(ecq_write_topic(client_id, key), PAYLOAD))
    await asyncio.gather(*unacknowledged)


def _settle(ground: Ground, names: Sequence[str]) -> None:
    """Wait until no message of these clients is pending."""
    deadline = time.monotonic() + 60
    while pending := _pending(ground, names):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{pending} messages are still pending")
        time.sleep(0.1)


def _pending(ground: Ground, names: Sequence[str]) -> int:
    """Return the number of pending messages in the compacted queues of these clients."""
    pipe = ground.redis.pipeline(transaction=False)
    for name in names:
        pipe.zcard(keys.ecq_keys(name)[0])
    return sum(pipe.execute())
