"""A pause among 1,000,000 released entries: the last publish comes less than a second after its receipt, each of 20 times."""

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from manifold.archive.records import read_journal
from manifold.contracts import keys
from manifold.contracts.brakes import OFF, Brake, EntryTrigger
from manifold.contracts.campaigns import Pause
from manifold.contracts.envelope import Stream
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import SeqSource, wall_clock_ms
from manifold.contracts.topics import RELEASE
from manifold.messaging.publisher import Publisher
from manifold.queues import Loader, Policy
from manifold.sandbox.fleet import Behaviour, Fleet, vins
from tests.dispatcher.platform import Platform, a_platform
from tests.support.servers import wait_until
from tests.support.wire import release

NAME, DATA = "spring", "data-spring"
MILLION, SLICE, HERE, EACH, PAUSES, AT_MOST_MS = 1_000_000, 20_000, 100, 8, 20, 1000
SLOWLY = Behaviour(think_s=(0.1, 0.3))  # so that entries are still to be sent when the pause comes
# What a recorder leaves in Redis for vehicles that are away, which a million messages would take minutes to.
ENTRIES = "for n = ARGV[1], ARGV[2] do redis.call('ZADD', ARGV[3] .. n .. ARGV[4], ARGV[5], ARGV[5]) end"


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    with a_platform(tmp_path) as platform:
        platform.start_recorder()
        platform.start_dispatcher()
        yield platform


def release_a_million(platform: Platform) -> None:
    """Put an entry of the campaign into the queue of each of so many vehicles that are away."""
    seq = SeqSource(900).next()
    before, after = keys.pending("AWAY\n").split("\n")
    with platform.blocking() as redis:
        Loader(redis, Policy.of(platform.settings)).store_triggers({seq: EntryTrigger(NAME, DATA, is_release=True)})
        for first in range(1, MILLION, SLICE):  # so that Redis answers others in between
            redis.eval(ENTRIES, 0, first, first + SLICE - 1, before, after, seq)
        assert redis.zcard(keys.pending(f"AWAY{MILLION}")) == 1


async def pause_midway(platform: Platform, fleet: Fleet, publisher: Publisher, steps: Iterator[int]) -> tuple[set[int], int]:
    """Release entries, pause while they are delivered, and take the brake off when all have ended; their seqs, and when."""
    had, named = len(fleet.received), fleet.vins
    payloads = [release(named, NAME, DATA, step=next(steps)) for _ in range(EACH)]
    receipts = await asyncio.gather(*(publisher.publish(RELEASE, payload) for payload in payloads))
    await fleet.wait_for(lambda fleet: len(fleet.received) > had, 60)
    paused = await publisher.order(Pause(NAME, "ann"))
    received_ms = wall_clock_ms()
    assert (paused.status, paused.reason) == ("recorded", None)

    def nothing_left() -> bool:
        with platform.blocking() as redis:
            return not redis.exists(*(keys.pending(vin) for vin in named))

    await asyncio.to_thread(wait_until, nothing_left, what="every entry of a vehicle that is here to end")
    brake = Brake(paused.seq, "pause")
    assert await asyncio.to_thread(platform.ask, lambda queues: queues.turn_brake(NAME, brake, brake._replace(word=OFF)))
    return {receipt.seq for receipt in receipts}, received_ms


@pytest.mark.slow
def test_a_pause_among_a_million_entries_stops_each_publish_within_a_second(platform: Platform) -> None:
    """The million entries are written into a real Redis as a recorder leaves them; all else is real, and none of it waits."""
    release_a_million(platform)
    platform.store_data(DATA, b"the data")
    steps = count(1)

    async def play() -> list[tuple[set[int], int]]:
        async with Fleet(platform.settings, vins(HERE, seed=81), behaviour=SLOWLY) as fleet:
            await fleet.connect()
            async with Publisher(platform.settings, platform.settings.mqtt_username_campaigns) as publisher:
                return [await pause_midway(platform, fleet, publisher, steps) for _ in range(PAUSES)]

    pauses = asyncio.run(play())
    of_pause = {seq: place for place, (seqs, _) in enumerate(pauses) for seq in seqs}
    last, withdrawn = [0] * PAUSES, [0] * PAUSES
    for path in sorted(platform.settings.journal_folder.iterdir()):
        for message in read_journal(path).messages:
            record = OutcomeRecord.from_wire(message.payload) if message.stream == Stream.OUTCOME else None
            if record is not None and record.seq in of_pause:
                place = of_pause[record.seq]
                withdrawn[place] += record.outcome is Outcome.WITHDRAWN
                if record.outcome is Outcome.DELIVERED:
                    assert record.dispatched_ms is not None
                    last[place] = max(last[place], record.dispatched_ms)
    late_ms = [at_ms - received_ms for at_ms, (_, received_ms) in zip(last, pauses, strict=True)]
    assert all(withdrawn), "each pause came while entries were being sent"
    assert max(late_ms) <= AT_MOST_MS, late_ms
