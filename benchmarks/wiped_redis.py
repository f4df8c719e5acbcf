"""Payloads that a dispatcher reads from the lake after Redis was wiped, against PyIceberg's scan and PyArrow on bare files.

A real ingest writes 10,000 payloads of 16 KiB, received over ten days, to the lake. A dispatcher whose Redis is empty then reads
all of them at once: it looks in Redis, reads the lake, and stores the payloads in Redis. Each figure is the best of three tries,
so the time for loading libraries does not count.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from redis import Redis

from benchmarks._archive import data, write_segment
from benchmarks._measure import Aim, Cost, Row, Size, cost_of, multiples
from benchmarks._servers import PREFIX, start_redis
from dispatcher._lake import Lake
from dispatcher._payloads import Payloads
from manifold.contracts.envelope import Envelope
from manifold.contracts.seq import first_seq_at
from manifold.contracts.tables import DATA
from manifold.lake.catalog import open_catalog
from manifold.queues import Policy, Queues, connect
from manifold.settings import Settings
from pipelines.ingest.run_all import run_all

AIMS: dict[str, Aim] = {}
KIB, DAYS, TRIES = 16, 10, 3


def _ingest(settings: Settings, payloads: int) -> list[str]:
    """Write an archive of payloads and ingest it by one run; return their data ids."""
    start = datetime.now(UTC) - timedelta(days=DAYS)
    data_ids = list[str]()
    for day in range(DAYS):
        first_seq = first_seq_at(start + timedelta(days=day))
        envelopes = list[Envelope]()
        for number in range(day, payloads, DAYS):
            data_id = f"map_{number}"
            data_ids.append(data_id)
            envelopes.append(data(first_seq + number, data_id, os.urandom(KIB << 10)))
        write_segment(settings.home / "archive", envelopes)
    run_all(settings, flush_first=False, with_populate=False)
    return data_ids


def _by_pyiceberg(catalog: Catalog) -> int:
    """Read every payload by one scan; return the number of payloads."""
    return int(catalog.load_table(DATA.identifier).scan(selected_fields=("data_id", "payload")).to_arrow().num_rows)


def _by_pyarrow(catalog: Catalog) -> int:
    """Read every payload from the bare files; return the number of payloads."""
    tasks = catalog.load_table(DATA.identifier).scan().plan_files()
    files: Iterator[str] = (task.file.file_path.removeprefix("file://") for task in tasks)
    return sum(pq.read_table(file, columns=["data_id", "payload"]).num_rows for file in files)


async def _by_dispatcher(settings: Settings, data_ids: Sequence[str]) -> int:
    """Read all payloads at once as a dispatcher with an empty cache does; return the number of payloads found."""
    lake = Lake(settings)
    async with connect(settings.redis) as redis:
        payloads = Payloads(Queues(redis, Policy.of(settings)), lake, max_bytes=settings.payload_cache_bytes)
        contents = await asyncio.gather(*(payloads.read(data_id) for data_id in data_ids))
        await payloads.close()
    lake.close()
    return sum(payload is not None for payload in contents)


def run(size: Size) -> list[Row]:
    """Measure each way of reading; it is an error if a payload is not found."""
    payloads = size.pick(full=10_000, small=500)
    with TemporaryDirectory(prefix=PREFIX) as folder, start_redis(Path(folder) / "redis") as server:
        settings = Settings(home=Path(folder) / "home", redis_port=server.port)
        data_ids = _ingest(settings, payloads)
        catalog = open_catalog(settings)

        def read_after_wipe() -> int:
            with Redis(port=server.port) as redis:
                redis.flushall()
            return asyncio.run(_by_dispatcher(settings, data_ids))

        scan = _best(lambda: _by_pyiceberg(catalog), payloads)
        bare = _best(lambda: _by_pyarrow(catalog), payloads)
        served = _best(read_after_wipe, payloads)
    what = f"{payloads:,} payloads served by a dispatcher"
    return [*multiples(what, served, "PyIceberg's scan", scan), *multiples(what, served, "PyArrow, bare files", bare)]


def _best(work: Callable[[], int], expected: int) -> Cost:
    """Return the smallest cost of `TRIES` calls; each must return `expected`, the number of payloads."""

    def checked() -> None:
        if (found := work()) != expected:
            raise RuntimeError(f"{found} of {expected} payloads were found")

    return min((cost_of(checked) for _ in range(TRIES)), key=lambda cost: cost.wall_s)
