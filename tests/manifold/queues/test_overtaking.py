"""Nothing overtakes an entry whose publish may be under way: it may reach the broker after the session has ended."""

from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.events import Connected, PresenceSign
from manifold.contracts.names import Owner
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import seq_of
from manifold.queues._policy import Policy
from manifold.queues.verbs import ecq
from manifold.queues.verbs.claims import Claim, ClaimReply, ClaimWord, Park, Release, ReleaseReason, UpdatePresence
from manifold.queues.verbs.ends import Ack, End
from manifold.queues.verbs.fills import Enqueue, Unpark
from manifold.queues.verbs.verb import Verb
from tests.manifold.queues.clocked import ClockedBatch
from tests.manifold.queues.conftest import POLICY, seqs_of

VIN = Owner("VIN-1")
NOW = 1_800_000_000_000
OLDER, FIRST, SECOND = (seq_of(NOW - 10_000 + n, 0, 0) for n in range(3))
OVER = NOW + POLICY.ack_deadline_ms  # a publish of NOW reaches the broker by then or never
BACK = NOW + 1_000


class Queues:
    """One vehicle's queues, driven by verbs at given times."""

    def __init__(self, redis: Redis, policy: Policy = POLICY) -> None:
        self.redis, self.policy = redis, policy
        self.do(UpdatePresence(Connected(VIN, NOW - 5_000, True, 0), claim=False), NOW - 5_000)

    def do(self, verb: Verb, now: int, queue: str = VIN) -> Any:
        batch = ClockedBatch(self.redis, self.policy)
        batch.add(queue, verb, now)
        (reply,) = batch.run()
        return reply

    def begin(self, *seqs: int) -> None:
        """Put the first of these in flight at NOW; then its session ends, as seen by another replica."""
        self.do(Enqueue([(seq, "r") for seq in seqs]), NOW)
        assert self.do(Claim(), NOW).seq == seqs[0]
        assert self.new_session() == seqs[0]

    def new_session(self) -> int | None:
        reply = self.do(UpdatePresence(Connected(VIN, BACK, True, 0), claim=False), BACK)
        released: int | None = reply.released
        return released

    def end_as(self, how: Outcome, now: int) -> Any:
        return self.do(End((OutcomeRecord(VIN, FIRST, how, now),), claim=True), now)

    def fail(self, now: int) -> Any:
        return self.do(Ack(OutcomeRecord(VIN, FIRST, Outcome.FAILED, now, attempts=1)), now)


@pytest.fixture
def queues(redis: Redis) -> Queues:
    return Queues(redis)


def is_held(claim: ClaimReply) -> bool:
    """Whether the claim reports waiting for `FIRST`, and until when."""
    return (claim.word, claim.seq, claim.deadline_ms) == (ClaimWord.BUSY, FIRST, OVER)


def test_the_entry_is_resent_at_once_and_ends_by_its_ack(queues: Queues) -> None:
    queues.begin(FIRST, SECOND)

    assert queues.do(Claim(), BACK).seq == FIRST
    delivered = queues.do(Ack(OutcomeRecord(VIN, FIRST, Outcome.DELIVERED, BACK)), BACK)
    assert (delivered.word, delivered.next.seq) == ("ended", SECOND)


def test_the_entry_does_not_fail_before_the_publish_window_ends(queues: Queues) -> None:
    queues.begin(FIRST, SECOND)
    queues.do(Claim(), BACK)

    early = queues.fail(BACK)
    assert early.word == "sent"
    assert is_held(early.next)
    assert queues.fail(BACK)._replace(next=early.next) == early, "a lost reply is requested again"
    assert queues.redis.xlen(keys.OUTCOMES) == 0

    assert queues.do(Claim(), OVER).seq == FIRST
    ended = queues.fail(OVER)
    assert (ended.word, ended.next.seq) == ("ended", SECOND)


def test_the_entry_is_not_parked_before_the_publish_window_ends(queues: Queues) -> None:
    queues.begin(FIRST, SECOND)
    queues.do(Claim(), BACK)

    for _ in range(2):  # the reply may be lost
        assert is_held(queues.do(Park(FIRST, "d", BACK), BACK))
    assert seqs_of(queues.redis, keys.parked(VIN)) == []

    queues.do(Claim(), OVER)
    assert queues.do(Park(FIRST, "d", OVER), OVER).seq == SECOND
    assert seqs_of(queues.redis, keys.parked(VIN)) == [FIRST]


def test_a_miss_reported_for_an_earlier_claim_does_not_park_the_entry(queues: Queues) -> None:
    queues.begin(FIRST, SECOND)
    assert queues.do(Claim(), OVER).seq == FIRST

    assert queues.do(Park(FIRST, "d", NOW), OVER).word is ClaimWord.NONE
    assert seqs_of(queues.redis, keys.parked(VIN)) == []


def test_a_session_known_to_be_lost_is_like_one_that_ended(queues: Queues) -> None:
    queues.do(Enqueue([(FIRST, "r"), (SECOND, "r")]), NOW)
    queues.do(Claim(), NOW)
    queues.do(Release(FIRST, ReleaseReason.LOST), BACK)

    assert queues.end_as(Outcome.CANCELLED, BACK).outcomes == (None,)
    assert is_held(queues.do(Claim(), BACK)), "it must end before anything else is sent"


@pytest.mark.parametrize("how", [Outcome.CANCELLED, Outcome.EXPIRED])
def test_the_entry_does_not_end_without_ack_before_the_publish_window_ends(queues: Queues, how: Outcome) -> None:
    queues.begin(FIRST, SECOND)

    ended = queues.end_as(how, BACK)
    assert ended.outcomes == (None,)
    assert is_held(ended.next)
    assert queues.redis.xlen(keys.OUTCOMES) == 0

    over = queues.do(Claim(), OVER)
    assert [(each.seq, each.outcome) for each in over.must_end] == [(FIRST, how)]
    ended = queues.end_as(how, OVER)
    assert (ended.outcomes, ended.next.seq) == ((how,), SECOND)


def test_an_entry_cancelled_in_flight_is_waited_for(queues: Queues) -> None:
    queues.do(Enqueue([(FIRST, "r"), (SECOND, "r")]), NOW)
    queues.do(Claim(), NOW)
    queues.end_as(Outcome.CANCELLED, NOW)
    queues.new_session()

    assert is_held(queues.do(Claim(), BACK))
    assert queues.do(Claim(), OVER).word is ClaimWord.MUST_END


def test_an_older_entry_whose_data_arrives_now_follows_it(queues: Queues) -> None:
    queues.do(Enqueue([(OLDER, "r")]), NOW)
    queues.do(Claim(), NOW)
    queues.do(Park(OLDER, "d"), NOW)
    queues.begin(FIRST)
    queues.do(Unpark((OLDER,)), BACK)

    assert queues.do(Claim(), BACK).seq == FIRST
    assert queues.do(Ack(OutcomeRecord(VIN, FIRST, Outcome.DELIVERED, BACK)), BACK).next.seq == OLDER


def test_a_newer_entry_of_the_same_request_does_not_supersede_it(redis: Redis) -> None:
    compacting = Queues(redis, replace(POLICY, compaction=True))
    compacting.begin(FIRST)

    assert compacting.do(Enqueue([(SECOND, "r")]), BACK).superseded == ()
    assert seqs_of(redis, keys.pending(VIN)) == [FIRST, SECOND]


def test_a_publish_on_a_broken_connection_may_be_under_way(queues: Queues) -> None:
    queues.do(Enqueue([(FIRST, "r"), (SECOND, "r")]), NOW)
    queues.do(Claim(), NOW)
    queues.do(Release(FIRST, ReleaseReason.CUT, NOW), BACK)

    assert queues.end_as(Outcome.CANCELLED, BACK).outcomes == (None,)


@pytest.mark.parametrize("reason", [ReleaseReason.UNSENT, ReleaseReason.UNSUBSCRIBED])
def test_an_entry_not_sent_or_not_received_is_not_waited_for(queues: Queues, reason: ReleaseReason) -> None:
    queues.do(Enqueue([(FIRST, "r"), (SECOND, "r")]), NOW)
    queues.do(Claim(), NOW)
    queues.do(Release(FIRST, reason, NOW), BACK)

    assert queues.end_as(Outcome.CANCELLED, BACK).outcomes == (Outcome.CANCELLED,)


def test_a_compacted_message_is_not_skipped_before_the_publish_window_ends(queues: Queues) -> None:
    queue = ecq_queue(VIN)
    queues.do(ecq.Append(FIRST, "a", b"1"), NOW, queue)
    queues.do(ecq.Append(SECOND, "b", b"2"), NOW, queue)
    queues.do(Claim(), NOW, queue)
    queues.new_session()
    queues.do(UpdatePresence(PresenceSign(), claim=False), BACK)
    queues.do(Claim(), BACK, queue)

    early = queues.do(ecq.Acknowledge(EcqAck(VIN, FIRST, BACK, passed_over=True)), BACK, queue)
    assert early.word == "sent"
    assert is_held(early.next)
    assert queues.redis.xlen(keys.OUTCOMES) == 0

    queues.do(Claim(), OVER, queue)
    over = queues.do(ecq.Acknowledge(EcqAck(VIN, FIRST, OVER, passed_over=True)), OVER, queue)
    assert (over.word, over.next.seq) == ("ended", SECOND)


def test_an_older_message_revived_by_a_rewind_follows_it(queues: Queues) -> None:
    queue = ecq_queue(VIN)
    queues.do(ecq.Append(OLDER, "a", b"1"), NOW, queue)
    queues.do(Claim(), NOW, queue)
    queues.do(ecq.Append(FIRST, "b", b"2"), NOW, queue)
    assert queues.do(ecq.Acknowledge(EcqAck(VIN, OLDER, NOW)), NOW, queue).next.seq == FIRST
    queues.new_session()
    queues.do(UpdatePresence(PresenceSign(), claim=False), BACK)
    queues.do(ecq.Rewind(seq_of(BACK, 0, 0), 0), BACK, queue)

    assert queues.do(Claim(), BACK, queue).seq == FIRST
