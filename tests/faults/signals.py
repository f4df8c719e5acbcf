"""`python -m tests.faults.signals --count 20000`: kill, hang and fill everything around the signals service under load.

Afterwards everything is ingested, and every message that RabbitMQ confirmed must be in the lake exactly once: raw and processed
signals, statuses, and refused messages in quarantine.
"""

import asyncio
import base64
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Annotated, Any

import httpx
import pika
import typer
from rich.console import Console

from manifold.contracts.signals import topology
from manifold.contracts.signals.rights import GATEWAY
from manifold.contracts.tables import QUARANTINE, XRAY_PROCESSED, XRAY_RAW, XRAY_STATUS, Table
from manifold.lake.catalog import open_catalog
from manifold.messaging.amqp import connection_url, hmac_secrets
from manifold.sandbox.platform import supervise
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings
from tests.faults.clocked_recorder import Clock
from tests.faults.cutter import Cutter
from tests.faults.gateways import MARK, Gateways, Sent, twice_or_never
from tests.faults.history import History
from tests.faults.injector import Fault, Harm, Injector
from tests.support.platforms import platform_settings
from tests.support.servers import ROOT, wait_until

HARMED = ("signals", "rabbitmq", "redis", "recorder")
QUEUES = (topology.RAW, topology.RETRY, topology.STATUS, topology.DEAD_COPY)
Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a run."""

    seed: int
    home: Path
    count: int  # confirmed publishes, at least
    stop_s: float = 8.0  # the duration of a hang or a full disk
    calm_s: float = 3.0  # between two faults
    every_s: float = 0.0  # between two messages of a gateway
    threads: int = 3


@dataclass(slots=True)
class Result:
    """The result of a run."""

    sent: Sent = field(default_factory=Sent)
    injected: list[tuple[str, float]] = field(default_factory=list)  # each fault, and the seconds until recovery
    wrong: list[str] = field(default_factory=list)


def faults(rng: Random, stop_s: float) -> list[Fault]:
    """Each fault once, in an order chosen by the seed."""
    found = [Fault(Harm.KILL, kind) for kind in HARMED] + [Fault(Harm.STOP, kind, stop_s) for kind in HARMED]
    found.append(Fault(Harm.FULL, "signals", stop_s))
    rng.shuffle(found)
    return found


def play(plan: Plan, say: Say = lambda _: None) -> Result:
    """Play the plan."""
    settings = platform_settings(plan.home, with_signals=True, segment_max_seconds=5)
    result, plan_home = Result(), plan.home
    plan_home.mkdir(parents=True, exist_ok=True)
    say("starting the platform")
    try:
        supervise.up(settings)
        gateways = Gateways(
            connection_url(settings, as_user=GATEWAY),
            hmac_secrets(settings)[0],
            seed=plan.seed,
            threads=plan.threads,
            every_s=plan.every_s,
        )
        gateways.start()
        try:
            result.injected = asyncio.run(_harm(plan, settings, gateways, say))
            wait_until(lambda: gateways.trouble or len(gateways.sent) >= plan.count, within_s=1800)
        finally:
            result.sent = gateways.stop()
        say(f"{len(result.sent)} confirmed, {result.sent.again} published again; waiting for quiet")
        result.wrong = [repr(exc) for exc in gateways.trouble]
        _await_quiet(settings)
        say("ingesting")
        _ingest(settings)
        result.wrong += _wrong(settings, result.sent)
    finally:
        supervise.down(settings)
    return result


async def _harm(plan: Plan, settings: Settings, gateways: Gateways, say: Say) -> list[tuple[str, float]]:
    rng = Random(f"signals/{plan.seed}")
    history = History(plan.home / "history.jsonl")
    cutter, clock = Cutter(settings.host, settings.mqtt_port, rng), Clock(plan.home / "clock")  # unused here
    injector = Injector(settings, history, [cutter], clock, rng)
    try:
        await injector.healthy()
        for fault in faults(rng, plan.stop_s):
            await asyncio.sleep(plan.calm_s)
            say(f"{len(gateways.sent)} confirmed; {fault}")
            await injector.inject(fault)
        return injector.done
    finally:
        history.close()


def _await_quiet(settings: Settings) -> None:
    """Wait until no queue holds a message and the service has none in hand."""
    connection = pika.BlockingConnection(pika.URLParameters(connection_url(settings)))
    channel = connection.channel()

    def quiet() -> bool:
        connection.process_data_events(0)
        if any(channel.queue_declare(queue, passive=True).method.message_count for queue in QUEUES):
            return False
        answer = httpx.get(f"{settings.signals}/healthz", timeout=10)
        return answer.status_code == 200 and answer.json()["in_hand"] == 0

    try:
        wait_until(quiet, within_s=300, what="empty queues")
    finally:
        connection.close()


def _ingest(settings: Settings) -> None:
    order = [sys.executable, "-m", "manifold.console", "ingest", "--json"]
    done = subprocess.run(order, env=environment(settings), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ingest ended with {done.returncode}: {done.stderr[-3000:]}")


def _wrong(settings: Settings, sent: Sent) -> list[str]:
    """Messages that are not in the lake exactly once."""
    catalog = open_catalog(settings)

    def rows(table: Table, *columns: str) -> list[Any]:
        found = catalog.load_table(table.identifier).scan(selected_fields=columns).to_arrow()
        return list(zip(*(found[name].to_pylist() for name in columns), strict=True))

    wrong = []
    for table in (XRAY_RAW, XRAY_PROCESSED):
        wrong += [f"{table.name}: {what}" for what in twice_or_never(sent.signals, rows(table, "device_id", "content_digest"))]
    statuses = [device for (device,) in rows(XRAY_STATUS, "device_id")]
    wrong += [f"{XRAY_STATUS.name}: {what}" for what in twice_or_never(sent.statuses, statuses)]
    refused = [topic.rpartition("/")[2] for topic, _ in rows(QUARANTINE, "topic", "reason")]
    wrong += [f"{QUARANTINE.name}: {what}" for what in twice_or_never(sent.refused, refused)]
    good = [f"{topic}: {reason}" for topic, reason in rows(QUARANTINE, "topic", "reason") if "/bad-" not in topic]
    wrong += [f"a good message is refused: {what}" for what in good[:20]]
    return wrong + [f"a payload in the clear: {file}" for file in _in_the_clear(settings.home)]


def _in_the_clear(home: Path) -> list[str]:
    """Files with a plaintext payload; RabbitMQ's own files are excluded."""
    files = (file for file in home.rglob("*") if file.is_file() and home / "rabbitmq" not in file.parents)
    marks = MARK, base64.b64encode(MARK)[:-4]
    return [str(file) for file in files if any(mark in file.read_bytes() for mark in marks)]


def main(
    count: Annotated[int, typer.Option(min=1, help="confirmed publishes, at least")] = 20_000,
    seeds: Annotated[str, typer.Option(help="runs, by their seeds: 1,2,3")] = "1",
) -> None:
    """Play runs; name every message that is not in the lake exactly once."""
    console, failed = Console(), False
    for seed in [int(seed) for seed in seeds.split(",")]:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="manifold-faults-") as folder:
            plan = Plan(seed, Path(folder) / "p", count)
            result = play(plan, lambda what, s=seed: console.log(f"seed {s}: {what}", highlight=False))  # type: ignore[misc]
        sent, seconds = result.sent, time.monotonic() - began
        console.print(
            f"seed {seed}: {len(sent.signals)} signals, {len(sent.statuses)} statuses, {len(sent.refused)} refused, "
            f"{sent.again} published again, {len(result.injected)} faults, {seconds:.0f} s: {len(result.wrong)} wrong"
        )
        for line in result.wrong:
            console.print(line, style="red", highlight=False)
        failed |= bool(result.wrong)
    if failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    typer.run(main)
