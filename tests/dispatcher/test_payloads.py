"""Payloads missing in Redis: many of them from a real lake, each read once, within memory bounds."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from redis import Redis
from structlog.testing import capture_logs

from dispatcher._lake import READERS, Lake
from dispatcher._payload_reader import MAX_READ_BYTES, REDIS_BATCH_SIZE
from dispatcher._payloads import Found, MissingData, Payloads
from manifold.contracts import keys
from manifold.contracts.brakes import EntryTrigger
from manifold.contracts.events import Connected
from manifold.contracts.names import Owner
from manifold.contracts.seq import seq_of, wall_clock_ms
from manifold.contracts.tables import DATA, IDS, Table
from manifold.lake.payloads import PIECE_BYTES
from manifold.queues import Policy, Queues, connect
from manifold.queues.verbs.claims import Claim, Park, UpdatePresence
from manifold.settings import Settings
from tests.manifold.queues.triggers import enqueue_trigger
from tests.support.lake_rows import append, append_payloads, data_files, hanging, new_lake
from tests.support.servers import Server, start_redis

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MIB = 1 << 20
MANY = 20_000  # entries of one payload
ENOUGH_S = 120  # for any test here, on a busy machine too
_numbers = count()


class WatchedLake(Lake):
    """A lake that records how many names are requested together."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.asked: list[int] = []

    def payloads(self, data_ids: Sequence[str]) -> AsyncGenerator[dict[str, bytes | None], None]:
        self.asked.append(len(data_ids))
        return super().payloads(data_ids)


class Gate:
    """Let reading continue this many times, and report when it would continue once more."""

    def __init__(self, times: int) -> None:
        self._left, self.is_shut, self._is_open = times, asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        self._left -= 1
        if self._left < 0:
            self.is_shut.set()
            await self._is_open.wait()

    def open(self) -> None:
        self._is_open.set()


@dataclass
class World:
    """The payloads of a dispatcher over an empty Redis and a lake."""

    settings: Settings
    catalog: Catalog
    redis: Redis
    name: str = field(default_factory=lambda: f"w{next(_numbers)}")

    def run(self, body: "Callable[[Payloads, WatchedLake], Awaitable[None]]") -> None:
        """Run `body` with its own `Payloads`."""

        async def main() -> None:
            lake = WatchedLake(self.settings)
            async with connect(self.settings.redis) as redis:
                payloads = Payloads(Queues(redis, Policy.of(self.settings)), lake, max_bytes=MIB)
                try:
                    async with asyncio.timeout(ENOUGH_S):
                        await body(payloads, lake)
                finally:
                    await payloads.close()
                    lake.close()

        asyncio.run(main())

    def store(self, number: int, size: int, *, day: int = 0) -> dict[str, bytes]:
        """Store this many payloads of one day in the lake."""
        payloads = {f"{self.name}-{day}-{n}": os.urandom(size) for n in range(number)}
        append_payloads(self.catalog, payloads, at=NOON + timedelta(days=day))
        return payloads

    def trigger(self, *, day: int) -> tuple[str, int]:
        """Store an entry of this day in the lake; return its owner (which also names request and data) and its seq."""
        at, owner = NOON + timedelta(days=day), f"{self.name}-V{day}"
        seq = seq_of(int(at.timestamp() * 1000), 0, 0)
        row = {"vin": owner, "ts": at, "request_id": f"r-{owner}", "seq": seq, "data_id": f"d-{owner}", "applied": False}
        append(self.catalog, IDS, [row])
        return owner, seq

    def files(self, table: Table = DATA) -> list[Path]:
        """The lake's files of payloads, or of another table, oldest day first."""
        return data_files(self.catalog, table)


def a_world(home: Path, port: int) -> Iterator[World]:
    settings = Settings(home=home, redis_port=port)
    catalog = new_lake(settings)
    with Redis(port=port) as redis:
        yield World(settings, catalog, redis)


@pytest.fixture
def world(tmp_path: Path, redis_server: Server) -> Iterator[World]:
    yield from a_world(tmp_path, redis_server.port)


@pytest.fixture
def lonely(tmp_path: Path, own_redis: Server) -> Iterator[World]:
    """The same with its own Redis."""
    yield from a_world(tmp_path / "home", own_redis.port)


async def read_all(payloads: Payloads, names: Sequence[str]) -> dict[str, bytes | None]:
    return dict(zip(names, await asyncio.gather(*map(payloads.read, names)), strict=True))


def test_requests_for_missing_payloads_are_batched_and_results_cached(world: World) -> None:
    stored = world.store(2000, 100)

    async def body(payloads: Payloads, lake: WatchedLake) -> None:
        assert await read_all(payloads, list(stored)) == stored
        assert sum(lake.asked) == len(stored)
        assert max(lake.asked) >= REDIS_BATCH_SIZE

    world.run(body)
    assert world.redis.mget(keys.data(name) for name in stored) == list(stored.values())
    assert 0 < world.redis.pttl(keys.data(next(iter(stored)))) <= world.settings.retention_days * 86_400_000


def test_payloads_in_redis_get_a_fresh_ttl_without_a_lake_read(world: World) -> None:
    name = f"{world.name}-kept"
    world.redis.set(keys.data(name), b"here", px=60_000)

    async def body(payloads: Payloads, lake: WatchedLake) -> None:
        assert await payloads.read(name) == b"here"
        assert lake.asked == []

    world.run(body)
    assert world.redis.pttl(keys.data(name)) > 60_000


def test_while_the_broker_is_full_a_reader_reads_at_most_one_chunk(world: World) -> None:
    stored = world.store(40, MIB)

    async def body(payloads: Payloads, lake: WatchedLake) -> None:
        taken = await taken_before_there_is_room(payloads, stored, looks=2)  # one lookup in Redis and one in the lake
        assert 0 < taken <= PIECE_BYTES // MIB
        assert lake.asked == [len(stored)]

    world.run(body)


async def taken_before_there_is_room(payloads: Payloads, stored: dict[str, bytes], *, looks: int) -> int:
    """The number of payloads read while the broker has room for this many lookups; the rest is read afterwards."""
    gate = Gate(looks)
    payloads.may_read = gate.wait
    asked = {name: asyncio.ensure_future(payloads.read(name)) for name in stored}
    await gate.is_shut.wait()
    taken = sum(answer.done() for answer in asked.values())
    gate.open()
    assert {name: await answer for name, answer in asked.items()} == stored
    return taken


def test_while_the_broker_is_full_reads_from_redis_stop_too(world: World) -> None:
    stored = {f"{world.name}-{n}": os.urandom(MIB) for n in range(40)} | {f"{world.name}-empty": b""}
    world.redis.mset({keys.data(name): payload for name, payload in stored.items()})

    async def body(payloads: Payloads, lake: WatchedLake) -> None:
        taken = await taken_before_there_is_room(payloads, stored, looks=1)
        assert 0 < taken <= MAX_READ_BYTES // MIB
        assert lake.asked == []

    world.run(body)


def test_two_dispatchers_find_the_same_payloads_concurrently(world: World) -> None:
    stored = world.store(500, 1000)

    async def body(payloads: Payloads, lake: WatchedLake) -> None:
        async with connect(world.settings.redis) as redis:
            other = Payloads(Queues(redis, Policy.of(world.settings)), lake, max_bytes=MIB)
            found = await asyncio.gather(read_all(payloads, list(stored)), read_all(other, list(stored)))
            assert all(each == stored for each in found)
            await other.close()

    world.run(body)


def test_a_redis_outage_during_a_read_is_waited_out(lonely: World, own_redis: Server) -> None:
    stored = lonely.store(8, MIB)

    async def body(payloads: Payloads, lake: WatchedLake) -> None:
        gate = Gate(2)
        payloads.may_read = gate.wait
        asked = [asyncio.ensure_future(payloads.read(name)) for name in stored]
        await gate.is_shut.wait()
        own_redis.kill()
        gate.open()
        again = start_redis(lonely.settings.home / "again", port=own_redis.port)
        try:
            assert await asyncio.gather(*asked) == list(stored.values())
            assert lake.asked == [len(stored)]
        finally:
            again.kill()

    lonely.run(body)


def test_a_payload_larger_than_every_bound_passes(world: World) -> None:
    stored = world.store(1, 2 * READERS * PIECE_BYTES) | world.store(3, 10, day=1)

    async def body(payloads: Payloads, _: WatchedLake) -> None:
        assert await read_all(payloads, list(stored)) == stored

    world.run(body)


def test_an_unknown_payload_is_reported_at_once_and_blocks_nothing(world: World) -> None:
    stored = world.store(8, MIB)

    async def body(payloads: Payloads, lake: WatchedLake) -> None:
        gate = Gate(2)
        payloads.may_read = gate.wait
        asked = [asyncio.ensure_future(payloads.read(name)) for name in stored]
        missing = await payloads.read(f"{world.name}-never")
        assert missing is None
        assert not any(answer.done() for answer in asked)
        gate.open()
        assert await asyncio.gather(*asked) == list(stored.values())
        assert await payloads.read(f"{world.name}-never") is None
        assert await read_all(payloads, list(stored)) == stored

    world.run(body)


def test_payloads_of_an_unreadable_lake_file_are_retried_and_found(world: World) -> None:
    stored = world.store(3, 100) | world.store(3, 100, day=1) | world.store(3, 100, day=2)
    spoilt = world.files()[1]
    whole = spoilt.read_bytes()
    spoilt.write_bytes(b"not now")

    async def body(payloads: Payloads, lake: WatchedLake) -> None:
        with capture_logs() as logs:
            found = await read_all(payloads, list(stored))
        assert {line["file"] for line in logs if "file" in line} == {f"file://{spoilt}"}
        assert found == {name: None if "-1-" in name else payload for name, payload in stored.items()}
        spoilt.write_bytes(whole)
        assert await read_all(payloads, list(stored)) == stored
        assert lake.asked == [len(stored), 3]

    world.run(body)


def test_an_unreadable_lake_yields_nothing_until_it_recovers(world: World) -> None:
    stored = world.store(3, 100)
    files = world.settings.home / "lake" / "warehouse"
    hidden = files.rename(files.with_name("hidden"))

    async def body(payloads: Payloads, _: WatchedLake) -> None:
        with capture_logs() as logs:
            assert await read_all(payloads, list(stored)) == dict.fromkeys(stored)
        assert "lake not readable" in {line["event"] for line in logs}
        hidden.rename(files)
        assert await read_all(payloads, list(stored)) == stored

    world.run(body)


def test_an_unreadable_entry_costs_no_other_its_trigger(world: World) -> None:
    entries = [world.trigger(day=day) for day in range(4)]
    known = [EntryTrigger(f"r-{owner}", f"d-{owner}") for owner, _ in entries]
    spoilt = world.files(IDS)[1]
    whole = spoilt.read_bytes()
    spoilt.write_bytes(b"not now")

    async def body(_: Payloads, lake: WatchedLake) -> None:
        with capture_logs() as logs:
            found = await asyncio.gather(*(lake.trigger(*entry) for entry in entries), lake.trigger("never", entries[0][1]))
        assert found == [known[0], None, *known[2:], None]
        assert [(line["vin"], line["seq"]) for line in logs if "vin" in line] == [entries[1]]
        spoilt.write_bytes(whole)
        assert await asyncio.gather(*(lake.trigger(*entry) for entry in entries)) == known

    world.run(body)


def test_a_hanging_lake_yields_nothing_and_blocks_no_reader(world: World) -> None:
    stored = world.store(3, 100)
    entry = world.trigger(day=0)

    async def body(payloads: Payloads, lake: WatchedLake) -> None:
        with capture_logs() as logs:
            with hanging(world.files()[0]), hanging(world.files(IDS)[0]):
                lake.timeout_s = 0.05
                for _ in range(READERS + 2):
                    assert await read_all(payloads, list(stored)) == dict.fromkeys(stored)
                    assert await lake.trigger(*entry) is None
                told = asyncio.Queue[Found | MissingData]()
                seq = seq_of(wall_clock_ms(), 0, 0)
                payloads.learn(seq, "r", next(iter(stored)))
                payloads.fetch("V1", seq, told.put_nowait)
                assert await told.get() == MissingData(next(iter(stored)))
            lake.timeout_s = 60
            assert await read_all(payloads, list(stored)) == stored
            assert await lake.trigger(*entry) == EntryTrigger(f"r-{entry[0]}", f"d-{entry[0]}")
        silent = [line["table"] for line in logs if "has not answered" in line.get("reason", "")]
        assert {*silent} == {DATA.name, IDS.name}

    world.run(body)


def test_results_found_before_the_lake_hangs_are_delivered(world: World) -> None:
    good, hung = world.trigger(day=0), world.trigger(day=1)

    async def body(_: Payloads, lake: WatchedLake) -> None:
        with capture_logs(), hanging(world.files(IDS)[1]):
            lake.timeout_s = 2
            found = await asyncio.gather(lake.trigger(*good), lake.trigger(*hung))
            for _again in range(READERS - 1):
                if found[0] is None:  # on a busy machine
                    found = await asyncio.gather(lake.trigger(*good), lake.trigger(*hung))
            assert [*found] == [EntryTrigger(f"r-{good[0]}", f"d-{good[0]}"), None]

    world.run(body)


def test_only_the_last_of_repeated_requests_for_an_entry_is_answered(world: World) -> None:
    (name, payload), *_ = world.store(1, 100).items()
    told = list[tuple[str, int, Found | MissingData]]()

    async def body(payloads: Payloads, _: WatchedLake) -> None:
        gate = Gate(0)
        payloads.may_read = gate.wait
        seq = seq_of(wall_clock_ms(), 0, 0)
        payloads.learn(seq, "r", name)
        for n in range(100):
            for owner in ("V1", "V2"):
                payloads.fetch(owner, seq, lambda found, asked=(owner, n): told.append((*asked, found)))  # type: ignore[misc]
        await gate.is_shut.wait()
        gate.open()
        assert await payloads.read(name) == payload
        await asyncio.sleep(0)

    world.run(body)
    assert told == [(owner, 99, Found("r", name, payload)) for owner in ("V1", "V2")]


def test_a_cancelled_request_costs_no_other_its_payload(world: World) -> None:
    stored = world.store(8, MIB)
    name = list(stored)[-1]

    async def body(payloads: Payloads, lake: WatchedLake) -> None:
        gate = Gate(2)
        payloads.may_read = gate.wait
        asked = [asyncio.ensure_future(payloads.read(each)) for each in stored]
        second = asyncio.ensure_future(payloads.read(name))
        await gate.is_shut.wait()
        for each in asked:
            each.cancel()
        gate.open()
        assert await second == stored[name]
        assert isinstance((await asyncio.gather(*asked, return_exceptions=True))[-1], asyncio.CancelledError)
        assert lake.asked == [len(stored)]

    world.run(body)


def test_closing_during_a_read_ends_it_without_a_false_miss(world: World) -> None:
    stored = world.store(8, MIB)
    told: list[Found | MissingData] = []

    async def body(payloads: Payloads, _: WatchedLake) -> None:
        gate = Gate(2)
        payloads.may_read = gate.wait
        seq = seq_of(wall_clock_ms(), 0, 0)
        payloads.learn(seq, "r", list(stored)[-1])
        payloads.fetch("V1", seq, told.append)
        asked = [asyncio.ensure_future(payloads.read(name)) for name in stored]
        await gate.is_shut.wait()
        await payloads.close()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(answer) for answer in answers} <= {bytes, asyncio.CancelledError}
        assert isinstance(answers[-1], asyncio.CancelledError)

    world.run(body)
    assert told == []


def test_a_payload_of_many_entries_is_read_once(world: World) -> None:
    (name, payload), *_ = world.store(1, 1000).items()
    first, told = seq_of(wall_clock_ms(), 0, 0), list[Found | MissingData]()

    async def body(payloads: Payloads, lake: WatchedLake) -> None:
        done = asyncio.Event()

        def answer(found: Found | MissingData) -> None:
            told.append(found)
            if len(told) == MANY:
                done.set()

        for n in range(MANY):
            payloads.learn(first + n, f"r{n}", name)
            payloads.fetch(f"V{n}", first + n, answer)
            if n % 1000 == 0:
                await asyncio.sleep(0)
        await done.wait()
        assert lake.asked == [1]

    world.run(body)
    assert {(found.data_id, found.payload) for found in told if isinstance(found, Found)} == {(name, payload)}
    assert len(told) == MANY


def test_with_redis_out_of_memory_every_payload_is_still_found(lonely: World) -> None:
    stored = lonely.store(20, 1000)
    lonely.redis.config_set("maxmemory-policy", "noeviction")
    lonely.redis.config_set("maxmemory", 1)

    async def body(payloads: Payloads, _: WatchedLake) -> None:
        assert await read_all(payloads, list(stored)) == stored

    lonely.run(body)
    assert lonely.redis.dbsize() == 0


def test_a_key_of_another_type_affects_no_other_payload(world: World) -> None:
    stored = world.store(5, 100)
    spoilt = next(iter(stored))
    world.redis.lpush(keys.data(spoilt), "what is this")

    async def body(payloads: Payloads, _: WatchedLake) -> None:
        assert await read_all(payloads, list(stored)) == stored

    world.run(body)
    assert world.redis.get(keys.data(list(stored)[1])) == stored[list(stored)[1]]


def test_entries_parked_for_lake_payloads_are_requeued(world: World) -> None:
    stored = world.store(3, 100)
    vin, first = f"{world.name}-V", seq_of(wall_clock_ms(), 0, 0)

    async def body(payloads: Payloads, _: WatchedLake) -> None:
        async with connect(world.settings.redis) as redis:
            queues, now = Queues(redis, Policy.of(world.settings)), wall_clock_ms()
            await queues.join_wakes()
            batch = queues.batch()
            batch.add(vin, UpdatePresence(Connected(Owner(vin), now, True, 0), False), now)
            await batch.run()
            for n, name in enumerate(stored):
                await enqueue_trigger(queues, first + n, [vin], f"r{n}", name, now)
                batch = queues.batch()
                batch.add(vin, Claim(), now)
                batch.add(vin, Park(first + n, name), now)
                await batch.run()
            assert await queues.redis.zcard(keys.parked(vin)) == 3
            await read_all(payloads, list(stored))
            woken = list[str]()
            while await queues.redis.zcard(keys.parked(vin)):
                woken += [each for wake in await queues.read_wakes("test", count=1, block_ms=1000) for each in wake.owners]
            assert vin in woken

    world.run(body)
    assert world.redis.zcard(keys.pending(vin)) == len(stored)
