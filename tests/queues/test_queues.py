"""The faces of the queues: triggers, data, wake-ups, outcomes, bulk loading, compaction."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from contracts import keys
from contracts.outcomes import Outcome, OutcomeRecord
from contracts.seq import EPOCH_MS, seq_of
from contracts.topics import Sign
from queues import Claim, ClaimWord, Loader, Policy, Queues, ReleaseReason
from tests.queues.conftest import POLICY, seqs_of
from tests.servers import Server

NOW = EPOCH_MS + 200_000_000_000
SEQ = [seq_of(NOW + n, 0, 0) for n in range(10)]
Use = Callable[[Queues], Awaitable[Any]]


@pytest.fixture
def use(redis_server: Server, redis: Redis) -> Callable[..., Any]:
    """Runs `body(queues)` on a loop of its own."""

    def run(body: Use, policy: Policy = POLICY) -> Any:
        async def main() -> Any:
            async with AsyncRedis(port=redis_server.port) as client:
                return await body(Queues(client, policy))

        return asyncio.run(main())

    return run


async def claim(queues: Queues, owner: str) -> Claim:
    batch = queues.batch()
    batch.claim(owner, NOW)
    (reply,) = await batch.run()
    assert isinstance(reply, Claim)
    return reply


async def connect(queues: Queues, *owners: str) -> None:
    batch = queues.batch()
    for owner in owners:
        batch.connected(owner, NOW, True, 0, NOW)
    await batch.run()


def test_a_trigger_wakes_only_the_vehicles_that_can_have_it_now(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        await connect(queues, "here", "busy")
        await queues.enqueue_trigger(SEQ[0], ["busy"], "r0", "d", NOW)
        assert (await claim(queues, "busy")).seq == SEQ[0]
        await queues.join_wakes()
        await queues.settle_wakes(await queues.read_wakes("a", count=10, block_ms=1))

        result = await queues.enqueue_trigger(SEQ[1], ["here", "away", "busy"], "r1", "d", NOW)

        assert (result.queued, result.known, result.ready) == (3, 0, ["here"])
        (wake,) = await queues.read_wakes("a", count=10, block_ms=1)
        assert wake.owners == ["here"]
        assert await queues.triggers([SEQ[1], 1]) == [("r1", "d"), None]

    use(body)


def test_a_wake_that_a_dead_dispatcher_took_goes_to_another(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        await queues.join_wakes()
        await queues.wake(["V1", "V2", "V3"])
        taken = await queues.read_wakes("dead", count=10, block_ms=1)

        rescued = await queues.claim_stale_wakes("alive", idle_ms=0, count=10)

        assert sorted(o for w in rescued for o in w.owners) == sorted(o for w in taken for o in w.owners) == ["V1", "V2", "V3"]
        await queues.settle_wakes(rescued)
        assert await queues.claim_stale_wakes("alive", idle_ms=0, count=10) == []

    use(body)


def test_data_is_stored_once_and_other_bytes_under_its_name_are_refused(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        words = [await queues.store_data("d", payload, NOW) for payload in (b"\x00one", b"\x00one", b"two")]

        assert words == ["stored", "same", "differs"]
        assert await queues.data("d") == b"\x00one"
        assert await queues.data("unknown") is None

    use(body)


def test_a_parked_entry_lets_younger_ones_pass_and_goes_first_when_its_data_comes(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        await connect(queues, "V")
        for n in (0, 1, 2):
            await queues.enqueue_trigger(SEQ[n], ["V"], f"r{n}", f"d{n}", NOW)
        assert (await claim(queues, "V")).seq == SEQ[0]
        batch = queues.batch()
        place = batch.park("V", SEQ[0], "d0", NOW)
        assert (await batch.run())[place].seq == SEQ[1]
        assert await queues.waiting_data_ids(NOW) == ["d0"]

        assert await queues.store_data("d0", b"late", NOW) == "stored"
        batch.ack("V", SEQ[1], NOW)
        (acked,) = await batch.run()

        assert acked.next.seq == SEQ[0]
        assert await queues.waiting_data_ids(NOW) == []

    use(body)


def test_data_that_never_comes_is_not_looked_for_beyond_the_retention(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        await connect(queues, "V")
        await queues.enqueue_trigger(SEQ[0], ["V"], "r", "never", NOW)
        await claim(queues, "V")
        batch = queues.batch()
        batch.park("V", SEQ[0], "never", NOW)
        await batch.run()

        assert await queues.waiting_data_ids(NOW + queues.policy.retention_ms - 1) == ["never"]
        assert await queues.waiting_data_ids(NOW + queues.policy.retention_ms) == []

    use(body)


def test_verbs_are_loaded_again_when_redis_has_forgotten_them(use: Callable[..., Any], redis: Redis) -> None:
    async def body(queues: Queues) -> None:
        await connect(queues, "V")
        redis.script_flush()
        batch = queues.batch()
        batch.enqueue("V", [(SEQ[0], "r")], NOW)
        batch.claim("V", NOW)
        batch.deadline("V", NOW)

        enqueued, claimed, _ = await batch.run()

        assert enqueued.queued == 1
        assert claimed.word is ClaimWord.CLAIMED

    use(body)


def test_deadlines_are_told_when_due(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        shard = keys.shard_of("V", POLICY.wake_shards)
        batch = queues.batch()
        batch.deadline("V", NOW + 5)
        await batch.run()

        assert await queues.due(shard, NOW + 4, 10) == []
        assert await queues.due(shard, NOW + 5, 10) == ["V"]
        await queues.settle_due(shard, ["V"])
        assert await queues.due(shard, NOW + 5, 10) == []

    use(body)


def test_outcomes_wait_for_the_recorder_until_they_are_settled(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        record = OutcomeRecord("V", SEQ[0], Outcome.DELIVERED, NOW)
        await queues.join_outcomes()
        await queues.add_outcomes([record])

        ((record_id, wire),) = await queues.read_outcomes("r", count=10, block_ms=1)

        assert OutcomeRecord.from_wire(wire) == record
        assert await queues.read_outcomes("r", count=10, block_ms=1, again=True) == [(record_id, wire)]
        await queues.settle_outcomes([record_id])
        assert await queues.read_outcomes("r", count=10, block_ms=1, again=True) == []

    use(body)


def test_with_compaction_a_newer_trigger_takes_the_place_of_an_older_pending_one(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        await connect(queues, "V")
        await queues.enqueue_trigger(SEQ[0], ["V"], "same", "d", NOW)
        assert (await claim(queues, "V")).seq == SEQ[0]
        await queues.enqueue_trigger(SEQ[1], ["V"], "same", "d", NOW)

        result = await queues.enqueue_trigger(SEQ[3], ["V"], "same", "d", NOW)
        late = await queues.enqueue_trigger(SEQ[2], ["V"], "same", "d", NOW)

        assert result.superseded == [("V", SEQ[1])]
        assert late.superseded == [("V", SEQ[2])], "a late one that is older than what is queued is superseded itself"
        batch = queues.batch()
        batch.ack("V", SEQ[0], NOW, request_id="same")
        (acked,) = await batch.run()
        assert acked.next.seq == SEQ[3], "the one in flight stayed until it was acknowledged"

    use(body, replace(POLICY, compaction=True))


def test_the_same_trigger_twice_has_one_original(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        assert await queues.register_digest("x", 5, 1000) == 5
        assert await queues.register_digest("x", 6, 1000) == 5

    use(body)


def test_bulk_loading_is_idempotent_and_brings_nothing_back(redis: Redis, use: Callable[..., Any]) -> None:
    owners = [f"V{n}" for n in range(1200)]
    loader = Loader(redis, POLICY)
    entries = [(owner, [(seq, "r") for seq in SEQ]) for owner in owners]

    first = loader.enqueue(entries, NOW)
    again = loader.enqueue(entries, NOW)

    assert (first.owners, first.offered, first.queued) == (1200, 12_000, 12_000)
    assert again.queued == 0

    async def body(queues: Queues) -> None:
        batch = queues.batch()
        batch.ack("V7", SEQ[3], NOW, claim_next=False)
        await batch.run()

    use(body)
    assert loader.enqueue(entries, NOW).queued == 0
    assert seqs_of(redis, keys.pending("V7")) == SEQ[:3] + SEQ[4:]
    assert loader.forget_done([("V7", SEQ[3]), ("V8", SEQ[3])]) == 1


def test_an_owner_with_ten_thousand_entries_is_loaded_in_one_call_and_in_order(redis: Redis) -> None:
    seqs = [seq_of(NOW + n // 4096, 0, n % 4096) for n in range(10_000)]

    Loader(redis, POLICY).enqueue([("V", [(seq, "r") for seq in reversed(seqs)])], NOW)

    assert seqs_of(redis, keys.pending("V")) == seqs


def test_what_is_cancelled_or_expired_in_bulk_answers_the_same_again_and_never_comes_back(
    redis: Redis, use: Callable[..., Any]
) -> None:
    loader = Loader(redis, POLICY)
    loader.enqueue([(owner, [(SEQ[0], "r"), (SEQ[1], "r")]) for owner in ("here", "away")], NOW)

    async def body(queues: Queues) -> None:
        await connect(queues, "here")
        assert (await claim(queues, "here")).seq == SEQ[0]

    use(body)
    asked = [("here", [SEQ[0]]), ("away", [SEQ[0]]), ("never queued", [SEQ[0]])]
    answers = [list(loader.end(asked, Outcome.CANCELLED, NOW)) for _ in (1, 2)]

    assert (
        answers[0]
        == answers[1]
        == [
            ("here", SEQ[0], None),
            ("away", SEQ[0], Outcome.CANCELLED),
            ("never queued", SEQ[0], Outcome.CANCELLED),
        ]
    )
    assert loader.enqueue([(owner, [(SEQ[0], "r")]) for owner, _ in asked], NOW).queued == 0
    assert seqs_of(redis, keys.pending("away")) == [SEQ[1]]
    assert list(loader.end([("away", [SEQ[0]])], Outcome.EXPIRED, NOW)) == [("away", SEQ[0], Outcome.CANCELLED)], (
        "the first end counts"
    )


@pytest.mark.parametrize("outcome", Outcome)
def test_the_queues_remember_how_an_entry_ended(use: Callable[..., Any], redis: Redis, outcome: Outcome) -> None:
    async def body(queues: Queues) -> None:
        batch = queues.batch()
        batch.ack("V", SEQ[0], NOW, outcome=outcome)
        batch.end("V", [(SEQ[0], Outcome.CANCELLED)], NOW)
        _, ended = await batch.run()
        assert ended.outcomes == (outcome,)

    use(body)


def test_with_compaction_what_was_superseded_is_named_again_when_the_trigger_is_offered_again(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        await queues.enqueue_trigger(SEQ[0], ["V"], "same", "d", NOW)
        await queues.enqueue_trigger(SEQ[1], ["V"], "same", "d", NOW)

        again = await queues.enqueue_trigger(SEQ[1], ["V"], "same", "d", NOW)

        assert (again.queued, again.superseded) == (0, [("V", SEQ[0])])

    use(body, replace(POLICY, compaction=True))


def test_with_compaction_a_cancelled_entry_leaves_no_trace_of_its_key(use: Callable[..., Any], redis: Redis) -> None:
    async def body(queues: Queues) -> None:
        await queues.enqueue_trigger(SEQ[0], ["V"], "one", "d", NOW)
        await queues.enqueue_trigger(SEQ[1], ["V"], "two", "d", NOW)
        batch = queues.batch()
        batch.end("V", [(SEQ[0], Outcome.CANCELLED)], NOW)
        await batch.run()

    use(body, replace(POLICY, compaction=True))
    assert redis.hgetall(keys.compaction("V")) == {b"two": str(SEQ[1]).encode()}


def test_a_vehicle_that_went_unseen_counts_as_absent_once_it_neither_acknowledges_nor_is_heard(use: Callable[..., Any]) -> None:
    async def overdue(queues: Queues, now_ms: int) -> ClaimWord:
        batch = queues.batch()
        batch.release("V", SEQ[0], now_ms, ReleaseReason.DEADLINE)
        batch.claim("V", now_ms)
        _, again = await batch.run()
        return ClaimWord(again.word)

    async def body(queues: Queues) -> None:
        await connect(queues, "V")
        await queues.enqueue_trigger(SEQ[0], ["V"], "r", "d", NOW)
        await claim(queues, "V")
        assert await overdue(queues, NOW + POLICY.presence_ms) is ClaimWord.CLAIMED
        assert await overdue(queues, NOW + POLICY.presence_ms + POLICY.ack_deadline_max_ms) is ClaimWord.ABSENT
        batch = queues.batch()
        batch.heard("V", Sign.HEARTBEAT, NOW + POLICY.presence_ms + POLICY.ack_deadline_max_ms + 1)
        (reply,) = await batch.run()
        assert reply.next.seq == SEQ[0]

    use(body)
