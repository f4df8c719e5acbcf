"""An entry ends together with its outcome record, so no crash can come between."""

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.events import Connected
from manifold.contracts.names import Owner
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import EPOCH_MS, seq_of
from manifold.queues import Queues
from manifold.queues.verbs.claims import Claim, Release, ReleaseReason, UpdatePresence
from manifold.queues.verbs.ends import Ack, AckReply, End, EndReply
from manifold.queues.verbs.fills import Enqueue
from tests.manifold.queues.conftest import seqs_of

NOW = EPOCH_MS + 200_000_000_000
SEQ = [seq_of(NOW + n, 0, 0) for n in range(3)]
Run = Callable[..., Any]


def told(redis: Redis) -> list[OutcomeRecord]:
    """The outcomes that the recorder reads."""
    records: Any = redis.xrange(keys.OUTCOMES)
    return [OutcomeRecord.from_wire(fields[b"o"]) for _, fields in records]


async def put_in_flight(queues: Queues, owner: str = "V") -> None:
    """Put the first of three entries in flight."""
    batch = queues.batch()
    batch.add(owner, UpdatePresence(Connected(Owner(owner), NOW, True, 0), False), NOW)
    batch.add(owner, Enqueue([(seq, "r") for seq in SEQ]), NOW)
    batch.add(owner, Claim(), NOW + 5)
    *_, claim = await batch.run()
    assert claim.seq == SEQ[0]


async def ack(queues: Queues, record: OutcomeRecord) -> AckReply:
    batch = queues.batch()
    batch.add(record.vin, Ack(record, "r"), NOW + 9)
    (reply,) = await batch.run()
    assert isinstance(reply, AckReply)
    return reply


async def end(queues: Queues, *records: OutcomeRecord) -> EndReply:
    batch = queues.batch()
    batch.add(records[0].vin, End(records, claim=False), NOW + 9)
    (reply,) = await batch.run()
    assert isinstance(reply, EndReply)
    return reply


def outcome(seq: int = SEQ[0], owner: str = "V", **fields: Any) -> OutcomeRecord:
    return OutcomeRecord(owner, seq, Outcome.DELIVERED, NOW + 8, **fields)


def test_an_ack_is_recorded_with_its_entry_in_one_step(use: Run, redis: Redis) -> None:
    async def body(queues: Queues) -> None:
        await put_in_flight(queues)
        assert (await ack(queues, outcome(dispatched_ms=NOW + 6, reason="on my way"))).word == "ended"

    use(body)
    assert told(redis) == [outcome(dispatched_ms=NOW + 5, attempts=1, reason="on my way")]


@pytest.mark.parametrize("seen_ms", [None, NOW + 6])
def test_an_ack_after_a_release_takes_the_publish_time_from_the_broker_event(use: Run, redis: Redis, seen_ms: int | None) -> None:
    async def body(queues: Queues) -> None:
        await put_in_flight(queues)
        batch = queues.batch()
        batch.add("V", Release(SEQ[0], ReleaseReason.LOST), NOW + 7)
        await batch.run()
        await ack(queues, outcome(dispatched_ms=seen_ms))

    use(body)
    assert told(redis) == [outcome(dispatched_ms=seen_ms, attempts=1)]


def test_an_ack_unknown_to_redis_is_recorded_once(use: Run, redis: Redis) -> None:
    async def body(queues: Queues) -> None:
        assert [(await ack(queues, outcome())).word for _ in range(3)] == ["unknown", "known", "known"]

    use(body)
    assert told(redis) == [outcome()]


def test_the_first_outcome_of_an_entry_is_recorded(use: Run, redis: Redis) -> None:
    expired = OutcomeRecord("V", SEQ[1], Outcome.EXPIRED, NOW, attempts=0)

    async def body(queues: Queues) -> None:
        await put_in_flight(queues)
        await end(queues, expired)
        await ack(queues, outcome(SEQ[1]))
        await ack(queues, outcome(SEQ[2]))
        reply = await end(queues, OutcomeRecord("V", SEQ[2], Outcome.CANCELLED, NOW))
        assert reply.outcomes == (Outcome.DELIVERED,)

    use(body)
    assert told(redis) == [expired, outcome(SEQ[2])]


def test_a_claim_beyond_the_last_attempt_does_not_count_as_a_publish(use: Run, redis: Redis) -> None:
    failed = OutcomeRecord("V", SEQ[0], Outcome.FAILED, NOW + 8, attempts=3, reason="not acknowledged after 3 attempts")

    async def body(queues: Queues) -> None:
        await put_in_flight(queues)
        await ack(queues, failed)

    use(body)
    assert told(redis) == [failed]


def test_cancelling_an_entry_in_flight_records_no_outcome_yet(use: Run, redis: Redis) -> None:
    async def body(queues: Queues) -> None:
        await put_in_flight(queues)
        reply = await end(queues, *(OutcomeRecord("V", seq, Outcome.CANCELLED, NOW) for seq in SEQ))
        assert reply.outcomes == (None, Outcome.CANCELLED, Outcome.CANCELLED)

    use(body)
    assert [record.seq for record in told(redis)] == SEQ[1:]


def test_foreign_stream_items_are_read_like_any_outcome(use: Run, redis: Redis) -> None:
    """The recorder refuses it and keeps its bytes."""
    redis.xadd(keys.OUTCOMES, {"note": "hello", "from": "me"})

    async def body(queues: Queues) -> None:
        await queues.join_outcomes()
        ((_, payload),) = await queues.read_outcomes("r", count=10, block_ms=1)
        assert payload == b"note hello from me"
        ((_, again),) = await queues.claim_stale_outcomes("other", idle_ms=0, count=10)
        assert again == payload

    use(body)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a{b}", "}x", "a%sb'c"])
def test_a_name_of_any_kind_is_recorded_unchanged(use: Run, redis: Redis, name: str) -> None:
    async def body(queues: Queues) -> None:
        await ack(queues, outcome(owner=name, reason=name))
        await end(queues, OutcomeRecord(name, SEQ[1], Outcome.EXPIRED, NOW, reason=name))

    use(body)
    assert [(record.vin, record.reason) for record in told(redis)] == [(name, name)] * 2


def test_an_entry_does_not_end_if_its_outcome_cannot_be_recorded(use: Run, redis: Redis) -> None:
    """The error differs from that of a vehicle's corrupt keys, which would give up the acknowledgement."""
    redis.set(keys.OUTCOMES, "not a stream")

    async def body(queues: Queues) -> None:
        await put_in_flight(queues)
        with pytest.raises(Exception, match=r"^OUTCOMES cannot be recorded"):
            await ack(queues, outcome())
        with pytest.raises(Exception, match=r"^OUTCOMES cannot be recorded"):
            await end(queues, OutcomeRecord("V", SEQ[1], Outcome.EXPIRED, NOW))

    use(body)
    assert seqs_of(redis, keys.pending("V")) == SEQ
    assert redis.exists(keys.done("V")) == 0
