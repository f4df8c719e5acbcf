"""`manifold watch`: rates and queues of the platform, second by second."""

import asyncio
import json
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import typer
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis
from rich.live import Live

from manifold.console._output import AsJson, handle_errors, out, settings_or_fail, table
from manifold.console._queue_stats import aged
from manifold.contracts import keys
from manifold.contracts.signals import topology
from manifold.queues import QueueStats, connect
from manifold.runtime.tls import web_context
from manifold.sandbox.platform.health import as_started
from manifold.settings import Settings

EVERY_S = 1.0
SCRAPE_WAIT_S = 0.5
RATES: dict[str, tuple[str, dict[str, str]]] = {  # displayed rate → counter, and the required labels
    "messages recorded": ("manifold_recorder_messages_total", {"status": "recorded"}),
    "messages refused": ("manifold_recorder_messages_total", {"status": "refused"}),
    "receipts withheld": ("manifold_recorder_receipts_total", {"result": "foreign_topic"}),
    "entries queued": ("manifold_recorder_entries_total", {"result": "queued"}),
    "compacted written": ("manifold_recorder_messages_total", {"status": "recorded", "stream": "ecq"}),  # includes rewinds
    "published": ("manifold_dispatcher_published_total", {}),
    "published again": ("manifold_dispatcher_redeliveries_total", {}),
    "delivered": ("manifold_dispatcher_delivered_total", {}),
    "compacted delivered": ("manifold_dispatcher_ecq_delivered_total", {}),
    "parked": ("manifold_dispatcher_parked_total", {}),
}
OF_SIGNALS: dict[str, tuple[str, dict[str, str]]] = {  # rates of the AMQP door, which is optional
    "signals processed": ("signals_messages_total", {"outcome": "processed"}),
    "signals repeated": ("signals_messages_total", {"outcome": "duplicate"}),
    "signals refused": ("signals_messages_total", {"outcome": "refused"}),
}
WAITING: dict[str, tuple[str, dict[str, str]]] = {  # displayed level → gauge, and its labels
    "signals": ("signals_queue_depth", {"queue": topology.RAW}),
    "signals to be tried again": ("signals_queue_depth", {"queue": topology.RETRY}),
    "dead letters": ("signals_queue_depth", {"queue": topology.DEAD}),
}
Sample = dict[str, Any]


@handle_errors
def watch(
    count: Annotated[int, typer.Option(min=0, help="Seconds to watch; 0: until Ctrl-C.")] = 0, as_json: AsJson = False
) -> None:
    """Show messages and deliveries a second, what waits, and the last queue statistics. With --json one line a second."""
    try:
        asyncio.run(_watch(as_started(settings_or_fail()), count, as_json))
    except KeyboardInterrupt:
        return


async def _watch(settings: Settings, count: int, as_json: bool) -> None:
    """Show a sample every EVERY_S seconds, `count` times; 0: until interrupted."""
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(connect(settings.redis))
        live = None if as_json else stack.enter_context(Live(console=out, auto_refresh=False))
        before, began = await _counted(settings), time.monotonic()
        shown = 0
        while not count or shown < count:
            await asyncio.sleep(EVERY_S)
            after, now = await _counted(settings), time.monotonic()
            sample = await _sample(settings, redis, before, after, now - began)
            before, began, shown = after, now, shown + 1
            if live is None:
                sys.stdout.write(json.dumps(sample) + "\n")
                sys.stdout.flush()
            else:
                live.update(_render(sample), refresh=True)


def rates_of(settings: Settings) -> dict[str, tuple[str, dict[str, str]]]:
    """Return the counters of a platform with these settings."""
    return RATES | (OF_SIGNALS if settings.with_signals else {})


async def _sample(settings: Settings, redis: Redis, before: Counter[str], after: Counter[str], seconds: float) -> Sample:
    pipe = redis.pipeline(transaction=False)
    pipe.xlen(keys.OUTCOMES)
    for shard in range(settings.wake_shards):
        pipe.xlen(keys.wake(shard))
    outcomes, *wakes = await pipe.execute()
    signals = settings.with_signals
    stats = await QueueStats.load(redis)
    return {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "per_second": {what: round(max(0, after[what] - before[what]) / seconds, 1) for what in rates_of(settings)},
        "waiting": {"wake-ups": sum(wakes), "outcomes": outcomes} | ({what: after[what] for what in WAITING} if signals else {}),
        "queue_stats": None if stats is None else aged(stats),
    }


async def _counted(settings: Settings) -> Counter[str]:
    """Sum the counters and gauges of all services; a service that does not answer counts as zero."""
    ports = [settings.recorder_port, *(settings.dispatcher_port + n for n in range(settings.dispatchers))]
    if settings.with_signals:
        ports.append(settings.signals_port)
    wanted = rates_of(settings) | WAITING
    pages = await asyncio.gather(*(asyncio.to_thread(page_of, settings, port) for port in ports))
    counted = Counter[str]()
    for family in text_string_to_metric_families("\n".join(pages)):
        for sample in family.samples:
            for what, (name, labels) in wanted.items():
                if sample.name == name and labels.items() <= sample.labels.items():
                    counted[what] += int(sample.value)
    return counted


def page_of(settings: Settings, port: int) -> str:
    """Return a service's metrics page; empty if it does not answer."""
    try:
        url = f"{settings.http(port)}/metrics"
        request = Request(url, headers=settings.bearer)  # noqa: S310  # settings: http(s)
        with urlopen(request, timeout=SCRAPE_WAIT_S, context=web_context(settings, url)) as answer:  # noqa: S310  # settings: http(s)
            return str(answer.read().decode())
    except (URLError, OSError):
        return ""


def _render(sample: Sample) -> Any:
    rows: list[tuple[object, ...]] = [(f"{what} a second", rate) for what, rate in sample["per_second"].items()]
    rows += [(f"{what} waiting", number) for what, number in sample["waiting"].items()]
    rows += [(name.replace("_", " "), value) for name, value in (sample["queue_stats"] or {}).items()]
    return table(sample["at"], ("what", "now"), rows)
