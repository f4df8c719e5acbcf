"""`manifold watch`: the rates and queues of the platform, second by second."""

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

from console._output import AsJson, handle_errors, out, settings_or_fail, table
from console._queue_stats import aged
from contracts import keys
from contracts.settings import Settings
from queues import QueueStats, connect

EVERY_S = 1.0
SCRAPE_WAIT_S = 0.5
RATES: dict[str, tuple[str, dict[str, str]]] = {  # what is shown a second → the counter, and the labels that a sample must have
    "messages recorded": ("manifold_recorder_messages_total", {"status": "recorded"}),
    "messages refused": ("manifold_recorder_messages_total", {"status": "refused"}),
    "entries queued": ("manifold_recorder_entries_total", {"result": "queued"}),
    "compacted written": ("manifold_recorder_messages_total", {"status": "recorded", "stream": "ecq"}),  # rewinds among them
    "published": ("manifold_dispatcher_published_total", {}),
    "published again": ("manifold_dispatcher_redeliveries_total", {}),
    "delivered": ("manifold_dispatcher_delivered_total", {}),
    "compacted delivered": ("manifold_dispatcher_ecq_delivered_total", {}),
    "parked": ("manifold_dispatcher_parked_total", {}),
}
Sample = dict[str, Any]


@handle_errors
def watch(
    count: Annotated[int, typer.Option(min=0, help="Seconds to watch; 0: until Ctrl-C.")] = 0, as_json: AsJson = False
) -> None:
    """Messages and deliveries a second, what waits, and the last queue statistics. With --json one line a second."""
    try:
        asyncio.run(_watch(settings_or_fail(), count, as_json))
    except KeyboardInterrupt:
        return


async def _watch(settings: Settings, count: int, as_json: bool) -> None:
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
                live.update(_shown(sample), refresh=True)


async def _sample(settings: Settings, redis: Redis, before: Counter[str], after: Counter[str], seconds: float) -> Sample:
    pipe = redis.pipeline(transaction=False)
    pipe.xlen(keys.OUTCOMES)
    for shard in range(settings.wake_shards):
        pipe.xlen(keys.wake(shard))
    outcomes, *wakes = await pipe.execute()
    stats = await QueueStats.load(redis)
    return {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "per_second": {what: round(max(0, after[what] - before[what]) / seconds, 1) for what in RATES},
        "waiting": {"wake-ups": sum(wakes), "outcomes": outcomes},
        "census": None if stats is None else aged(stats),
    }


async def _counted(settings: Settings) -> Counter[str]:
    """The counters of all services that answer; one that does not counts nothing."""
    ports = [settings.recorder_port, *(settings.dispatcher_port + n for n in range(settings.dispatchers))]
    pages = await asyncio.gather(*(asyncio.to_thread(_page, settings, port) for port in ports))
    counted = Counter[str]()
    for family in text_string_to_metric_families("\n".join(pages)):
        for sample in family.samples:
            for what, (name, labels) in RATES.items():
                if sample.name == name and labels.items() <= sample.labels.items():
                    counted[what] += int(sample.value)
    return counted


def _page(settings: Settings, port: int) -> str:
    try:
        request = Request(f"http://{settings.host}:{port}/metrics", headers=settings.bearer)
        with urlopen(request, timeout=SCRAPE_WAIT_S) as answer:  # noqa: S310  # http, as above
            return str(answer.read().decode())
    except (URLError, OSError):
        return ""


def _shown(sample: Sample) -> Any:
    rows: list[tuple[object, ...]] = [(f"{what} a second", rate) for what, rate in sample["per_second"].items()]
    rows += [(f"{what} waiting", number) for what, number in sample["waiting"].items()]
    rows += [(name.replace("_", " "), value) for name, value in (sample["census"] or {}).items()]
    return table(sample["at"], ("what", "now"), rows)
