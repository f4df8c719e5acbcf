"""A slow broker slows the dispatcher, and its memory stays bounded."""

from collections.abc import Iterator

import psutil
import pytest

from manifold.contracts.events import Connected
from manifold.contracts.names import Owner
from manifold.contracts.seq import SeqSource, wall_clock_ms
from manifold.contracts.topics import Sign
from manifold.queues import Queues
from manifold.queues.verbs.claims import UpdatePresence
from tests.dispatcher.platform import Platform, a_platform, healthy
from tests.dispatcher.vehicle import Vehicle
from tests.manifold.queues.triggers import enqueue_trigger
from tests.support.servers import wait_until

MIB = 1 << 20
VEHICLES = 80
# Window, cache and backlog may hold 2 MiB each, with 16 concurrent payload reads; 80 copies would exceed 80 MiB.
MAX_MIB = 50
STILL = 20  # checks without a change


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    small = {"publish_window_bytes": 2 * MIB, "payload_cache_bytes": 2 * MIB}
    with a_platform(tmp_path_factory.mktemp("pressure"), **small) as it:
        it.start_dispatcher()
        yield it


def resident_mib(platform: Platform) -> float:
    return float(psutil.Process(platform.dispatchers[0].pid).memory_info().rss) / MIB


def most_mib_until_it_stands_still(platform: Platform) -> float:
    """The peak memory of the dispatcher while it does everything possible without the broker."""
    sizes = [resident_mib(platform)]

    def stands_still() -> bool:
        sizes.append(resident_mib(platform))
        return len(set(sizes[-STILL:])) == 1 and platform.metric("manifold_dispatcher_unconfirmed_publishes") > 0

    wait_until(stands_still, within_s=60)
    return max(sizes)


@pytest.mark.parametrize("shared", [True, False], ids=["the same payload for all", "a payload for each"])
def test_large_payloads_for_many_vehicles_do_not_multiply_in_memory(platform: Platform, shared: bool) -> None:
    vins = [f"{'S' if shared else 'E'}{n}" for n in range(VEHICLES)]
    seqs = SeqSource(1)

    async def queue(queues: Queues) -> None:
        now = wall_clock_ms()
        batch = queues.batch()
        for vin in vins:
            batch.add(vin, UpdatePresence(Connected(Owner(vin), now, True, 0), False), now)
        await batch.run()
        for n, vin in enumerate(vins):
            data_id = "large" if shared else f"large_{n}"
            await queues.store_data(data_id, bytes([n]) * MIB if not shared else b"x" * MIB, now)
            await enqueue_trigger(queues, seqs.next(), [vin], "r", data_id, now)

    last = Vehicle(platform).connect()
    last.say(Sign.ONLINE)
    wait_until(lambda: platform.presence(last.vin).get("connected") == "yes")
    before = resident_mib(platform)
    with platform.tap.standing_still():
        platform.ask(queue)
        assert most_mib_until_it_stands_still(platform) - before < MAX_MIB

    following = platform.enqueue(last.vin)  # the others have no subscriber; it waits behind them all
    assert [got.seq for got in last.waits_for(1, within_s=60)] == [following]
    wait_until(lambda: healthy(platform.settings.dispatcher_port))
    last.leave()
