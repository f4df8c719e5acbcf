"""The lake's state of a compacted queue, loaded into a Redis that is empty or has part of it."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.outcomes import Outcome
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import EPOCH_MS, seq_of
from manifold.queues import EcqLoader, LakeQueue, _ecq_loader
from manifold.queues._drivers import BlockingBatch
from manifold.queues.verbs.claims import Claim, ClaimWord
from manifold.queues.verbs.ecq import Acknowledge, Append, LiveMessage, Load, Rewind
from manifold.queues.verbs.ecq_reads import Read, ReadReply
from manifold.queues.verbs.verb import Verb
from tests.manifold.queues.conftest import POLICY

ID = "client-1"
NOW = EPOCH_MS + 200_000_000_000
SEQS = [seq_of(NOW + n, 0, 0) for n in range(6)]
REWIND, LATER_REWIND = seq_of(NOW + 100, 0, 0), seq_of(NOW + 200, 0, 0)


def run(redis: Redis, *verbs: Verb) -> None:
    batch = BlockingBatch(redis, POLICY)
    for verb in verbs:
        batch.add(ecq_queue(ID), verb, NOW + 1000)
    batch.run()


def appended(*places: int) -> list[Append]:
    return [Append(SEQS[place], f"k{place}", b"x") for place in places]


def acked(*places: int) -> list[Acknowledge]:
    return [Acknowledge(EcqAck(ID, SEQS[place], NOW), claim=False) for place in places]


def live(delivered: str) -> list[LiveMessage]:
    """One message per letter: `d` was acknowledged, `p` is pending."""
    return [LiveMessage(SEQS[n], f"k{n}", how == "d") for n, how in enumerate(delivered)]


def load(redis: Redis, delivered: str, *, epoch: int = 0) -> None:
    position = max((m.seq for m in live(delivered) if m.is_delivered), default=None)
    queue = LakeQueue(ID, Load(epoch, position, None if position is None else NOW, live(delivered)))
    EcqLoader(redis, POLICY).load([queue], NOW + 1000)


def held(redis: Redis) -> str:
    """The live messages, oldest first, in the notation of `live`."""
    batch = BlockingBatch(redis, POLICY)
    batch.add(ecq_queue(ID), Read(), NOW)
    (found,) = batch.run()
    assert isinstance(found, ReadReply)
    return "".join("d" if message.is_delivered else "p" for message in found.messages)


@pytest.fixture(params=[1, 2, 100], ids=["one a call", "two a call", "all at once"])
def a_call(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of messages loaded per call, which must not matter."""
    monkeypatch.setattr(_ecq_loader, "MESSAGES_PER_CALL", request.param)
    return int(request.param)


@pytest.mark.usefixtures("a_call")
@pytest.mark.parametrize(
    ("before", "lake", "epoch", "after"),
    [
        pytest.param([], "dpdp", 0, "dpdp", id="an empty Redis gets the lake's state"),
        pytest.param([*appended(0, 1), *acked(0, 1)], "dp", 0, "dd", id="an acknowledgement unknown to the lake is kept"),
        pytest.param(appended(0, 1), "dp", 0, "dp", id="an acknowledgement lost by Redis is restored"),
        pytest.param(
            [*appended(0, 1, 2), *acked(0, 1, 2)], "ppp", REWIND, "ppp", id="a rewind lost by Redis revives all messages"
        ),
        pytest.param(
            [*appended(0, 1, 2), *acked(0, 1, 2)],
            "dpp",
            REWIND,
            "dpp",
            id="a rewind lost by Redis keeps earlier messages acknowledged",
        ),
        pytest.param(
            [*appended(0, 1), *acked(0, 1), Rewind(REWIND, 0)],
            "dd",
            0,
            "pp",
            id="a rewind unknown to the lake is kept",
        ),
        pytest.param(
            [*appended(0, 1), *acked(0, 1), Rewind(REWIND, SEQS[1])],
            "dd",
            0,
            "dp",
            id="a rewind unknown to the lake starts at its first seq",
        ),
    ],
)
def test_redis_and_lake_merge(redis: Redis, before: list[Verb], lake: str, epoch: int, after: str) -> None:
    run(redis, *before)
    for _ in range(2):
        load(redis, lake, epoch=epoch)
        assert held(redis) == after


def test_an_ack_removes_acknowledged_messages_past_retention_and_no_pending_one(redis: Redis) -> None:
    """Retention is one day: older acknowledged messages lose key and bytes, older pending ones stay."""
    run(redis, *appended(0, 1), *acked(0))
    later, fresh = NOW + 86_400_000 + 1, seq_of(NOW + 86_400_000, 0, 0)
    batch = BlockingBatch(redis, replace(POLICY, ecq_retention_ms=86_400_000))
    batch.add(ecq_queue(ID), Append(fresh, "fresh", b"x"), later)
    batch.add(ecq_queue(ID), Acknowledge(EcqAck(ID, fresh, later), claim=False), later)
    batch.run()

    _, _, _, live_keys, delivered, messages, *_ = keys.ecq_keys(ID)
    assert held(redis) == "pd"
    assert set(redis.hkeys(live_keys)) == {b"k1", b"fresh"}
    assert redis.zrange(delivered, 0, -1) == [b"%d" % fresh]
    assert set(map(int, redis.hkeys(messages))) == {SEQS[1], fresh}


def test_a_pending_message_past_its_retention_ends_instead_of_being_sent(redis: Redis) -> None:
    """Also after a rebuild loaded it, whether or not its client is connected; once ended, nothing of it is left."""
    later = NOW + 40 * 86_400_000
    load(redis, "p")
    batch = BlockingBatch(redis, POLICY)
    batch.add(ecq_queue(ID), Claim(), later)
    (claim,) = batch.run()
    assert claim.word is ClaimWord.MUST_END
    assert [(each.seq, each.outcome) for each in claim.must_end] == [(SEQS[0], Outcome.EXPIRED)]

    record = EcqAck(ID, SEQS[0], later, passed_over=True, outcome=Outcome.EXPIRED)
    batch.add(ecq_queue(ID), Acknowledge(record), later)
    (ended,) = batch.run()
    assert (ended.word, ended.next.word) == ("ended", ClaimWord.IDLE)
    assert held(redis) == ""
    batch.add(ecq_queue(ID), Rewind(seq_of(later, 0, 0), 0), later)
    batch.run()
    assert held(redis) == ""


def test_lake_expiry_ends_pending_messages_but_none_in_flight_or_acknowledged(redis: Redis) -> None:
    """Garbage collection names messages pending in the lake past their retention; the queue reports which expired."""
    state, loader = keys.ecq_keys(ID)[7], EcqLoader(redis, POLICY)
    run(redis, *appended(0, 1, 2, 4), *acked(1))
    redis.hset(keys.ecq_keys(ID)[1], "seq", SEQS[2])

    done = loader.expire([(ID, SEQS[:4]), ("nobody", [SEQS[5]])], NOW + 2000)

    assert list(done) == [(ID, SEQS[0]), (ID, SEQS[3]), ("nobody", SEQS[5])], "a message unknown to Redis has expired too"
    assert held(redis) == "dpp"
    assert redis.hmget(state, "acked_seq", "acked_at") == [b"%d" % SEQS[3], b"%d" % (NOW + 2000)]
    assert redis.keys("*nobody*") == []
    assert list(loader.expire([(ID, SEQS[:1])], NOW + 2000)) == [(ID, SEQS[0])], "a repetition returns the same"


def test_a_pending_message_has_its_own_retention(redis: Redis) -> None:
    later, day = NOW + 40 * 86_400_000, 86_400_000
    run(redis, *appended(0))
    for pending_ms, word in ((0, ClaimWord.ABSENT), (41 * day, ClaimWord.ABSENT), (39 * day, ClaimWord.MUST_END)):
        batch = BlockingBatch(redis, replace(POLICY, ecq_pending_retention_ms=pending_ms))
        batch.add(ecq_queue(ID), Claim(), later)
        (claim,) = batch.run()
        assert claim.word is word, pending_ms


def test_position_and_epoch_are_the_more_recent_of_both(redis: Redis) -> None:
    run(redis, *appended(0, 1), *acked(0, 1), Rewind(REWIND, SEQS[1]))
    state = keys.ecq_keys(ID)[7]
    assert redis.hmget(state, "epoch", "acked_seq") == [str(REWIND).encode(), str(SEQS[1] - 1).encode()]
    load(redis, "dd")
    assert redis.hmget(state, "epoch", "acked_seq") == [str(REWIND).encode(), str(SEQS[1] - 1).encode()]
    load(redis, "dp", epoch=LATER_REWIND)
    assert redis.hmget(state, "epoch", "acked_seq") == [str(LATER_REWIND).encode(), str(SEQS[0]).encode()]


def test_a_long_queue_read_in_several_calls_lists_changed_messages_once(redis: Redis) -> None:
    seqs = [seq_of(NOW, 0, 0) + n for n in range(3000)]
    run(redis, *(Append(seq, f"k{n}", b"x") for n, seq in enumerate(seqs)))
    newer = seq_of(NOW + 1, 0, 0)

    class Meanwhile(EcqLoader):
        """Write a key again before each further call."""

        def _run(self, verbs: Iterable[tuple[str, Verb]], now_ms: int, *, tolerant: bool = True) -> list[Any]:
            asked = list(verbs)
            calls.append(asked[0][1])
            if len(calls) > 1:
                run(redis, Append(newer, "k7", b"newer"))
            return super()._run(asked, now_ms, tolerant=tolerant)

    calls: list[Verb] = []
    found = Meanwhile(redis, POLICY).read_one(ID)

    assert len(calls) > 1
    assert len(found.messages) == len({message.key for message in found.messages}) == len(seqs)
    assert {message.seq for message in found.messages if message.key != "k7"} == set(seqs) - {seqs[7]}
    assert [message.seq for message in found.messages] == sorted(message.seq for message in found.messages)
    assert found.cursor == 0
