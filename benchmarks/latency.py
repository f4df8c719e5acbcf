"""Latency from a trigger to its vehicle at light load, against a plain publish through the same event tap and Mosquitto.

Each round sends one trigger for one of twenty vehicles, a plain publish directly through Mosquitto, and a plain publish through
the tap. The recorder's histograms give the mean time of its journal's fsync and of its hand-over to Redis.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks._measure import Row, Size, at_most, p50, percentile
from benchmarks._servers import sandbox
from manifold.contracts import topics
from manifold.messaging.mqtt import Message, Mqtt
from manifold.settings import Settings

AIMS = {"trigger → vehicle, p50": at_most(3.5, "ms"), "trigger → vehicle, p99": at_most(8, "ms")}
PLAIN = "a plain publish"
VEHICLES, PAUSE_S, TIMEOUT_S = 20, 0.02, 300


@dataclass(slots=True)
class _Measured:
    """Milliseconds of each round."""

    trigger: list[float] = field(default_factory=list)
    broker: list[float] = field(default_factory=list)  # plain publishes directly through Mosquitto
    tap: list[float] = field(default_factory=list)  # plain publishes through the tap


class _Vehicle:
    """A vehicle that notes when a message arrives."""

    def __init__(self, settings: Settings, vin: str) -> None:
        self.vin, self.arrived = vin, asyncio.Event()
        self.mqtt = Mqtt(settings.mqtt, vin)
        self.mqtt.on_message = self._on_message
        self.arrived_at = 0.0

    def _on_message(self, message: Message) -> None:
        self.arrived_at = time.perf_counter()
        self.mqtt.ack(message)
        self.arrived.set()

    async def come_online(self, settings: Settings) -> None:
        """Wait until the vehicle is connected, subscribe, and publish `online`."""
        await self.mqtt.wait_connected()
        await self.mqtt.subscribe(topics.request_filter(settings.topic_prefix, self.vin))
        await self.mqtt.publish(topics.sign_topic(self.vin, topics.Sign.ONLINE), b"")


async def _measured(settings: Settings, rounds: int) -> _Measured:
    """Run all rounds: in each, a trigger, a plain publish directly to Mosquitto, and a plain publish through the tap."""
    measured = _Measured()
    broker = f"mqtt://{settings.host}:{settings.broker_port}"
    async with asyncio.timeout(TIMEOUT_S):
        platform = Mqtt(settings.mqtt, "sdv-pub-bench", username="sdv-pub-bench")
        plain = Mqtt(settings.mqtt, "sdv-bench-plain", username=settings.mqtt_username_dispatcher)
        direct = Mqtt(broker, "sdv-bench-direct", username=settings.mqtt_username_dispatcher)
        vehicles = [_Vehicle(settings, f"BENCH{n:03}") for n in range(VEHICLES)]
        everyone = [platform, plain, direct, *(vehicle.mqtt for vehicle in vehicles)]
        for client in everyone:
            await client.__aenter__()
        try:
            await asyncio.gather(
                *(client.wait_connected() for client in everyone), *(vehicle.come_online(settings) for vehicle in vehicles)
            )
            await platform.publish(topics.data_topic("bench"), b"x" * 200)
            for n in range(rounds):
                vehicle = vehicles[n % VEHICLES]
                body = json.dumps({"ids": [vehicle.vin], "request_id": f"bench_{n}", "data_id": "bench"}).encode()
                measured.trigger.append(await _latency_ms(platform, vehicle, topics.TRIGGER, body))
                topic = topics.request_topic(settings.topic_prefix, vehicle.vin, "plain")
                measured.broker.append(await _latency_ms(direct, vehicle, topic, b"x" * 200))
                measured.tap.append(await _latency_ms(plain, vehicle, topic, b"x" * 200))
        finally:
            for client in everyone:
                await client.__aexit__(None, None, None)
    return measured


async def _latency_ms(publisher: Mqtt, vehicle: _Vehicle, topic: str, body: bytes) -> float:
    """Publish a message; return the milliseconds until the vehicle has a message, after a pause of `PAUSE_S`."""
    vehicle.arrived.clear()
    began = time.perf_counter()
    sending = publisher.publish(topic, body)
    await vehicle.arrived.wait()
    await sending
    await asyncio.sleep(PAUSE_S)
    return (vehicle.arrived_at - began) * 1000


def _mean_ms(url: str, histogram: str) -> float:
    """Return the mean of a Prometheus histogram of seconds, in milliseconds."""
    page = httpx.get(f"{url}/metrics").text
    values = {sample.name: sample.value for family in text_string_to_metric_families(page) for sample in family.samples}
    count = values.get(f"{histogram}_count", 0.0)
    return values[f"{histogram}_sum"] / count * 1000 if count else 0.0


def run(size: Size) -> list[Row]:
    """Measure on a platform without Airflow and RabbitMQ."""
    with sandbox() as settings:
        measured = asyncio.run(_measured(settings, size.pick(full=400, small=50)))
        recorder = f"http://{settings.host}:{settings.recorder_port}"
        fsync = _mean_ms(recorder, "manifold_journal_fsync_seconds")
        handoff = _mean_ms(recorder, "manifold_recorder_handoff_seconds")
    rows = []
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        ours, theirs = percentile(measured.trigger, share), percentile(measured.tap, share)
        rows.append(Row(f"trigger → vehicle, {name}", f"{ours:.2f} ms", PLAIN, ours / theirs, ours))
    tap, broker, trigger = p50(measured.tap), p50(measured.broker), p50(measured.trigger)
    return [
        *rows,
        Row(f"{PLAIN}, p50", f"{tap:.2f} ms", "one past the tap", tap / broker),
        Row("journal with fsync, mean", f"{fsync:.2f} ms", "trigger → vehicle, p50", fsync / trigger),
        Row("hand-over to Redis, mean", f"{handoff:.2f} ms", "trigger → vehicle, p50", handoff / trigger),
    ]
