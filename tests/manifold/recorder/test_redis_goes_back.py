"""Redis is rolled back, marks included: lost entries are offered again, and ended ones stay ended."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from manifold.contracts import keys, topics
from manifold.contracts.envelope import Stream
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import datetime_of, wall_clock_ms
from manifold.contracts.tables import OUTCOMES
from manifold.queues import Loader, Policy
from manifold.settings import Settings
from tests.faults.clocked_recorder import Clock
from tests.manifold.recorder.harness import Harness, running_harness
from tests.manifold.recorder.publisher import Platform, platform
from tests.support.lake_rows import new_lake
from tests.support.servers import wait_until
from tests.support.wire import trigger

MINUTE_S, HOUR_S = 60, 3600


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """The recorder's clock; seqs encode ages by it."""
    return Clock(tmp_path / "clock")


@pytest.fixture
def home(tmp_path: Path, clock: Clock) -> Iterator[Harness]:
    with running_harness(tmp_path, clock=clock.file) as it:
        yield it


def loader(home: Harness) -> Loader:
    return Loader(home.redis, Policy.of(Settings(home=home.folder)))


def acknowledge(home: Harness, vin: str, seq: int) -> None:
    """Acknowledge as a dispatcher does; wait until it is recorded."""
    list(loader(home).end([(vin, [seq])], Outcome.DELIVERED, wall_clock_ms()))
    loader(home).add_outcomes([OutcomeRecord(vin, seq, Outcome.DELIVERED, wall_clock_ms())])
    wait_until(lambda: not home.redis.xlen(keys.OUTCOMES), what="the outcome to be recorded")


def mark_of(home: Harness) -> int:
    """The seq up to which all is loaded according to the queues."""
    found = home.redis.get(keys.watermark_keys(0, of_cluster=False)[0])
    assert isinstance(found, bytes)
    return int(found.split()[1])


def wait_marked(home: Harness, seq: int) -> None:
    wait_until(lambda: mark_of(home) >= seq, what="the mark to advance")


async def send(publisher: Platform, request_id: str, *vins: str) -> int:
    return int((await publisher.trigger(list(vins) or ["V1"], request_id))["seq"])


def test_lost_entries_are_offered_again_and_ended_ones_end_again_on_any_clock(home: Harness, clock: Clock) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as publisher:
            ended = await send(publisher, "r0", "V1", "V2")
            await asyncio.to_thread(wait_marked, home, ended)
            written = home.written()
            await publisher.send(topics.data_topic("late"), b"payload")
            lost = [await send(publisher, f"r{n}", "V1", "V2") for n in range(1, 4)]
            for seq in (ended, lost[0]):
                await asyncio.to_thread(acknowledge, home, "V1", seq)
            clock.step(30 * MINUTE_S)  # the loss is old by the recorder's clock
            lost.append(await send(publisher, "r4", "V1", "V2"))
            await asyncio.to_thread(wait_marked, home, lost[-1])
            await asyncio.to_thread(home.take_redis_back, written)
            newest = await send(publisher, "r5", "V1", "V2")
            await asyncio.to_thread(home.wait_direct_enqueue)
            assert home.pending("V1") == [*lost[1:], newest]
            assert home.pending("V2") == [ended, *lost, newest]
            assert home.redis.get(keys.data("late")) == b"payload"

    asyncio.run(scenario())


def test_recorder_and_redis_may_both_have_been_down(home: Harness, clock: Clock) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as publisher:
            await asyncio.to_thread(wait_until, lambda: home.redis.exists("handed:0"), what="the first mark")
            written = home.written()
            lost = [await send(publisher, f"r{n}") for n in range(3)]
            await asyncio.to_thread(acknowledge, home, "V1", lost[1])
            await asyncio.to_thread(wait_marked, home, lost[-1])
            await asyncio.to_thread(home.flush)
            home.running.kill()
            await asyncio.to_thread(home.take_redis_back, written)
            await asyncio.to_thread(home.start, clock=clock.file)
            await asyncio.to_thread(home.wait_direct_enqueue)
            assert home.pending("V1") == [lost[0], lost[2]]

    asyncio.run(scenario())


def test_a_loss_of_hours_requires_a_rebuild(home: Harness, clock: Clock) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as publisher:
            ended = await send(publisher, "r0")
            await asyncio.to_thread(wait_marked, home, ended)
            written = home.written()
            lost = await send(publisher, "r1")
            await asyncio.to_thread(acknowledge, home, "V1", ended)
            clock.step(3 * HOUR_S)
            young = await send(publisher, "r2")
            await asyncio.to_thread(wait_marked, home, young)
            await asyncio.to_thread(home.take_redis_back, written)
            # So that status, doctor and populate ask for a rebuild.
            await asyncio.to_thread(
                wait_until, lambda: not home.redis.exists(keys.LOADED), what="the queues to be marked as not loaded"
            )
            assert home.pending("V1") == []  # no ended entry is served meanwhile
            loader(home).enqueue([("V1", [(lost, "r1")])], wall_clock_ms())
            loader(home).mark_loaded(wall_clock_ms(), {0: lost})  # the lake had the first of the two
            await asyncio.to_thread(home.wait_direct_enqueue)
            newest = await send(publisher, "r3")
            assert home.pending("V1") == [lost, young, newest]

    asyncio.run(scenario())


def test_queues_wiped_and_reloaded_between_two_looks_get_what_the_rebuild_missed(home: Harness) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as publisher:
            first, *others = [await send(publisher, f"r{n}") for n in range(3)]
            home.running.process.send_signal(signal.SIGSTOP)
            home.redis.flushall()
            loader(home).mark_loaded(wall_clock_ms(), {0: first})
            receipt = await publisher.publish(topics.TRIGGER, trigger(["V1"], "r3"))
            home.running.process.send_signal(signal.SIGCONT)
            newest = (await receipt)["seq"]
            await asyncio.to_thread(wait_until, lambda: len(home.pending("V1")) == 3, what="all items to arrive")
            assert home.pending("V1") == [*others, newest]

    asyncio.run(scenario())


def test_outcomes_are_looked_up_in_the_lake_and_nothing_is_offered_without_it(home: Harness) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as publisher:
            await asyncio.to_thread(wait_until, lambda: home.redis.exists("handed:0"), what="the first mark")
            written = home.written()
            ended, lost = await send(publisher, "r0"), await send(publisher, "r1")
            await asyncio.to_thread(wait_marked, home, lost)
            warehouse = home.folder / "home" / "lake" / "warehouse"
            catalog = new_lake(Settings(home=home.folder / "home"))
            row = {
                "vin": "V1",
                "seq": ended,
                "outcome": "delivered",
                "accepted_at": datetime_of(ended),
                "ended_at": datetime_of(lost),
            }
            catalog.load_table(OUTCOMES.identifier).append(pa.Table.from_pylist([row], schema=OUTCOMES.arrow_schema))
            away = warehouse.rename(warehouse.with_name("away"))
            await asyncio.to_thread(home.take_redis_back, written)
            await asyncio.to_thread(home.wait_direct_enqueue, "suspended: ended entries cannot be read from the lake")
            assert home.pending("V1") == []
            away.rename(warehouse)
            await asyncio.to_thread(home.wait_direct_enqueue)
            assert home.pending("V1") == [lost]

    asyncio.run(scenario())


def test_outcomes_advance_the_mark_too(home: Harness) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as publisher:
            seq = await send(publisher, "r0")
            await asyncio.to_thread(acknowledge, home, "V1", seq)
            await asyncio.to_thread(home.flush)
            (outcome,) = home.archived(Stream.OUTCOME)
            await asyncio.to_thread(wait_marked, home, outcome.seq)

    asyncio.run(scenario())
