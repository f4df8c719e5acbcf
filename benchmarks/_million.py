"""The state of a platform with a million vehicles: a lake, an archive whose last hour is not ingested yet, and queues.

There are three batches, each sent as triggers for 1,000 vehicles from all over the fleet:

- `spring` was sent over the last day to every vehicle, and is in the lake. Nine of ten entries are delivered, the others pending.
- `summer` was sent in the last hour to a tenth of the fleet, and is delivered. It and its outcomes are only in the archive.
- `autumn` was sent in the same hour to 99 of 100 vehicles, and is pending. It is only in the archive.

One vehicle of fifty has an entry in flight. Redis knows the presence of every vehicle.
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
HOUR_SEGMENTS = 120  # segments of the last hour, one every thirty seconds
RUNS = 10  # runs of ingest that filled the lake
IN_FLIGHT_ONE_OF = 50
DAY_MS, HOUR_MS = 24 * 3_600_000, 3_600_000
QUIET_MS = 20 * 60_000  # time without triggers before now
SCATTER = 7919  # a prime; numbers of vehicles are multiplied by it, so that those of a trigger are far apart
DATA_ID = "firmware"


@dataclass(frozen=True, slots=True)
class Sent:
    """One accepted trigger."""

    seq: int
    request_id: str
    vins: list[str]

    @property
    def envelope(self) -> Envelope:
        """The trigger's message in the archive."""
        return trigger(self.seq, self.vins, self.request_id, DATA_ID)


@dataclass(frozen=True, slots=True)
class World:
    """The three batches for `vins` vehicles, a multiple of 10,000."""

    vins: int
    now_ms: int

    @property
    def spring(self) -> list[Sent]:
        """The delivered triggers, each with its own request_id; then the last tenth, pending, which all have `task_spring`."""
        count = self.vins // VINS_PER_TRIGGER
        delivered = count * 9 // 10
        request_ids = [f"task_spring_{number}" for number in range(delivered)] + ["task_spring"] * (count - delivered)
        return self._sent(request_ids, self.now_ms - DAY_MS, DAY_MS - 2 * HOUR_MS)

    @property
    def summer(self) -> list[Sent]:
        """The triggers of the batch that is delivered, and only in the archive."""
        request_ids = [f"task_summer_{number}" for number in range(self.vins // VINS_PER_TRIGGER // 10)]
        return self._sent(request_ids, self.now_ms - QUIET_MS - HOUR_MS, HOUR_MS // 2)

    @property
    def autumn(self) -> list[Sent]:
        """The triggers of the batch that is pending, and only in the archive."""
        request_ids = [f"task_autumn_{number}" for number in range(self.vins // VINS_PER_TRIGGER * 99 // 100)]
        return self._sent(request_ids, self.now_ms - QUIET_MS - HOUR_MS // 2, HOUR_MS // 2)

    def vehicle(self, number: int) -> str:
        """Return the vehicle with this index in each batch."""
        return vin_of(number * SCATTER % self.vins)

    def _sent(self, request_ids: Sequence[str], start_ms: int, within_ms: int) -> list[Sent]:
        """Return a trigger for each request id, evenly spread over `within_ms` from `start_ms` on."""
        triggers = []
        for number, request_id in enumerate(request_ids):
            seq = seq_of(start_ms + within_ms * number // len(request_ids), 0, 0)
            first = number * VINS_PER_TRIGGER
            vins = [self.vehicle(index) for index in range(first, first + VINS_PER_TRIGGER)]
            triggers.append(Sent(seq, request_id, vins))
        return triggers


def fill(settings: Settings, vins: int) -> World:
    """Fill the lake, the archive, and the Redis of these settings."""
    world = World(vins, wall_clock_ms())
    spring, summer, autumn = world.spring, world.summer, world.autumn
    archive = Path(settings.archive.removeprefix("file://"))
    ingested_paths = [write_segment(archive, [sent.envelope]) for sent in spring]
    _fill_lake(settings, spring, ingested_paths)
    last_hour = sorted([*summer, *autumn], key=lambda sent: sent.seq)
    for envelopes in _parts([sent.envelope for sent in last_hour], HOUR_SEGMENTS):
        write_segment(archive, envelopes)
    outcomes = [_outcome(sent, index) for sent in summer for index in range(VINS_PER_TRIGGER)]
    for envelopes in _parts(outcomes, HOUR_SEGMENTS):
        write_segment(archive, envelopes)
    pending_in_lake = spring[_delivered(spring) :]
    asyncio.run(_fill_redis(settings, world, pending=[*pending_in_lake, *autumn], ended=summer))
    return world


def _delivered(spring: list[Sent]) -> int:
    """Return how many triggers of `spring`, from the first one on, are delivered."""
    return len(spring) * 9 // 10


def _fill_lake(settings: Settings, spring: list[Sent], paths: list[str]) -> None:
    """Write the triggers in the order of arrival, in `RUNS` parts, as that many runs of ingest do; `paths` are their segments."""
    catalog = open_catalog(settings)
    ensure_tables(catalog)
    delivered = _delivered(spring)

    def append(table: Table, rows: dict[str, list[object]]) -> None:
        catalog.load_table(table.identifier).append(pa.table(rows, schema=table.arrow_schema))

    triggers_per_run = len(spring) // RUNS
    for first in range(0, len(spring), triggers_per_run):
        append(IDS, _ids(spring[first : first + triggers_per_run]))
        if outcomes := _outcomes(spring[first : min(first + triggers_per_run, delivered)]):
            append(OUTCOMES, outcomes)
    seqs = [sent.seq for sent in spring]
    same = {"stream": "trigger", "messages": 1, "run_id": "bench", "ingested_at": datetime.now(UTC), "refused_because": None}
    rows = {column: [value] * len(seqs) for column, value in same.items()} | {"began_at": [datetime_of(seq) for seq in seqs]}
    append(SEGMENTS, {**rows, "path": list(paths), "first_seq": list(seqs), "last_seq": list(seqs)})


def _ids(triggers: Iterable[Sent]) -> dict[str, list[object]]:
    rows = [(vin, datetime_of(sent.seq), sent.request_id, sent.seq, DATA_ID, True) for sent in triggers for vin in sent.vins]
    return _columns(IDS, rows)


def _outcomes(triggers: Iterable[Sent]) -> dict[str, list[object]]:
    """Return the columns of the outcomes of these triggers, all delivered; empty if there are no triggers."""
    rows: list[tuple[object, ...]] = []
    for sent in triggers:
        at = datetime_of(sent.seq)
        dispatched_at, acknowledged_at = at + timedelta(seconds=2), at + timedelta(seconds=3)
        fields = (sent.seq, Outcome.DELIVERED.value, at, dispatched_at, acknowledged_at, at, 1, None)
        rows += [(vin, *fields) for vin in sent.vins]
    return _columns(OUTCOMES, rows) if rows else {}


def _columns(table: Table, rows: Sequence[tuple[object, ...]]) -> dict[str, list[object]]:
    """Return the values of each column.

    A row has the values of the table's first columns, in their order. The remaining columns are null.
    """
    names = [column.name for column in table.columns]
    given = {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=False)}
    return {name: given.get(name, [None] * len(rows)) for name in names}


def _outcome(sent: Sent, index: int) -> Envelope:
    """Return the outcome of the entry of `sent.vins[index]`, recorded a second after the trigger was accepted."""
    return outcome(seq_of(unix_ms_of(sent.seq) + 1000, 0, index), sent.vins[index], sent.seq)


def _parts(envelopes: list[Envelope], count: int) -> Iterable[list[Envelope]]:
    """Split envelopes into at most `count` parts of the same size; the last one may be smaller."""
    size = -(-len(envelopes) // count)  # rounded up
    return (envelopes[first : first + size] for first in range(0, len(envelopes), size))


async def _fill_redis(settings: Settings, world: World, pending: list[Sent], ended: list[Sent]) -> None:
    """Fill the queues by the verbs that recorder and dispatcher use.

    `pending` are triggers whose entries wait; `ended` are triggers whose entries are delivered.
    """
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
                is_in_flight = number % IN_FLIGHT_ONE_OF == 0  # the verb then claims the vehicle's first entry
                batch.add(vin_of(number), UpdatePresence(PresenceSign(), claim=is_in_flight), now_ms)
            await batch.run()


@contextmanager
def million(size: Size) -> Iterator[tuple[Settings, World]]:
    """Provide Redis, lake and archive with a million vehicles (20,000 in a small run); no service of the platform runs."""
    with TemporaryDirectory(prefix=PREFIX) as folder:
        settings = load_settings(home=Path(folder), with_airflow=False, with_signals=False, with_campaigns=False, **free_ports())
        with start_redis(settings.home / "redis", port=settings.redis_port):
            yield settings, fill(settings, size.pick(full=1_000_000, small=20_000))
