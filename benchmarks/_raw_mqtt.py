"""Raw MQTT, the dispatcher's limit: its client library publishes to the same vehicles with the same window, without queues."""

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import uvloop

from benchmarks._fleet import Fleet
from benchmarks._ground import DATA, PAYLOAD, REQUEST, Ground, vin
from manifold.contracts.topics import request_topic
from manifold.messaging.mqtt import Mqtt

WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Raw:
    """Deliveries a second, and microseconds of CPU a delivery, of the publisher, the tap and the broker."""

    rate: float
    publisher_us: float
    tap_us: float
    broker_us: float

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU of all three."""
        return self.publisher_us + self.tap_us + self.broker_us


def measure(ground: Ground, fleet: Fleet, url: str, vehicles: int, count: int, name: Callable[[int], str] = vin) -> Raw:
    """Publish `count` messages to `vehicles` in turn, by way of `url`."""
    settings = ground.settings
    here, there = multiprocessing.Pipe()
    topics = [request_topic(settings.topic_prefix, name(number), REQUEST) for number in range(vehicles)]
    args = (there, url, settings.mqtt_username_dispatcher, topics, count, settings.publish_window)
    process = multiprocessing.get_context("spawn").Process(target=_main, args=args, daemon=True)
    process.start()
    here.recv()  # connected
    fleet.take()
    tap_s, broker_s, began = ground.cpu_s("tap"), ground.cpu_s("broker"), time.monotonic()
    here.send(None)
    ended = fleet.wait(count, WITHIN_S)
    cpu_s: float = here.recv()
    process.join()
    a_delivery = 1e6 / count
    tap_us, broker_us = (ground.cpu_s("tap") - tap_s) * a_delivery, (ground.cpu_s("broker") - broker_s) * a_delivery
    return Raw(count / (ended - began), cpu_s * a_delivery, tap_us, broker_us)


def _main(pipe: Connection, url: str, user: str, topics: Sequence[str], count: int, window: int) -> None:
    async def publish() -> None:
        room = asyncio.Semaphore(window)
        properties = (("seq", str(1 << 60)), ("data-id", DATA))
        async with Mqtt(url, "sdv-bench-raw", username=user) as mqtt:
            await mqtt.wait_connected()
            pipe.send(None)
            await asyncio.to_thread(pipe.recv)
            began_s = time.process_time()
            for number in range(count):
                await room.acquire()
                answer = mqtt.publish(topics[number % len(topics)], PAYLOAD, user_properties=properties)
                answer.add_done_callback(lambda _: room.release())
            for _ in range(window):
                await room.acquire()
            pipe.send(time.process_time() - began_s)

    uvloop.run(publish())
