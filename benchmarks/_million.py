"""The state of a platform with a million vehicles: a lake, an archive with an hour that is not ingested yet, and queues.

Three batches, each sent as triggers for 1,000 vehicles from all over the fleet:
`spring`, over the day before, to every vehicle: in the lake; delivered to nine of ten, pending for the rest.
`summer`, in the last hour, to a tenth of the fleet: delivered; it and its outcomes are in the archive alone.
`autumn`, in the same hour, to 99 of 100 vehicles: pending; in the archive alone.
One vehicle of fifty has an entry in flight, and something is known of each vehicle's connection.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from benchmarks._archive import outcome, trigger, vin_of, write_segment
from benchmarks._measure import Size
from benchmarks._servers import PREFIX, start_redis
from manifold.contracts import keys
from manifold.contracts.brakes import EntryTrigger
from manifold.contracts.envelope import Envelope
from manifold.contracts.events import PresenceSign
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import datetime_of, seq_of, unix_ms_of, wall_clock_ms
from manifold.contracts.tables import IDS, OUTCOMES, SEGMENTS, Table
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.queues import Policy, Queues, connect
from manifold.queues.verbs.claims import UpdatePresence
from manifold.queues.verbs.ends import Ack
from manifold.queues.verbs.fills import Enqueue
from manifold.sandbox.platform.ports import free_ports
from manifold.settings import Settings, load_settings

VINS_PER_TRIGGER = 1000
HOUR_SEGMENTS = 120  # one every thirty seconds
RUNS = 10  # of ingest, which filled the lake
IN_FLIGHT_ONE_OF = 50
DAY_MS, HOUR_MS, LATELY_MS = 24 * 3_600_000, 3_600_000, 20 * 60_000
SCATTER = 7919  # a prime: the vehicles of a trigger lie far from each other
DATA_ID = "firmware"


@dataclass(frozen=True, slots=True)
class Sent:
    """One trigger, as it was accepted."""

    seq: int
    request_id: str
    vins: list[str]

    @property
    def envelope(self) -> Envelope:
        """Its message in the archive."""
        return trigger(self.seq, self.vins, self.request_id, DATA_ID)


@dataclass(frozen=True, slots=True)
class World:
    """The batches; `vins` vehicles, a multiple of 10,000."""

    vins: int
    now_ms: int

    @property
    def spring(self) -> list[Sent]:
        """Delivered: each trigger has its own request_id. The last tenth, pending, shares `task_spring`."""
        count = self.vins // VINS_PER_TRIGGER
        names = [f"task_spring_{n}" if n < count * 9 // 10 else "task_spring" for n in range(count)]
        return self._sent(names, self.now_ms - DAY_MS, DAY_MS - 2 * HOUR_MS)

    @property
    def summer(self) -> list[Sent]:
        """Delivered, in the archive alone."""
        names = [f"task_summer_{n}" for n in range(self.vins // VINS_PER_TRIGGER // 10)]
        return self._sent(names, self.now_ms - LATELY_MS - HOUR_MS, HOUR_MS // 2)

    @property
    def autumn(self) -> list[Sent]:
        """Pending, in the archive alone."""
        names = [f"task_autumn_{n}" for n in range(self.vins // VINS_PER_TRIGGER * 99 // 100)]
        return self._sent(names, self.now_ms - LATELY_MS - HOUR_MS // 2, HOUR_MS // 2)

    def vehicle(self, number: int) -> str:
        """The vehicle at this place of each batch."""
        return vin_of(number * SCATTER % self.vins)

    def _sent(self, names: Sequence[str], start_ms: int, within_ms: int) -> list[Sent]:
        return [
            Sent(
                seq_of(start_ms + within_ms * n // len(names), 0, 0),
                name,
                [self.vehicle(n * VINS_PER_TRIGGER + place) for place in range(VINS_PER_TRIGGER)],
            )
            for n, name in enumerate(names)
        ]


def fill(settings: Settings, vins: int) -> World:
    """Fill the lake, the archive, and the Redis of these settings."""
    world = World(vins, wall_clock_ms())
    spring, summer, autumn = world.spring, world.summer, world.autumn
    archive = Path(settings.archive.removeprefix("file://"))
    ingested = [write_segment(archive, [sent.envelope]) for sent in spring]
    _fill_lake(settings, spring, ingested)
    hour = sorted([*summer, *autumn], key=lambda sent: sent.seq)
    for some in _parts([sent.envelope for sent in hour], HOUR_SEGMENTS):
        write_segment(archive, some)
    for some in _parts([_outcome(sent, place) for sent in summer for place in range(VINS_PER_TRIGGER)], HOUR_SEGMENTS):
        write_segment(archive, some)
    asyncio.run(_fill_redis(settings, world, [*spring[len(spring) * 9 // 10 :], *autumn], summer))
    return world


def _fill_lake(settings: Settings, spring: list[Sent], paths: list[str]) -> None:
    """In arrival order, as so many runs of an ingest leave it."""
    catalog = open_catalog(settings)
    ensure_tables(catalog)
    delivered = len(spring) * 9 // 10

    def append(table: Table, rows: dict[str, list[object]]) -> None:
        catalog.load_table(table.identifier).append(pa.table(rows, schema=table.arrow_schema))

    for first in range(0, len(spring), len(spring) // RUNS):
        some = spring[first : first + len(spring) // RUNS]
        append(IDS, _ids(some))
        if ended := _outcomes(spring[first : min(first + len(some), delivered)]):
            append(OUTCOMES, ended)
    seqs = [sent.seq for sent in spring]
    run = {"stream": "trigger", "messages": 1, "run_id": "bench", "ingested_at": datetime.now(UTC), "refused_because": None}
    rows = {name: [value] * len(seqs) for name, value in run.items()} | {"began_at": [datetime_of(seq) for seq in seqs]}
    append(SEGMENTS, {**rows, "path": list(paths), "first_seq": list(seqs), "last_seq": list(seqs)})


def _ids(triggers: Iterable[Sent]) -> dict[str, list[object]]:
    rows = [(vin, datetime_of(sent.seq), sent.request_id, sent.seq, DATA_ID, True) for sent in triggers for vin in sent.vins]
    return _columns(IDS, rows)


def _outcomes(triggers: Iterable[Sent]) -> dict[str, list[object]]:
    rows = [
        (vin, sent.seq, Outcome.DELIVERED.value, at, at + timedelta(seconds=2), at + timedelta(seconds=3), at, 1, None)
        for sent in triggers
        for at in [datetime_of(sent.seq)]
        for vin in sent.vins
    ]
    return _columns(OUTCOMES, rows) if rows else {}


def _columns(table: Table, rows: Sequence[tuple[object, ...]]) -> dict[str, list[object]]:
    return {column.name: list(values) for column, values in zip(table.columns, zip(*rows, strict=True), strict=True)}


def _outcome(sent: Sent, place: int) -> Envelope:
    """The outcome of one entry, a second after its trigger was accepted."""
    return outcome(seq_of(unix_ms_of(sent.seq) + 1000, 0, place), sent.vins[place], sent.seq)


def _parts(envelopes: list[Envelope], count: int) -> Iterable[list[Envelope]]:
    size = -(-len(envelopes) // count)
    return (envelopes[first : first + size] for first in range(0, len(envelopes), size))


async def _fill_redis(settings: Settings, world: World, pending: list[Sent], ended: list[Sent]) -> None:
    """By the verbs that recorder and dispatcher use."""
    now_ms = world.now_ms
    async with connect(settings.redis) as redis:
        queues = Queues(redis, Policy.of(settings))
        await redis.set(keys.LOADED, now_ms)
        for sent in (*pending, *ended):
            await queues.store_trigger(sent.seq, EntryTrigger(sent.request_id, DATA_ID))
        for sent in pending:
            batch = queues.batch()
            for vin in sent.vins:
                batch.add(vin, Enqueue([(sent.seq, sent.request_id)]), now_ms)
            await batch.run()
        for sent in ended:
            batch = queues.batch()
            for vin in sent.vins:
                record = OutcomeRecord(vin, sent.seq, Outcome.DELIVERED, now_ms)
                batch.add(record.vin, Ack(record, claim=False, sends_outcome=False), now_ms)
            await batch.run()
        for first in range(0, world.vins, VINS_PER_TRIGGER):
            batch = queues.batch()
            for number in range(first, first + VINS_PER_TRIGGER):
                batch.add(vin_of(number), UpdatePresence(PresenceSign(), number % IN_FLIGHT_ONE_OF == 0), now_ms)
            await batch.run()


@contextmanager
def million(size: Size) -> Iterator[tuple[Settings, World]]:
    """A Redis, a lake and an archive with a million vehicles (20,000 in a small run), on free ports and without a platform."""
    with TemporaryDirectory(prefix=PREFIX) as folder:
        settings = load_settings(home=Path(folder), with_airflow=False, with_signals=False, with_campaigns=False, **free_ports())
        with start_redis(settings.home / "redis", port=settings.redis_port):
            yield settings, fill(settings, size.pick(full=1_000_000, small=20_000))
