"""Brakes in Redis: the newest order counts, whatever the order in which recorders hand them over."""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.brakes import OFF, Brake, Braking, EntryTrigger
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import EPOCH_MS, seq_of
from manifold.queues import Loader, Queues
from manifold.queues.verbs.ends import Ack
from manifold.queues.verbs.fills import Enqueue
from tests.manifold.queues.conftest import POLICY

NOW = EPOCH_MS + 200_000_000_000
SEQ = [seq_of(NOW + n, 0, 0) for n in range(20)]
ORDERS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 19), st.sampled_from(["pause", "cancel"])), max_size=12)
SLOW = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)


@given(orders=ORDERS, data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
def test_the_newest_order_counts_however_often_and_late_it_comes(
    use: Callable[..., Any], redis: Redis, orders: list[tuple[str, int, str]], data: st.DataObject
) -> None:
    known = {(campaign, place): word for campaign, place, word in orders}  # a seq is of one order
    brakings = [Braking(campaign, Brake(SEQ[place], word)) for (campaign, place), word in known.items()]
    repeated = data.draw(st.permutations(brakings + brakings[: len(brakings) // 2]))
    cut = data.draw(st.integers(0, len(repeated)))
    redis.flushall()

    async def body(queues: Queues) -> None:
        await queues.load_brakes([])
        for group in (repeated[:cut], repeated[cut:]):
            before = await queues.brakes()
            changed = await queues.brake(group)
            after = await queues.brakes()
            assert (after.version != before.version) == bool(changed)
        assert after.brakes == dict(sorted(brakings, key=lambda each: each[1].seq))

    use(body)


def test_a_brake_is_taken_off_only_if_no_other_order_has_come(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        paused, again = Brake(SEQ[1], "pause"), Brake(SEQ[2], "pause")
        await queues.brake([Braking("c", paused)])
        assert await queues.turn_brake("c", paused, paused._replace(word=OFF))
        assert not (await queues.brakes()).brakes["c"].is_on
        await queues.brake([Braking("c", paused)])  # handed over again after a restart of the recorder
        assert not (await queues.brakes()).brakes["c"].is_on
        await queues.brake([Braking("c", again)])
        assert not await queues.turn_brake("c", paused, paused._replace(word=OFF))
        assert (await queues.brakes()).brakes == {"c": again}

    use(body)


def test_an_emptied_redis_repeats_no_version_and_says_that_it_has_none(use: Callable[..., Any], redis: Redis) -> None:
    async def body(queues: Queues) -> None:
        assert ((await queues.brakes()).version, await queues.brakes_since()) == (b"", b"")
        versions, beginnings = set[bytes](), set[bytes]()
        for _ in range(5):
            await queues.load_brakes([Braking("c", Brake(SEQ[0], "pause"))])
            versions.add((await queues.brakes()).version)
            beginnings.add(await queues.brakes_since())
            await queues.brake([Braking("c", Brake(SEQ[1], "pause"))])
            versions.add((await queues.brakes()).version)
            beginnings.add(await queues.brakes_since())
            redis.flushall()
        assert (len(versions), len(beginnings)) == (10, 5)
        paused, resumed = Brake(SEQ[0], "pause"), Brake(SEQ[0], OFF)
        await queues.brake([Braking("c", paused)])
        assert await queues.turn_brake("c", paused, resumed)
        assert await queues.forget_brakes(SEQ[1]) == 1
        assert await queues.brakes_since() == b"", "these may not be all"
        await queues.load_brakes([])
        assert await queues.brakes_since()

    use(body)


def test_the_triggers_of_campaigns_are_listed_until_they_are_dropped(use: Callable[..., Any], redis: Redis) -> None:
    async def body(queues: Queues) -> None:
        windowed, plain = EntryTrigger("c", "d", is_release=True, until_ms=NOW + 5), EntryTrigger("c", "d", is_release=True)
        await queues.store_trigger(SEQ[0], windowed)
        Loader(redis, POLICY).store_triggers({SEQ[1]: plain, SEQ[2]: EntryTrigger("task", "d")})
        assert await queues.triggers(SEQ[:3]) == [windowed, plain, EntryTrigger("task", "d")]
        assert await queues.release_seqs(["c", "task"]) == [SEQ[:2], []]
        assert [await queues.closed_windows(NOW + ms) for ms in (4, 5)] == [[], SEQ[:1]]
        await queues.drop_release_seqs("c", SEQ[:1])
        await queues.drop_windows(SEQ[:1])
        assert (await queues.release_seqs(["c"]), await queues.closed_windows(NOW + 5)) == ([SEQ[1:2]], [])

    use(body)


def test_a_late_acknowledgement_of_a_withdrawn_entry_is_recorded_once_more(use: Callable[..., Any], redis: Redis) -> None:
    async def body(queues: Queues) -> None:
        batch = queues.batch()
        batch.add("V", Enqueue([(SEQ[0], "c")]), NOW)
        records = [OutcomeRecord("V", SEQ[0], how, NOW) for how in (Outcome.WITHDRAWN, *[Outcome.DELIVERED] * 2, Outcome.FAILED)]
        for record in records:
            batch.add("V", Ack(record), NOW)
        _, *replies = await batch.run()
        assert [reply.word for reply in replies] == ["ended", "unknown", "known", "known"]

    use(body)
    told: Any = redis.xrange(keys.OUTCOMES)
    assert [OutcomeRecord.from_wire(fields[b"o"]).outcome for _, fields in told] == [Outcome.WITHDRAWN, Outcome.DELIVERED]
