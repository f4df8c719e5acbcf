"""The interface of the queues: triggers, data, wake-ups, outcomes, bulk loading, compaction."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from manifold.contracts import keys
from manifold.contracts.brakes import EntryTrigger
from manifold.contracts.errors import Retryable
from manifold.contracts.events import Connected, Disconnected, PresenceSign, Subscribed
from manifold.contracts.names import Owner
from manifold.contracts.outcomes import CODES, Outcome, OutcomeRecord
from manifold.contracts.seq import EPOCH_MS, seq_of
from manifold.queues import Loader, Queues
from manifold.queues.verbs.claims import Claim, ClaimReply, ClaimWord, Park, Release, ReleaseReason, UpdatePresence
from manifold.queues.verbs.ends import Ack, End
from manifold.queues.verbs.fills import Enqueue
from tests.manifold.queues.conftest import POLICY, seqs_of
from tests.manifold.queues.triggers import enqueue_trigger
from tests.support.servers import Server

NOW = EPOCH_MS + 200_000_000_000
SEQ = [seq_of(NOW + n, 0, 0) for n in range(10)]


def delivered(owner: str, seq: int) -> OutcomeRecord:
    return OutcomeRecord(owner, seq, Outcome.DELIVERED, NOW)


async def claim(queues: Queues, owner: str) -> ClaimReply:
    batch = queues.batch()
    batch.add(owner, Claim(), NOW)
    (reply,) = await batch.run()
    assert isinstance(reply, ClaimReply)
    return reply


async def connect(queues: Queues, *owners: str) -> None:
    batch = queues.batch()
    for owner in owners:
        batch.add(owner, UpdatePresence(Connected(Owner(owner), NOW, True, 0), False), NOW)
    await batch.run()


def test_a_trigger_wakes_only_vehicles_that_can_receive_now(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        await connect(queues, "here", "busy")
        await enqueue_trigger(queues, SEQ[0], ["busy"], "r0", "d", NOW)
        assert (await claim(queues, "busy")).seq == SEQ[0]
        await queues.join_wakes()
        await queues.settle_wakes(await queues.read_wakes("a", count=10, block_ms=1))

        result = await enqueue_trigger(queues, SEQ[1], ["here", "away", "busy"], "r1", "d", NOW)

        assert (result.queued, result.known, result.ready) == (3, 0, ["here"])
        (wake,) = await queues.read_wakes("a", count=10, block_ms=1)
        assert wake.owners == ["here"]
        assert await queues.triggers([SEQ[1], 1]) == [EntryTrigger("r1", "d"), None]

    use(body)


def test_a_wake_up_taken_by_a_dead_dispatcher_goes_to_another(use: Callable[..., Any]) -> None:
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
        assert await queues.read_data(["d", "unknown"]) == ([b"\x00one", None], [])

    use(body)


def test_taken_data_gets_a_fresh_retention_and_ids_with_waiting_entries_are_named(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        await park(queues, "V", (SEQ[0], "late"))
        assert await queues.restore_data({"late": b"one", "early": b"two"}) == ["late"]
        await queues.redis.pexpire(keys.data("early"), 1000)

        assert await queues.read_data(["early", "late", "never"]) == ([b"two", b"one", None], ["late"])

        assert await queues.redis.pttl(keys.data("early")) > 1000

    use(body)


def test_data_under_a_key_of_another_type_counts_as_missing(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        await queues.redis.rpush(keys.data("spoilt"), "x")
        assert await queues.restore_data({"spoilt": b"one", "sound": b"two"}) == []
        assert await queues.data_sizes(["spoilt", "sound", "never"]) == [0, 3, 0]
        assert await queues.read_data(["spoilt", "sound"]) == ([None, b"two"], [])

    use(body)


def test_a_trigger_under_a_key_of_another_type_counts_as_missing(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        await queues.redis.set(keys.trigger(SEQ[0]), "what is this")
        await queues.store_trigger(SEQ[1], EntryTrigger("r", "d"))
        assert await queues.triggers(SEQ[:2]) == [None, EntryTrigger("r", "d")]
        await queues.store_trigger(SEQ[0], EntryTrigger("r", "d"))  # stored from the lake, under a key of another type

    use(body)


def test_a_parked_entry_lets_younger_ones_pass_and_goes_first_when_its_data_comes(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        await connect(queues, "V")
        for n in (0, 1, 2):
            await enqueue_trigger(queues, SEQ[n], ["V"], f"r{n}", f"d{n}", NOW)
        assert (await claim(queues, "V")).seq == SEQ[0]
        batch = queues.batch()
        batch.add("V", Park(SEQ[0], "d0"), NOW)
        (parked,) = await batch.run()
        assert parked.seq == SEQ[1]
        assert await queues.waiting_data_ids(NOW) == ["d0"]

        assert await queues.store_data("d0", b"late", NOW) == "stored"
        batch.add("V", Ack(delivered("V", SEQ[1])), NOW)
        (acked,) = await batch.run()

        assert acked.next.seq == SEQ[0]
        assert await queues.waiting_data_ids(NOW) == []

    use(body)


async def park(queues: Queues, owner: str, *entries: tuple[int, str]) -> None:
    """Park entries (seq, data_id) of a connected vehicle, each when its turn comes."""
    await connect(queues, owner)
    for seq, data_id in entries:
        await enqueue_trigger(queues, seq, [owner], f"r{seq}", data_id, NOW)
        assert (await claim(queues, owner)).seq == seq
        batch = queues.batch()
        batch.add(owner, Park(seq, data_id), NOW)
        await batch.run()


def test_arriving_data_moves_only_the_entries_that_wait_for_it(use: Callable[..., Any], redis: Redis) -> None:
    async def body(queues: Queues) -> None:
        await park(queues, "V", (SEQ[0], "one"), (SEQ[1], "two"), (SEQ[2], "one"))

        await queues.store_data("one", b"late", NOW)

        assert await queues.waiting_data_ids(NOW) == ["two"]

    use(body)
    assert seqs_of(redis, keys.pending("V")) == [SEQ[0], SEQ[2]]
    assert seqs_of(redis, keys.parked("V")) == [SEQ[1]]


def test_notes_of_an_earlier_version_move_all_parked_entries_of_a_vehicle(use: Callable[..., Any], redis: Redis) -> None:
    async def body(queues: Queues) -> None:
        await park(queues, "V", (SEQ[0], "one"), (SEQ[1], "two"))
        redis.delete(keys.waiting_for("one"))
        redis.sadd(keys.waiting_for("one"), "V", "gone")

        assert await queues.unpark_waiting("one", NOW) == 2

    use(body)
    assert seqs_of(redis, keys.pending("V")) == SEQ[:2]
    assert redis.exists(keys.waiting_for("one")) == 0


def test_requeueing_after_a_crash_is_completed_by_the_next_look(use: Callable[..., Any], redis: Redis) -> None:
    owners = [f"V{n}" for n in range(2500)]

    async def body(queues: Queues) -> None:
        batch = queues.batch()
        for owner in owners:
            batch.add(owner, UpdatePresence(Connected(Owner(owner), NOW, True, 0), False), NOW)
            batch.add(owner, Enqueue([(SEQ[0], "r")]), NOW)
            batch.add(owner, Claim(), NOW)
            batch.add(owner, Park(SEQ[0], "one"), NOW)
        await batch.run()

        class Died(Exception):
            pass

        async def dies(_: object) -> None:
            raise Died

        queues.wake = dies  # type: ignore[assignment,method-assign]  # the first step after some are queued
        with pytest.raises(Died):
            await queues.unpark_waiting("one", NOW)
        assert await queues.waiting_data_ids(NOW) == ["one"]
        del queues.wake
        await queues.unpark_waiting("one", NOW)
        assert await queues.waiting_data_ids(NOW) == []

    use(body)
    assert [owner for owner in owners if redis.exists(keys.parked(owner))] == []


async def woken(queues: Queues) -> list[str]:
    wakes = await queues.read_wakes("a", count=10, block_ms=1)
    await queues.settle_wakes(wakes)
    return [owner for wake in wakes for owner in wake.owners]


def test_a_crash_between_requeueing_and_waking_is_made_up_by_the_next_look(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        await queues.join_wakes()
        await park(queues, "V", (SEQ[0], "one"))
        await woken(queues)
        wake = queues.wake

        async def lost(_: object) -> None:
            raise ConnectionError

        queues.wake = lost  # type: ignore[assignment,method-assign]
        with pytest.raises(ConnectionError):
            await queues.unpark_waiting("one", NOW)
        queues.wake = wake  # type: ignore[method-assign]

        await queues.unpark_waiting("one", NOW)

        assert await woken(queues) == ["V"]

    use(body)


def test_requeued_entries_are_woken_even_if_redis_is_out_of_memory(own_redis: Server) -> None:
    async def body() -> None:
        async with AsyncRedis(port=own_redis.port) as client:
            queues = Queues(client, POLICY)
            await queues.join_wakes()
            await park(queues, "V", (SEQ[0], "one"))
            await woken(queues)
            await client.config_set("maxmemory", 1)

            assert await queues.unpark_waiting("one", NOW) == 1

            assert await woken(queues) == ["V"]

    asyncio.run(body())


def test_an_entry_parked_again_before_its_note_is_removed_keeps_a_note(use: Callable[..., Any], redis: Redis) -> None:
    async def body(queues: Queues) -> None:
        await park(queues, "V", (SEQ[0], "one"))
        wake = queues.wake

        async def wake_one_that_is_quick(owners: Any, trigger: Any = None) -> None:
            await wake(owners, trigger)
            assert (await claim(queues, "V")).seq == SEQ[0]
            batch = queues.batch()
            batch.add("V", Park(SEQ[0], "one"), NOW)
            await batch.run()
            queues.wake = wake  # type: ignore[method-assign]

        queues.wake = wake_one_that_is_quick  # type: ignore[method-assign]
        await queues.unpark_waiting("one", NOW)

        assert await queues.waiting_data_ids(NOW) == ["one"]
        assert 0 < await queues.redis.pttl(keys.waiting_for("one")) <= POLICY.retention_ms
        assert await queues.unpark_waiting("one", NOW) == 1

    use(body)
    assert seqs_of(redis, keys.pending("V")) == SEQ[:1]


def test_parking_an_entry_twice_returns_the_same_next_claim(use: Callable[..., Any]) -> None:
    """If the first reply was lost, the entry that it claimed would wait for its deadline."""

    async def body(queues: Queues) -> None:
        await connect(queues, "V")
        for n in (0, 1):
            await enqueue_trigger(queues, SEQ[n], ["V"], f"r{n}", f"d{n}", NOW)
        assert (await claim(queues, "V")).seq == SEQ[0]
        batch = queues.batch()
        for _ in (1, 2):
            batch.add("V", Park(SEQ[0], "d0"), NOW)

        first, again = await batch.run()

        assert (first.word, again.word) == (ClaimWord.CLAIMED, ClaimWord.BUSY)
        assert first[1:] == again[1:]

    use(body)


def test_missing_data_is_not_looked_up_beyond_the_retention(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        await connect(queues, "V")
        await enqueue_trigger(queues, SEQ[0], ["V"], "r", "never", NOW)
        await claim(queues, "V")
        batch = queues.batch()
        batch.add("V", Park(SEQ[0], "never"), NOW)
        await batch.run()

        assert await queues.waiting_data_ids(NOW + queues.policy.retention_ms - 1) == ["never"]
        assert await queues.waiting_data_ids(NOW + queues.policy.retention_ms) == []

    use(body)


def test_scripts_are_reloaded_when_redis_has_forgotten_them(use: Callable[..., Any], redis: Redis) -> None:
    async def body(queues: Queues) -> None:
        await connect(queues, "V")
        redis.script_flush()
        batch = queues.batch()
        batch.add("V", Enqueue([(SEQ[0], "r")]), NOW)
        batch.add("V", Claim(), NOW)
        batch.watch(keys.shard_of("V", POLICY.wake_shards), {"V": NOW})

        enqueued, claimed, _ = await batch.run()

        assert enqueued.queued == 1
        assert claimed.word is ClaimWord.CLAIMED

    use(body)


def test_deadlines_are_returned_when_due(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        shard = keys.shard_of("V", POLICY.wake_shards)
        batch = queues.batch()
        batch.watch(keys.shard_of("V", POLICY.wake_shards), {"V": NOW + 5})
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


def test_with_compaction_a_newer_trigger_supersedes_a_pending_one(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        await connect(queues, "V")
        await enqueue_trigger(queues, SEQ[0], ["V"], "same", "d", NOW)
        assert (await claim(queues, "V")).seq == SEQ[0]
        await enqueue_trigger(queues, SEQ[1], ["V"], "same", "d", NOW)

        result = await enqueue_trigger(queues, SEQ[3], ["V"], "same", "d", NOW)
        late = await enqueue_trigger(queues, SEQ[2], ["V"], "same", "d", NOW)

        assert result.superseded == [("V", SEQ[1])]
        assert late.superseded == [("V", SEQ[2])], "a late trigger older than the queued one is superseded itself"
        batch = queues.batch()
        batch.add("V", Ack(delivered("V", SEQ[0]), "same"), NOW)
        (acked,) = await batch.run()
        assert acked.next.seq == SEQ[3], "the entry in flight stays until it is acknowledged"

    use(body, replace(POLICY, compaction=True))


def test_bulk_loading_is_idempotent_and_revives_nothing(redis: Redis, use: Callable[..., Any]) -> None:
    owners = [f"V{n}" for n in range(1200)]
    loader = Loader(redis, POLICY)
    entries = [(owner, [(seq, "r") for seq in SEQ]) for owner in owners]

    first = loader.enqueue(entries, NOW)
    again = loader.enqueue(entries, NOW)

    assert (first.owners, first.offered, first.queued) == (1200, 12_000, 12_000)
    assert again.queued == 0

    async def body(queues: Queues) -> None:
        batch = queues.batch()
        batch.add("V7", Ack(delivered("V7", SEQ[3]), claim=False), NOW)
        await batch.run()

    use(body)
    assert loader.enqueue(entries, NOW).queued == 0
    assert seqs_of(redis, keys.pending("V7")) == SEQ[:3] + SEQ[4:]
    assert loader.forget_done([("V7", SEQ[3]), ("V8", SEQ[3])]) == (1, 0)


def test_an_outcome_is_remembered_while_a_recorder_may_offer_its_entry_again(use: Callable[..., Any], redis: Redis) -> None:
    loader = Loader(redis, POLICY)
    redis.zadd(keys.done("V7"), {str(SEQ[1]): 1, str(SEQ[3]): 1})
    loader.mark_loaded(NOW)

    async def body(queues: Queues) -> None:
        await queues.advance_watermark(0, await queues.marks(0), SEQ[2])

    use(body)
    assert loader.forget_done([("V7", SEQ[1]), ("V7", SEQ[3])]) == (1, 1)
    assert seqs_of(redis, keys.done("V7")) == [SEQ[3]]
    use(lambda queues: queues.drop_watermark(0))  # nothing is offered again
    assert loader.forget_done([("V7", SEQ[3])]) == (1, 0)


def test_marks_state_what_is_loaded_and_stale_ones_are_refused(use: Callable[..., Any], redis: Redis) -> None:
    loader = Loader(redis, POLICY)

    async def body(queues: Queues) -> None:
        assert (await queues.marks(0)).load_id is None
        loader.mark_loaded(NOW, {0: SEQ[1]})
        marks = await queues.marks(0)
        assert (marks.load_id, marks.enqueued_seq, marks.complete_seq) == (b"%d" % NOW, None, SEQ[1])
        assert (await queues.marks(1)).complete_seq is None
        marks = await queues.advance_watermark(0, marks, SEQ[2])
        assert marks == await queues.marks(0)
        assert (marks.enqueued_seq, marks.complete_seq) == (SEQ[2], SEQ[2])
        loader.mark_loaded(NOW + 1, {0: SEQ[0]})  # already true
        assert marks == await queues.marks(0)

        await queues.mark_incomplete(marks)
        with pytest.raises(Retryable, match="the queues changed since the last watermark"):
            await queues.advance_watermark(0, marks, SEQ[3])
        loader.mark_loaded(NOW + 1, {0: SEQ[1]})
        again = await queues.marks(0)
        assert (again.enqueued_seq, again.complete_seq) == (None, SEQ[1])  # earlier enqueueing went into other queues
        await queues.mark_incomplete(marks)  # by a recorder with stale marks
        assert loader.is_loaded()

    use(body)


def test_an_owner_with_ten_thousand_entries_is_loaded_in_one_call_and_in_order(redis: Redis) -> None:
    seqs = [seq_of(NOW + n // 4096, 0, n % 4096) for n in range(10_000)]

    Loader(redis, POLICY).enqueue([("V", [(seq, "r") for seq in reversed(seqs)])], NOW)

    assert seqs_of(redis, keys.pending("V")) == seqs


def test_bulk_cancel_and_expiry_are_idempotent_and_final(redis: Redis, use: Callable[..., Any]) -> None:
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
        "the first outcome counts"
    )


def test_an_owner_with_corrupt_keys_is_skipped_when_others_end_in_bulk(redis: Redis) -> None:
    loader = Loader(redis, POLICY)
    loader.enqueue([("V", [(SEQ[0], "r")])], NOW)
    redis.set(keys.pending("BAD"), "what is this")

    ended = list(loader.end([("BAD", [SEQ[0]]), ("V", [SEQ[0]])], Outcome.CANCELLED, NOW))

    assert ended == [("V", SEQ[0], Outcome.CANCELLED)]
    assert loader.spoilt == {"BAD"}


def test_a_corrupt_trigger_key_is_named_when_others_are_stored_in_bulk(redis: Redis) -> None:
    redis.sadd(keys.trigger(SEQ[1]), "what is this")

    assert Loader(redis, POLICY).store_triggers(dict.fromkeys(SEQ[:3], EntryTrigger("r", "d"))) == [keys.trigger(SEQ[1])]

    assert [redis.type(keys.trigger(seq)) for seq in SEQ[:3]] == [b"hash", b"set", b"hash"]


@pytest.mark.parametrize("outcome", Outcome)
def test_the_queues_remember_how_an_entry_ended(use: Callable[..., Any], redis: Redis, outcome: Outcome) -> None:
    async def body(queues: Queues) -> None:
        batch = queues.batch()
        batch.add("V", Ack(OutcomeRecord("V", SEQ[0], outcome, NOW)), NOW)
        batch.add("V", End((OutcomeRecord("V", SEQ[0], Outcome.CANCELLED, NOW),), claim=False), NOW)
        _, ended = await batch.run()
        assert ended.outcomes == (outcome,)

    use(body)


def test_with_compaction_a_repeated_trigger_names_superseded_entries_again(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        await enqueue_trigger(queues, SEQ[0], ["V"], "same", "d", NOW)
        await enqueue_trigger(queues, SEQ[1], ["V"], "same", "d", NOW)

        again = await enqueue_trigger(queues, SEQ[1], ["V"], "same", "d", NOW)

        assert (again.queued, again.superseded) == (0, [("V", SEQ[0])])

    use(body, replace(POLICY, compaction=True))


def test_with_compaction_thousands_of_superseded_entries_are_named_again(use: Callable[..., Any], redis: Redis) -> None:
    """More entries than Lua's stack holds."""
    old = [seq_of(NOW - 1000, 0, 0) + n for n in range(10_000)]

    async def body(queues: Queues) -> None:
        await enqueue_trigger(queues, SEQ[0], ["V"], "same", "d", NOW)
        redis.zadd(keys.done("V"), {str(seq): CODES[Outcome.SUPERSEDED] for seq in old})

        again = await enqueue_trigger(queues, SEQ[0], ["V"], "same", "d", NOW)

        assert again.superseded == [("V", seq) for seq in old]

    use(body, replace(POLICY, compaction=True))


def test_with_compaction_a_cancelled_entry_leaves_no_trace_of_its_key(use: Callable[..., Any], redis: Redis) -> None:
    async def body(queues: Queues) -> None:
        await enqueue_trigger(queues, SEQ[0], ["V"], "one", "d", NOW)
        await enqueue_trigger(queues, SEQ[1], ["V"], "two", "d", NOW)
        batch = queues.batch()
        batch.add("V", End((OutcomeRecord("V", SEQ[0], Outcome.CANCELLED, NOW),), claim=False), NOW)
        await batch.run()

    use(body, replace(POLICY, compaction=True))
    assert redis.hgetall(keys.compaction("V")) == {b"two": str(SEQ[1]).encode()}


def test_an_unseen_vehicle_is_absent_once_it_neither_acks_nor_sends_heartbeats(use: Callable[..., Any]) -> None:
    async def overdue(queues: Queues, now_ms: int) -> ClaimWord:
        batch = queues.batch()
        batch.add("V", Release(SEQ[0], ReleaseReason.DEADLINE), now_ms)
        batch.add("V", Claim(), now_ms)
        _, again = await batch.run()
        return ClaimWord(again.word)

    async def body(queues: Queues) -> None:
        await connect(queues, "V")
        await enqueue_trigger(queues, SEQ[0], ["V"], "r", "d", NOW)
        await claim(queues, "V")
        assert await overdue(queues, NOW + POLICY.presence_ms) is ClaimWord.CLAIMED
        assert await overdue(queues, NOW + POLICY.presence_ms + POLICY.ack_deadline_max_ms) is ClaimWord.ABSENT
        batch = queues.batch()
        batch.add("V", UpdatePresence(PresenceSign(), True), NOW + POLICY.presence_ms + POLICY.ack_deadline_max_ms + 1)
        (reply,) = await batch.run()
        assert reply.next.seq == SEQ[0]

    use(body)


def test_a_claim_carries_the_maximum_packet_size_of_the_connection(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        v = Owner("V")

        async def takes_after(*seen: PresenceSign | Connected | Disconnected) -> int:
            for each in (*seen, PresenceSign()):
                batch = queues.batch()
                batch.add("V", UpdatePresence(each, isinstance(each, PresenceSign)), NOW)
                reply = (await batch.run())[0].next
            assert reply.word is ClaimWord.CLAIMED
            batch.add("V", Release(SEQ[0], ReleaseReason.CUT), NOW)
            await batch.run()
            return int(reply.max_packet_bytes)

        await enqueue_trigger(queues, SEQ[0], ["V"], "r", "d", NOW)
        assert await takes_after() == 0
        assert await takes_after(Connected(v, NOW, True, 60, 256)) == 256
        assert await takes_after(Connected(v, NOW, False, 60)) == 256  # found by reconciliation, which lacks the size
        assert await takes_after(Connected(v, NOW + 1, False, 60, 512)) == 512
        assert await takes_after(Connected(v, NOW, False, 60, 256), Disconnected(v, NOW, NOW, None, "")) == 512  # both are late
        assert await takes_after(Connected(v, NOW + 2, False, 60)) == 0
        assert await takes_after(Connected(v, NOW + 3, False, 60, 256), Disconnected(v, NOW + 4, NOW + 3, None, "")) == 0

    use(body)


def test_presence_of_a_vehicle_without_entries_expires(use: Callable[..., Any]) -> None:
    async def body(queues: Queues) -> None:
        async def ttl_after(seen: PresenceSign | Connected | Disconnected | Subscribed) -> int:
            batch = queues.batch()
            batch.add("V", UpdatePresence(seen, isinstance(seen, PresenceSign)), NOW)
            await batch.run()
            return int(await queues.redis.pttl(keys.presence("V")))

        v = Owner("V")
        listens = Subscribed(v, NOW, "", True)
        soon = range(POLICY.presence_ms, 2 * POLICY.presence_ms)
        late = range(POLICY.retention_ms - 60_000, POLICY.retention_ms + 1)
        assert await ttl_after(PresenceSign()) in soon
        assert await ttl_after(listens) in soon
        assert await ttl_after(Connected(v, NOW, True, 60)) in late
        assert await ttl_after(listens) in late
        assert await ttl_after(Disconnected(v, NOW + 1, NOW, None, "")) in soon
        assert await ttl_after(Connected(v, NOW + 2, False, 60)) in late

        await enqueue_trigger(queues, SEQ[0], ["V"], "r", "d", NOW)
        assert (await claim(queues, "V")).seq == SEQ[0]
        assert await queues.redis.pttl(keys.presence("V")) == -1  # kept while it is served, however silent the vehicle is
        assert await ttl_after(Disconnected(v, NOW + 3, NOW + 2, None, "")) == -1
        batch = queues.batch()
        batch.add("V", Ack(delivered("V", SEQ[0])), NOW)
        await batch.run()
        assert await queues.redis.pttl(keys.presence("V")) == -1
        assert await ttl_after(PresenceSign()) in soon

    use(body)
