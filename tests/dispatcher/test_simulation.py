"""Thousands of interleavings of replicas, vehicles and faults around the real `step` and the real queues.

Run more of them with `python -m tests.dispatcher.test_simulation 5000`, with compacted queues `… 5000 ecq`.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
import structlog

from manifold.contracts.outcomes import Outcome
from tests.dispatcher.ecq_world import EcqWorld
from tests.dispatcher.lockstep import in_lockstep
from tests.dispatcher.world import World
from tests.faults.stories import stories
from tests.support.servers import Server, start_redis, stopping

SEEDS, MOVES = range(60, 120), 300  # among them one with each end that a test asks for
SHOWN = 3  # stories of this many failing seeds


@pytest.fixture(scope="module")
def sim_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("simulation")
    with stopping(start_redis(folder)) as server:
        yield server


async def simulate(seed: int, *, calm: bool, kind: type[World] = World, clean: bool = False) -> World:
    world = kind(seed, calm=calm)
    await world.run(MOVES)
    await world.calm_down(clean=clean)
    world.broken += await world.unrecorded()
    return world


@contextmanager
def quietly() -> Iterator[None]:
    """Silence logging: the history says more than thousands of log lines."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    try:
        yield
    finally:
        structlog.configure(**before)


def why_broken(world: World) -> list[str]:
    """The stories of broken promises; empty if all hold."""
    if isinstance(world, EcqWorld):
        return [*world.broken, *_twice(world)]
    verdict = world.verdict()
    found = [*stories(world.history.lines, verdict), *world.broken]
    if verdict.attempted != len(world.accepted):
        found.append(f"{verdict.attempted} of {len(world.accepted)} entries are in the history")
    return found + _twice(world)


def _twice(world: World) -> list[str]:
    """Entries that a vehicle got twice in one session of a calm world."""
    found = []
    for vehicle in world.vehicles if world.calm_throughout else ():
        published = [(seq, session) for seq, dup, session in vehicle.in_time or vehicle.got if not dup]
        if len(published) != len(set(published)):
            found.append(f"{vehicle.vin} got something twice in one session: {published}")
    return found


def run(port: int, seeds: range, *, calm: bool, kind: type[World] = World, clean: bool = False) -> list[World]:
    """Run the worlds of these seeds; fail with the stories of the first that breaks a promise."""
    with quietly():
        worlds = in_lockstep(port, (simulate(seed, calm=calm, kind=kind, clean=clean) for seed in seeds))
    broken = (
        (f"seed {seed}, calm={calm}", told) for seed, world in zip(seeds, worlds, strict=True) if (told := why_broken(world))
    )
    shown = ["\n".join([name, *told]) for name, told in islice(broken, SHOWN)]
    assert not shown, "\n\n".join(shown)
    return worlds


def test_under_faults_nothing_is_lost_and_order_holds(sim_redis: Server) -> None:
    worlds = run(sim_redis.port, SEEDS, calm=False)
    verdicts = [world.verdict() for world in worlds]
    assert sum(verdict.delivered for verdict in verdicts) > len(SEEDS)
    assert sum(verdict.duplicated for verdict in verdicts) > 0  # the adversary had an effect
    ends = [outcomes for world in worlds for outcomes in world.recorded.values()]
    assert [Outcome.WITHDRAWN] in ends
    assert [Outcome.WITHDRAWN, Outcome.DELIVERED] in ends  # a late acknowledgement is recorded, too


def test_without_faults_no_session_gets_an_entry_twice(sim_redis: Server) -> None:
    worlds = run(sim_redis.port, SEEDS, calm=True)
    assert sum(world.verdict().delivered for world in worlds) > len(SEEDS)


def test_under_faults_the_newest_of_each_key_arrives_and_none_comes_back(sim_redis: Server) -> None:
    worlds = [world for world in run(sim_redis.port, SEEDS, calm=False, kind=EcqWorld) if isinstance(world, EcqWorld)]
    assert sum(world.claims for world in worlds) > len(SEEDS)
    assert sum(len(rewinds) for world in worlds for rewinds in world.rewinds.values()) > len(SEEDS)


def test_without_faults_a_session_gets_each_message_once_and_in_order(sim_redis: Server) -> None:
    for world in run(sim_redis.port, SEEDS, calm=True, kind=EcqWorld):
        for vehicle in world.vehicles:
            got = [seq for seq, dup, _ in vehicle.got if not dup]
            assert got == sorted(got)


def test_after_a_clean_start_and_subscribe_no_message_waits_for_its_deadline(sim_redis: Server) -> None:
    """Whichever replica hears of them first, and for messages that the broker confirmed to the ended session too."""
    worlds = run(sim_redis.port, SEEDS, calm=True, kind=EcqWorld, clean=True)

    assert [seed for seed, world in zip(SEEDS, worlds, strict=True) if world.waited_for_deadline] == []


if __name__ == "__main__":
    began, count, kind = time.monotonic(), int(sys.argv[1]), EcqWorld if sys.argv[2:] == ["ecq"] else World
    with tempfile.TemporaryDirectory() as folder, stopping(start_redis(Path(folder))) as server:
        worlds = [world for calm in (False, True) for world in run(server.port, range(count), calm=calm, kind=kind)]
    compacted = [world for world in worlds if isinstance(world, EcqWorld)]
    messages = sum(len(appends) for world in compacted for appends in world.appends.values())
    rewinds = sum(len(each) for world in compacted for each in world.rewinds.values())
    entries = sum(len(world.accepted) for world in worlds)
    told = f"{messages} messages, {rewinds} rewinds" if compacted else f"{entries} entries"
    sys.stdout.write(f"{len(worlds)} worlds, {told}, no promise broken, {time.monotonic() - began:.1f} s\n")
