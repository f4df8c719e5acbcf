"""`manifold watch`: shows rates and queue statistics of the platform, second by second."""

import asyncio
import json
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.request import Request, urlopen

import typer
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis
from rich.live import Live

from manifold.console._output import AsJson, handle_errors, out, settings_or_fail, table
from manifold.console._queue_stats import counts_and_age
from manifold.contracts import keys
from manifold.contracts.signals import topology
from manifold.queues import QueueStats, connect
from manifold.runtime.tls import web_context
from manifold.sandbox.platform.health import as_started
from manifold.settings import Settings

Selector = tuple[str, dict[str, str]]  # the name of a metric, and the labels that a sample of it must have
Sample = dict[str, Any]  # what is shown of one second, as JSON

SAMPLE_INTERVAL_S = 1.0
SCRAPE_TIMEOUT_S = 0.5
RATES: dict[str, Selector] = {  # displayed rate → counter
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
SIGNAL_RATES: dict[str, Selector] = {  # displayed rate → counter of the AMQP door, which is optional
    "signals processed": ("signals_messages_total", {"outcome": "processed"}),
    "signals repeated": ("signals_messages_total", {"outcome": "duplicate"}),
    "signals refused": ("signals_messages_total", {"outcome": "refused"}),
}
SIGNAL_QUEUES: dict[str, Selector] = {  # displayed queue of the AMQP door → gauge of its length
    "signals": ("signals_queue_depth", {"queue": topology.RAW}),
    "signals to be tried again": ("signals_queue_depth", {"queue": topology.RETRY}),
    "dead letters": ("signals_queue_depth", {"queue": topology.DEAD}),
}


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
    """Show a sample every SAMPLE_INTERVAL_S seconds, `count` times; 0: until interrupted."""
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(connect(settings.redis))
        live = None if as_json else stack.enter_context(Live(console=out, auto_refresh=False))
        before, before_s = await _scrape(settings), time.monotonic()
        shown = 0
        while not count or shown < count:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            after, after_s = await _scrape(settings), time.monotonic()
            sample = await _sample(settings, redis, before, after, elapsed_s=after_s - before_s)
            before, before_s = after, after_s
            shown += 1
            if live is None:
                sys.stdout.write(json.dumps(sample) + "\n")
                sys.stdout.flush()
            else:
                live.update(_render(sample), refresh=True)


def rates_of(settings: Settings) -> dict[str, Selector]:
    """Return the rates to show for these settings: those of signals only if the platform has the AMQP door."""
    return RATES | SIGNAL_RATES if settings.with_signals else RATES


async def _sample(settings: Settings, redis: Redis, before: Counter[str], after: Counter[str], *, elapsed_s: float) -> Sample:
    """Build a sample from the metrics of two scrapes, `elapsed_s` seconds apart, and from Redis."""
    pipe = redis.pipeline(transaction=False)
    pipe.xlen(keys.OUTCOMES)
    for shard in range(settings.wake_shards):
        pipe.xlen(keys.wake(shard))
    outcomes, *wake_ups_by_shard = await pipe.execute()
    waiting = {"wake-ups": sum(wake_ups_by_shard), "outcomes": outcomes}
    if settings.with_signals:
        waiting |= {queue: after[queue] for queue in SIGNAL_QUEUES}
    per_second = {}
    for rate in rates_of(settings):
        increase = max(0, after[rate] - before[rate])  # a restarted service counts from zero again
        per_second[rate] = round(increase / elapsed_s, 1)
    stats = await QueueStats.load(redis)
    return {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "per_second": per_second,
        "waiting": waiting,
        "queue_stats": None if stats is None else counts_and_age(stats),
    }


async def _scrape(settings: Settings) -> Counter[str]:
    """Return, by the name of a displayed rate or queue, the value of its counter or gauge, summed over all services.

    A service that does not answer adds nothing.
    """
    ports = [settings.recorder_port, *(settings.dispatcher_port + n for n in range(settings.dispatchers))]
    if settings.with_signals:
        ports.append(settings.signals_port)
    selectors = rates_of(settings) | SIGNAL_QUEUES
    pages = await asyncio.gather(*(asyncio.to_thread(metrics_page, settings, port) for port in ports))
    totals = Counter[str]()
    for family in text_string_to_metric_families("\n".join(pages)):
        for sample in family.samples:
            for displayed_name, (metric_name, labels) in selectors.items():
                has_labels = labels.items() <= sample.labels.items()
                if sample.name == metric_name and has_labels:
                    totals[displayed_name] += int(sample.value)
    return totals


def metrics_page(settings: Settings, port: int) -> str:
    """Return a service's metrics page; empty if it does not answer."""
    try:
        url = f"{settings.http(port)}/metrics"
        request = Request(url, headers=settings.bearer)  # noqa: S310  # settings: http(s)
        with urlopen(request, timeout=SCRAPE_TIMEOUT_S, context=web_context(settings, url)) as answer:  # noqa: S310  # settings: http(s)
            return str(answer.read().decode())
    except OSError:  # includes URLError
        return ""


def _render(sample: Sample) -> Any:
    """Build the table of a sample."""
    queue_stats = sample["queue_stats"] or {}  # None if no dispatcher has counted yet
    rows: list[tuple[object, ...]] = [(f"{name} a second", rate) for name, rate in sample["per_second"].items()]
    rows += [(f"{name} waiting", number) for name, number in sample["waiting"].items()]
    rows += [(name.replace("_", " "), value) for name, value in queue_stats.items()]
    return table(sample["at"], ("what", "now"), rows)
