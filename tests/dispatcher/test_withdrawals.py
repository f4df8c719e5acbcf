"""The slow walk counts what was published before its campaign was stopped, which no brake takes back."""

from prometheus_client import REGISTRY

from dispatcher._withdrawals import Withdrawals
from manifold.contracts import keys
from manifold.contracts.brakes import OFF, Brake, Braking
from manifold.contracts.seq import seq_of, wall_clock_ms
from manifold.queues import Queues
from tests.dispatcher.test_queue_stats import with_queues
from tests.support.servers import Server


def beyond_recall(campaign: str) -> float | None:
    return REGISTRY.get_sample_value("manifold_campaign_beyond_recall", {"campaign": campaign})


def test_published_entries_of_a_stopped_campaign_are_beyond_recall_until_it_resumes(redis_server: Server) -> None:
    now_ms = wall_clock_ms()
    published, other, paused = seq_of(now_ms, 0, 0), seq_of(now_ms, 0, 1), seq_of(now_ms, 0, 2)

    async def walk(queues: Queues) -> None:
        withdrawals = await Withdrawals.of(queues)
        await withdrawals.withdraw(["V1", "V2", "V3"])
        await withdrawals.finish()

    async def body(queues: Queues) -> None:
        await queues.redis.zadd(keys.releases("stopped"), {str(published): published})
        for vin, seq in {"V1": published, "V2": published, "V3": other}.items():
            await queues.redis.hset(keys.inflight(vin), mapping={"seq": seq})
        await queues.brake([Braking("stopped", Brake(paused, "pause"))])

        await walk(queues)
        await walk(queues)  # what the first walk has found is looked for again
        assert (beyond_recall("stopped"), beyond_recall("other")) == (2, None)

        assert await queues.turn_brake("stopped", Brake(paused, "pause"), Brake(paused, OFF))
        await walk(queues)
        assert beyond_recall("stopped") is None

    with_queues(redis_server, body)


def test_a_window_is_remembered_while_an_entry_of_its_release_is_in_flight(redis_server: Server) -> None:
    """Else nothing would withdraw the entry when it goes back to the queue of a vehicle that stays away."""
    over = seq_of(wall_clock_ms(), 0, 0)

    async def body(queues: Queues) -> None:
        await queues.redis.zadd(keys.WINDOWS, {str(over): wall_clock_ms() - 1})
        await queues.redis.hset(keys.inflight("V1"), mapping={"seq": over})
        withdrawals = await Withdrawals.of(queues)
        await withdrawals.withdraw(["V1"])
        await withdrawals.finish()
        assert await queues.closed_windows(wall_clock_ms()) == [over]

    with_queues(redis_server, body)
