"""Raw MQTT, the limit for the dispatcher: its MQTT client alone publishes to the same vehicles with the same window."""

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

TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Raw:
    """Deliveries a second; and microseconds of CPU for each delivery, of the publisher, the tap and the broker."""

    rate: float
    publisher_us: float
    tap_us: float
    broker_us: float

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU of publisher, tap and broker together."""
        return self.publisher_us + self.tap_us + self.broker_us


def measure(ground: Ground, fleet: Fleet, url: str, vehicles: int, count: int, name: Callable[[int], str] = vin) -> Raw:
    """Publish `count` messages to the first `vehicles` vehicles in turn, through the broker or tap at `url`."""
    settings = ground.settings
    pipe, child_pipe = multiprocessing.Pipe()
    topics = [request_topic(settings.topic_prefix, name(number), REQUEST) for number in range(vehicles)]
    args = (child_pipe, url, settings.mqtt_username_dispatcher, topics, count, settings.publish_window)
    process = multiprocessing.get_context("spawn").Process(target=_main, args=args, daemon=True)
    process.start()
    pipe.recv()  # the publisher is connected
    fleet.take()
    tap_before_s, broker_before_s = ground.cpu_s("tap"), ground.cpu_s("broker")
    began = time.monotonic()
    pipe.send(None)
    ended = fleet.wait(count, TIMEOUT_S)
    publisher_s: float = pipe.recv()
    process.join()
    us_per_delivery = 1e6 / count  # microseconds for each delivery, of a second in total
    tap_us = (ground.cpu_s("tap") - tap_before_s) * us_per_delivery
    broker_us = (ground.cpu_s("broker") - broker_before_s) * us_per_delivery
    return Raw(count / (ended - began), publisher_s * us_per_delivery, tap_us, broker_us)


def _main(pipe: Connection, url: str, user: str, topics: Sequence[str], count: int, window: int) -> None:
    """Connect, send None to `pipe`, wait for a message from it, publish `count` messages, and send the CPU seconds."""

    async def publish() -> None:
        free_slots = asyncio.Semaphore(window)
        properties = (("seq", str(1 << 60)), ("data-id", DATA))
        async with Mqtt(url, "sdv-bench-raw", username=user) as mqtt:
            await mqtt.wait_connected()
            pipe.send(None)
            await asyncio.to_thread(pipe.recv)
            cpu_before_s = time.process_time()
            for number in range(count):
                await free_slots.acquire()
                confirmed = mqtt.publish(topics[number % len(topics)], PAYLOAD, user_properties=properties)
                confirmed.add_done_callback(lambda _: free_slots.release())
            for _ in range(window):  # until the last message is confirmed
                await free_slots.acquire()
            pipe.send(time.process_time() - cpu_before_s)

    uvloop.run(publish())
