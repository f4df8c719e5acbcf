"""From trigger to vehicle at light load, with each stage's share, beside a plain publish through the same broker.

Starts the embedded platform without Airflow on free ports, in a folder of its own. One trigger at a time for one of the vehicles,
and between the triggers plain publishes to the same vehicle: once straight through Mosquitto, once through the tap.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.machine import Row, free_ports, report
from manifold.contracts import topics
from manifold.messaging.mqtt import Message, Mqtt
from manifold.runtime.log import configure_logging
from manifold.sandbox.platform import supervise
from manifold.settings import Settings, load_settings

VEHICLES, ROUNDS, PAUSE_S = 20, 400, 0.02
P50_AIM_MS, P99_AIM_MS = 5.0, 25.0
SETTING = f"one trigger at a time, {VEHICLES} vehicles, {ROUNDS} rounds"


@dataclass(slots=True)
class Measured:
    """Milliseconds, one a round."""

    trigger: list[float] = field(default_factory=list)
    broker: list[float] = field(default_factory=list)
    tap: list[float] = field(default_factory=list)


class Vehicle:
    """A vehicle that says when something came."""

    def __init__(self, settings: Settings, vin: str) -> None:
        self.vin, self.arrived = vin, asyncio.Event()
        self.mqtt = Mqtt(settings.mqtt, vin)
        self.mqtt.on_message = self._on_message
        self.at = 0.0

    def _on_message(self, message: Message) -> None:
        self.at = time.perf_counter()
        self.mqtt.ack(message)
        self.arrived.set()

    async def come(self, settings: Settings) -> None:
        """Connect and listen."""
        await self.mqtt.wait_connected()
        await self.mqtt.subscribe(topics.request_filter(settings.topic_prefix, self.vin))
        await self.mqtt.publish(topics.sign_topic(self.vin, topics.Sign.ONLINE), b"")


async def measure(settings: Settings, rounds: int) -> Measured:
    """All rounds, the three kinds in turn."""
    measured = Measured()
    broker = f"mqtt://{settings.host}:{settings.broker_port}"
    async with asyncio.timeout(300):
        platform = Mqtt(settings.mqtt, "sdv-pub-bench", username="sdv-pub-bench")
        plain = Mqtt(settings.mqtt, "sdv-bench-plain", username=settings.mqtt_username_dispatcher)
        direct = Mqtt(broker, "sdv-bench-direct", username=settings.mqtt_username_dispatcher)
        vehicles = [Vehicle(settings, f"BENCH{n:03}") for n in range(VEHICLES)]
        everyone = [platform, plain, direct, *(vehicle.mqtt for vehicle in vehicles)]
        for client in everyone:
            await client.__aenter__()
        try:
            await asyncio.gather(*(client.wait_connected() for client in everyone), *(v.come(settings) for v in vehicles))
            await platform.publish(topics.data_topic("bench"), b"x" * 200)
            for n in range(rounds):
                vehicle = vehicles[n % VEHICLES]
                body = json.dumps({"ids": [vehicle.vin], "request_id": f"bench_{n}", "data_id": "bench"}).encode()
                measured.trigger.append(await _one(platform, vehicle, topics.TRIGGER, body))
                topic = topics.request_topic(settings.topic_prefix, vehicle.vin, "plain")
                measured.broker.append(await _one(direct, vehicle, topic, b"x" * 200))
                measured.tap.append(await _one(plain, vehicle, topic, b"x" * 200))
        finally:
            for client in everyone:
                await client.__aexit__(None, None, None)
    return measured


async def _one(publisher: Mqtt, vehicle: Vehicle, topic: str, body: bytes) -> float:
    vehicle.arrived.clear()
    began = time.perf_counter()
    sending = publisher.publish(topic, body)
    await vehicle.arrived.wait()
    await sending
    await asyncio.sleep(PAUSE_S)
    return (vehicle.at - began) * 1000


def mean_ms(url: str, histogram: str) -> float:
    """The mean of a Prometheus histogram of seconds, in milliseconds."""
    found = {s.name: s.value for f in text_string_to_metric_families(httpx.get(f"{url}/metrics").text) for s in f.samples}
    count = found.get(f"{histogram}_count", 0.0)
    return found[f"{histogram}_sum"] / count * 1000 if count else 0.0


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which `part` of the values lie."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def run(rounds: int = ROUNDS) -> list[Row]:
    """Measure on a platform of its own."""
    with TemporaryDirectory(prefix="manifold-bench-") as folder:
        settings = load_settings(home=Path(folder), with_airflow=False, with_signals=False, **free_ports())
        supervise.up(settings)
        try:
            measured = asyncio.run(measure(settings, rounds))
            recorder = f"http://{settings.host}:{settings.recorder_port}"
            fsync = mean_ms(recorder, "manifold_journal_fsync_seconds")
            enqueueing = mean_ms(recorder, "manifold_recorder_handoff_seconds")
        finally:
            supervise.down(settings)
    return _rows(measured, fsync, enqueueing)


def _rows(measured: Measured, fsync: float, enqueueing: float) -> list[Row]:
    p50, p99 = statistics.median(measured.trigger), percentile(measured.trigger, 0.99)
    broker, tap = statistics.median(measured.broker), statistics.median(measured.tap)
    rest = p50 - 2 * tap - fsync - enqueueing
    return [
        Row(
            "trigger → vehicle, p50",
            f"{p50:.2f} ms",
            f"{p50 / tap:.1f} × a plain publish",
            f"≤ {P50_AIM_MS:g} ms",
            p50 <= P50_AIM_MS,
        ),
        Row(
            "trigger → vehicle, p99",
            f"{p99:.2f} ms",
            f"{p99 / percentile(measured.tap, 0.99):.1f} ×",
            f"≤ {P99_AIM_MS:g} ms",
            p99 <= P99_AIM_MS,
        ),
        Row("plain publish through Mosquitto, p50", f"{broker:.2f} ms", "1.0 ×"),
        Row("plain publish through tap and Mosquitto, p50", f"{tap:.2f} ms", f"{tap / broker:.1f} ×"),
        Row("share: both passages of tap and broker", f"{2 * tap:.2f} ms", f"{2 * tap / p50:.0%}"),
        Row("share: journal with fsync, mean", f"{fsync:.2f} ms", f"{fsync / p50:.0%}"),
        Row("share: hand-off to Redis, mean", f"{enqueueing:.2f} ms", f"{enqueueing / p50:.0%}"),
        Row("share: dispatcher and what is left", f"{rest:.2f} ms", f"{rest / p50:.0%}"),
    ]


if __name__ == "__main__":
    configure_logging("benchmark", level="warning")
    report("latency", SETTING, run())
