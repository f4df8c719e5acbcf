"""A wiped Redis: how fast payloads that are pending come back from the lake, beside reading the same ones straight.

`python -m benchmarks.wiped [--payloads 10000] [--kib 16] [--days 10]`: distinct payloads are brought in by a real ingest, spread
over days. Then all of them are asked for at once, as a dispatcher does whose Redis is empty: from Redis, then from the lake, and
put back. The limit is the same payloads read once by PyIceberg, and by PyArrow from the bare files; each the best
of three tries, so that nothing is paid for loading libraries.
"""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from redis import Redis

from benchmarks.machine import Cost, Row, cost_of, report
from dispatcher._lake import Lake
from dispatcher._payloads import Payloads
from manifold.contracts.envelope import Envelope, Stream, segment_path, to_arrow
from manifold.contracts.seq import datetime_of, first_seq_at
from manifold.contracts.tables import DATA
from manifold.contracts.topics import data_topic
from manifold.lake.catalog import open_catalog
from manifold.queues import Policy, Queues, connect
from manifold.runtime.log import configure_logging
from manifold.settings import Settings
from pipelines.ingest.run_all import run_all
from tests.support.servers import start_redis, stopping

PAYLOADS, KIB, DAYS, TRIES = 10_000, 16, 10, 3
SETTING = "{payloads:,} payloads of {kib} KiB over {days} days, Redis empty"


def bring(settings: Settings, payloads: int, kib: int, days: int) -> list[str]:
    """An archive with so many payloads, taken in by one run; their data ids."""
    start, names = datetime.now(UTC) - timedelta(days=days), list[str]()
    for day in range(days):
        first, envelopes = first_seq_at(start + timedelta(days=day)), list[Envelope]()
        for n in range(day, payloads, days):
            names.append(f"map_{n}")
            seq = first + n
            envelopes.append(Envelope(seq, datetime_of(seq), Stream.DATA, data_topic(names[-1]), os.urandom(kib << 10)))
        file = settings.home / "archive" / segment_path(Stream.DATA, first, 0)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(to_arrow(envelopes), file)
    run_all(settings, flush_first=False, with_populate=False)
    return names


def by_pyiceberg(catalog: Catalog) -> int:
    """Every payload, by one scan; how many."""
    return int(catalog.load_table(DATA.identifier).scan(selected_fields=("data_id", "payload")).to_arrow().num_rows)


def by_pyarrow(catalog: Catalog) -> int:
    """The same, from the files alone."""
    tasks = catalog.load_table(DATA.identifier).scan().plan_files()
    files: Iterator[str] = (task.file.file_path.removeprefix("file://") for task in tasks)
    return sum(pq.read_table(file, columns=["data_id", "payload"]).num_rows for file in files)


async def by_dispatcher(settings: Settings, names: Sequence[str]) -> int:
    """The same, asked for all at once by a dispatcher that has nothing in memory; how many were found."""
    lake = Lake(settings)
    async with connect(settings.redis) as redis:
        payloads = Payloads(Queues(redis, Policy.of(settings)), lake, max_bytes=settings.payload_cache_bytes)
        found = await asyncio.gather(*(payloads.read(name) for name in names))
        await payloads.close()
    lake.close()
    return sum(payload is not None for payload in found)


def run(payloads: int = PAYLOADS, kib: int = KIB, days: int = DAYS) -> list[Row]:
    """The figures; every payload has to be found each time."""
    with tempfile.TemporaryDirectory() as folder, stopping(start_redis(Path(folder) / "redis")) as server:
        settings = Settings(home=Path(folder) / "home", redis_port=server.port)
        names, catalog = bring(settings, payloads, kib, days), open_catalog(settings)

        def wiped() -> int:
            with Redis(port=server.port) as redis:
                redis.flushall()
            return asyncio.run(by_dispatcher(settings, names))

        straight = _best(lambda: by_pyiceberg(catalog), payloads)
        bare = _best(lambda: by_pyarrow(catalog), payloads)
        served = _best(wiped, payloads)
    return [
        _row("read straight by PyArrow", bare, bare, payloads),
        _row("read straight by PyIceberg", straight, straight, payloads),
        _row("served by a dispatcher, beside PyIceberg", served, straight, payloads),
        _row("served by a dispatcher, beside PyArrow", served, bare, payloads),
    ]


def _best(work: Callable[[], int], expected: int) -> Cost:
    def checked() -> None:
        if (found := work()) != expected:
            raise RuntimeError(f"{found} of {expected} payloads were found")

    return min((cost_of(checked) for _ in range(TRIES)), key=lambda cost: cost.wall_s)


def _row(what: str, cost: Cost, limit: Cost, payloads: int) -> Row:
    ratio, cpu = cost.wall_s / limit.wall_s, cost.cpu_s / max(limit.cpu_s, 1e-9)
    return Row(what, f"{payloads / cost.wall_s:,.0f} payloads/s, {cost.wall_s:.2f} s", f"{ratio:.1f}×", cpu=f"{cpu:.1f}×")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--payloads", type=int, default=PAYLOADS)
    parser.add_argument("--kib", type=int, default=KIB)
    parser.add_argument("--days", type=int, default=DAYS)
    given = parser.parse_args()
    configure_logging("benchmark", level="warning")
    report("wiped", SETTING.format(**vars(given)), run(given.payloads, given.kib, given.days))
