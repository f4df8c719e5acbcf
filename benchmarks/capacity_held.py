"""`python -m benchmarks.capacity_held`: the unit costs of the capacity model, measured again at three sizes, ten times apart.

The model takes each cost for constant: a vehicle in Redis, a delivery, a heartbeat, what a delivery leaves in the archive, and in
the lake that and what a run leaves. Processor time is read, not the clock, so other work on the machine disturbs it less.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

from benchmarks import capacity
from benchmarks.dispatch import _memory, _rates
from benchmarks.dispatch._fleet import fleet
from benchmarks.dispatch._ground import platform, vin
from benchmarks.machine import Row, report
from manifold.contracts.envelope import Envelope, Stream, segment_path, to_arrow
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import datetime_of, seq_of
from manifold.contracts.topics import TRIGGER, request_filter
from manifold.lake.catalog import open_catalog
from manifold.runtime.log import configure_logging
from manifold.settings import Settings
from pipelines.ingest.run import Run
from pipelines.ingest.run_all import ingest_audit_publish
from pipelines.spark.session import session

OWNERS = (10_000, 100_000, 1_000_000)
VEHICLES = (50, 500, 5_000)
STORED = (3_000, 30_000, 300_000)
DELIVERIES = 10_000  # at each number of vehicles
A_TRIGGER = 1_000  # VINs
NODE = 900  # no recorder's


def held(what: str, predicted: Sequence[float], unit: str, measured: Sequence[tuple[int, float]]) -> Iterator[Row]:
    """A row for each size: what was measured, and by how much the model says more (or less)."""
    for says, (size, found) in zip(predicted, measured, strict=True):
        yield Row(f"{what}, {size:,}", f"{found:.1f} {unit}", f"model {says:.1f} {unit}: {says / found - 1:+.0%}")


def memory() -> Iterator[Row]:
    """Redis, for a vehicle with one entry that was seen."""
    found = [(size, _memory.measure(size)) for size in OWNERS]
    vehicle = capacity.ENTRY_B.value + capacity.SEEN_B.value
    return held("Redis, a vehicle of", [vehicle] * len(OWNERS), "B", [(size, m.single_entry + m.idle_owner) for size, m in found])


def deliveries() -> Iterator[Row]:
    """Processor time of a delivery that is woken for, and of a heartbeat, by the number of vehicles."""
    woken: dict[int, _rates.Rate] = {}
    beats: dict[int, _rates.Rate] = {}
    for vehicles in VEHICLES:
        with (
            platform() as ground,
            fleet(ground.settings.mqtt, partial(request_filter, ground.settings.topic_prefix), vin) as road,
        ):
            road.connect(0, vehicles)
            owners = [vin(number) for number in range(vehicles)]
            _rates.wake(ground, road, owners, 1)  # what the first pays for
            woken[vehicles] = _rates.wake(ground, road, owners, max(1, DELIVERIES // vehicles))
            beats[vehicles] = _rates.beat(ground, road, vehicles, max(1, DELIVERIES // vehicles))
    costs = {"dispatcher": capacity.DISPATCHER_US, "redis": capacity.REDIS_US, "recorder": capacity.RECORDER_US}
    for kind, cost in costs.items():
        yield from held(
            f"a delivery, {kind}; vehicles",
            [cost.value] * len(VEHICLES),
            "µs",
            [(n, each.cpu_us[kind]) for n, each in woken.items()],
        )
    for kind, cost in {"dispatcher": capacity.HEARTBEAT_US, "redis": capacity.HEARTBEAT_REDIS_US}.items():
        yield from held(
            f"a heartbeat, {kind}; vehicles",
            [cost.value] * len(VEHICLES),
            "µs",
            [(n, each.cpu_us[kind]) for n, each in beats.items()],
        )


def storage() -> Iterator[Row]:
    """What a delivery leaves: its part of a trigger and its outcome in the archive, two rows in the lake, with all metadata."""
    found = [(size, *_stored(size)) for size in STORED]
    yield from held(
        "archive, a delivery of", [capacity.ARCHIVE_B.value] * len(STORED), "B", [(size, archive) for size, archive, _ in found]
    )
    yield from held(
        "lake, a delivery of", [capacity.lake_bytes(size) for size in STORED], "B", [(size, lake) for size, _, lake in found]
    )


def _stored(size: int) -> tuple[float, float]:
    with TemporaryDirectory(prefix="manifold-bench-") as folder:
        home, now = Path(folder), datetime.now(UTC)
        settings = Settings(home=home)
        _write(home / "archive", size, int(now.timestamp() * 1000) - size)
        with session(settings, "bench") as spark:
            ingest_audit_publish(Run(spark, open_catalog(settings), settings, "held", now))
        return _bytes(home / "archive") / size, _bytes(home / "lake") / size


def _write(archive: Path, size: int, first_ms: int) -> None:
    """Triggers for a thousand vehicles each, and how each entry ended."""
    for place in range(0, size, A_TRIGGER):
        seq = seq_of(first_ms + place, NODE, 0)
        vins = [f"WMANF0LD{number * 7919 % 10**9:09d}" for number in range(place, place + A_TRIGGER)]
        said = json.dumps({"ids": vins, "request_id": f"task_{place}", "data_id": "map-1"}).encode()
        _segment(archive, [Envelope(seq, datetime_of(seq), Stream.TRIGGER, TRIGGER, said, applied=True)])
        ended = [
            OutcomeRecord(each, seq, Outcome.DELIVERED, first_ms + place + 9, dispatched_ms=first_ms + place + 5, attempts=1)
            for each in vins
        ]
        seqs = [seq_of(first_ms + place, NODE, number) for number in range(1, A_TRIGGER + 1)]
        _segment(
            archive,
            [
                Envelope(at, datetime_of(at), Stream.OUTCOME, f"outcomes/{end.vin}", end.to_wire())
                for at, end in zip(seqs, ended, strict=True)
            ],
        )


def _segment(archive: Path, envelopes: list[Envelope]) -> None:
    file = archive / segment_path(envelopes[0].stream, envelopes[0].seq, NODE)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(to_arrow(envelopes), file, compression="zstd")


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


PARTS: dict[str, Callable[[], Iterator[Row]]] = {"memory": memory, "deliveries": deliveries, "storage": storage}


def main() -> int:
    """Measure all parts, or one."""
    configure_logging("benchmark", level="warning")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[*PARTS], help="one part; else all")
    only = parser.parse_args().only
    for part in [only] if only else PARTS:
        report(f"capacity-{part}", "the model against three sizes", list(PARTS[part]()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
