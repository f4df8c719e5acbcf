"""Invariants of compacted queues: a state machine that runs every verb against a real Redis and a simple model."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.ecq_state import QueueState, fold
from manifold.contracts.events import Connected, Disconnected, PresenceSign
from manifold.contracts.names import Owner
from manifold.contracts.outcomes import Outcome
from manifold.contracts.queue_names import ecq_queue, fanout_queue
from manifold.contracts.seq import EPOCH_MS, seq_of, unix_ms_of
from manifold.queues import Policy
from manifold.queues.verbs import ecq
from manifold.queues.verbs.claims import Claim, ClaimWord, Release, ReleaseReason, UpdatePresence
from manifold.queues.verbs.ends import ListMustEnd
from manifold.queues.verbs.verb import Verb
from tests.manifold.queues.clocked import ClockedBatch
from tests.manifold.queues.conftest import POLICY as DAYS
from tests.manifold.queues.conftest import seqs_of

ID = Owner("client-1")
POLICY = replace(DAYS, ecq_pending_retention_ms=0)  # unfetched messages are kept, unless a test sets a retention
START_MS = EPOCH_MS + 200_000_000_000
KEYS = st.sampled_from(["a", "b/c", "ü", "d"])
SEQS = st.integers(0, 60).map(lambda n: seq_of(START_MS + n // 4, 0, n % 4))
PENDING, INFLIGHT, _, LIVE, DELIVERED, MESSAGES, ATTEMPTS, STATE = keys.ecq_keys(ID)


class CompactedQueueMachine(RuleBasedStateMachine):
    """Run verbs in any order; the records fold to what Redis holds."""

    redis: Redis

    @initialize(connected=st.booleans())
    def begin(self, connected: bool) -> None:
        self.redis.flushall()
        self.now, self.since = START_MS + 100_000, START_MS
        self.appends: dict[int, str] = {}  # seq → key: a seq is used once
        self.rewinds: set[tuple[int, int]] = set()
        self.in_flight: int | None = None
        self.superseded_in_flight = False
        self.deadline, self.claimed_at = 0, 0
        self.sent = (0, 0)  # released while its publish may be under way, and until when: nothing overtakes it
        self.connected, self.listens = False, True  # tried unless it is known to have no subscription
        self.position: int | None = None
        self.expired_up_to = 0  # a seq; nothing older returns
        if connected:
            self.connect(clean=True)
            self.subscribe(qos=1)

    def run(self, verb: Verb, queue: str = ecq_queue(ID), *, policy: Policy = POLICY) -> Any:
        batch = ClockedBatch(self.redis, policy)
        batch.add(queue, verb, self.now)
        (reply,) = batch.run()
        return reply

    @property
    def here(self) -> bool:
        return self.connected and self.listens

    @property
    def records(self) -> list[EcqAck]:
        found: Any = self.redis.xrange(keys.OUTCOMES)
        return [EcqAck.from_wire(fields[b"o"]) for _, fields in found]

    @property
    def acks(self) -> list[tuple[int, int]]:
        return [(record.seq, record.epoch) for record in self.records if not record.is_expired]

    @property
    def expired(self) -> list[tuple[int, int]]:
        return [(record.seq, record.epoch) for record in self.records if record.is_expired]

    def state(self, acks: list[tuple[int, int]] | None = None) -> QueueState:
        acks = self.acks if acks is None else acks
        return fold([(seq, key) for seq, key in self.appends.items()], acks, self.rewinds, self.expired)

    @property
    def pending(self) -> set[int]:
        return self.pending_before(self.acks)

    def check_claim(self, claim: Any) -> None:
        if self.in_flight is not None:
            assert (claim.word, claim.seq) == (ClaimWord.BUSY, self.in_flight)
            return
        pending = self.pending
        if not pending:
            assert claim.word is ClaimWord.IDLE
        elif not self.here:
            assert claim.word in (ClaimWord.ABSENT, ClaimWord.UNSUBSCRIBED)
        else:
            sent, until = self.sent
            first = sent if sent in pending and until > self.now else min(pending)
            assert (claim.word, claim.seq) == (ClaimWord.CLAIMED, first), "the oldest is sent first"
            self.in_flight, self.superseded_in_flight, self.deadline = claim.seq, False, claim.deadline_ms
            self.claimed_at = self.now
            key = self.appends[claim.seq].encode()
            assert claim.message == key + b"\0" + b"payload of %d" % claim.seq

    def let_go(self) -> None:
        over = self.claimed_at + POLICY.ack_deadline_ms
        if self.in_flight is not None and not self.superseded_in_flight and over > self.now:
            self.sent = (self.in_flight, over)
        self.in_flight = None

    @rule(seq=SEQS, key=KEYS)
    def append(self, seq: int, key: str) -> None:
        """Append, also repeated and late: behind an acknowledged or newer message."""
        assume(seq > self.expired_up_to)
        key = self.appends.setdefault(seq, key)
        rival = max((s for s, k in self.appends.items() if k == key and s != seq), default=0)
        if self.in_flight is not None and self.appends[self.in_flight] == key and self.in_flight < seq:
            self.superseded_in_flight = True
        reply = self.run(ecq.Append(seq, key, b"payload of %d" % seq))
        assert reply.queued == 0 or seq > rival
        again = self.run(ecq.Append(seq, key, b"payload of %d" % seq))
        assert again.queued == 0

    @rule()
    def claim(self) -> None:
        self.check_claim(self.run(Claim()))

    @precondition(lambda self: self.in_flight is not None)
    @rule(claim_next=st.booleans(), again=st.booleans())
    def acknowledge(self, claim_next: bool, again: bool) -> None:
        seq, self.in_flight = self.in_flight, None
        assert seq is not None
        self.position = max(self.position or 0, seq)
        reply = self.run(ecq.Acknowledge(EcqAck(ID, seq, self.now), claim=claim_next))
        assert reply.word == "ended"
        if claim_next:
            self.check_claim(reply.next)
        if again:
            self.run(ecq.Acknowledge(EcqAck(ID, seq, self.now), claim=False))

    @rule(data=st.data())
    def acknowledge_late(self, data: st.DataObject) -> None:
        """A delayed acknowledgement of any message ever written, pending or not, in any order."""
        assume(self.appends)
        seq = data.draw(st.sampled_from(sorted(self.appends)))
        assume(seq != self.in_flight)
        before = self.acks
        reply = self.run(ecq.Acknowledge(EcqAck(ID, seq, self.now), claim=False))
        if len(self.acks) > len(before):
            self.position = max(self.position or 0, seq)
        assert (reply.word == "ended") == (seq in self.pending_before(before))

    def pending_before(self, acks: list[tuple[int, int]]) -> set[int]:
        state = self.state(acks)
        return set(state.live.values()) - state.acknowledged - state.expired

    @rule(ms=st.integers(0, 5), first=st.one_of(st.just(0), SEQS))
    def rewind(self, ms: int, first: int) -> None:
        """Rewind; one older than an applied one changes nothing."""
        self.now += 1000
        seq = seq_of(self.now - ms * 1000, 1, 0)
        latest = max((rewind for rewind, _ in self.rewinds), default=0)
        knows = self.redis.exists(LIVE, STATE)
        self.run(ecq.Rewind(seq, first))
        if seq <= latest or not knows:
            return
        self.rewinds.add((seq, first))
        if self.position is not None:
            self.position = max(0, min(self.position, first - 1))

    @precondition(lambda self: len(self.pending) > 1)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        """Let the retention of pending messages pass up to a seq: they end oldest first, are recorded once, and stay gone."""
        up_to = data.draw(st.sampled_from(sorted(self.pending)[:-1]))
        policy = replace(POLICY, ecq_pending_retention_ms=self.now - unix_ms_of(up_to) - 1)
        sent, until = self.sent
        shielded = {self.in_flight, sent if until > self.now else None}
        expected = sorted(s for s in self.pending - shielded if unix_ms_of(s) <= unix_ms_of(up_to))
        assume(expected and self.redis.hlen(LIVE) > len(expected))  # a queue without live messages forgets its position
        ended = []
        while due := self.run(ListMustEnd(), policy=policy).must_end:
            assert due[0].outcome is Outcome.EXPIRED
            record = EcqAck(ID, due[0].seq, self.now, passed_over=True, outcome=Outcome.EXPIRED)
            assert self.run(ecq.Acknowledge(record, claim=False)).word == "ended"
            ended.append(due[0].seq)
            self.position = max(self.position or 0, due[0].seq)
            before = self.records
            assert self.run(ecq.Acknowledge(record, claim=False)).word == "known"
            assert self.records == before
        assert ended == expected
        self.expired_up_to = max(self.expired_up_to, *ended)

    @precondition(lambda self: self.in_flight is not None)
    @rule(reason=st.sampled_from([ReleaseReason.LOST, ReleaseReason.CUT, ReleaseReason.UNSENT]))
    def release(self, reason: ReleaseReason) -> None:
        assert self.run(Release(self.in_flight or 0, reason)).word == "released"
        assert self.run(Release(self.in_flight or 0, reason)).word == "stale"
        if reason in (ReleaseReason.CUT, ReleaseReason.LOST):
            self.let_go()
        self.in_flight = None

    @rule(clean=st.booleans())
    def connect(self, clean: bool) -> None:
        self.now += 10
        self.since = self.now
        reply = self.run(UpdatePresence(Connected(ID, self.now, clean, 3600), claim=False), fanout_queue(ID))
        if clean:
            assert reply.ecq_released == self.in_flight
            self.let_go()
            self.listens = True
            assert not reply.ecq_wake, "a new session has no subscription yet"
        else:
            assert reply.ecq_released is None
            assert reply.ecq_wake == (self.in_flight is not None or (self.listens and bool(self.pending)))
        self.connected = True

    @rule(qos=st.sampled_from([None, 0, 1, 2]))
    def subscribe(self, qos: int | None) -> None:
        self.listens = bool(qos)
        if qos == 0:
            self.let_go()  # a message published next to it is not acknowledged
        reply = self.run(ecq.Subscription(qos, claim=bool(qos)))
        if qos:
            self.check_claim(reply)

    @rule()
    def disconnect(self) -> None:
        self.now += 10
        self.run(UpdatePresence(Disconnected(ID, self.now, self.since, None, "closed"), claim=False), fanout_queue(ID))
        self.connected = False

    @precondition(lambda self: self.here)
    @rule()
    def heartbeat(self) -> None:
        self.now += 10
        overdue = self.in_flight is not None and self.deadline <= self.now
        reply = self.run(UpdatePresence(PresenceSign(), claim=True), fanout_queue(ID))
        assert reply.next.word is ClaimWord.IDLE, "the fanout queue of the same vehicle is independent"
        assert reply.ecq_released == (self.in_flight if overdue else None)
        if overdue:
            self.let_go()
        assert reply.ecq_wake == (self.in_flight is None and bool(self.pending))

    @invariant()
    def what_is_recorded_is_what_redis_holds(self) -> None:
        if not hasattr(self, "appends"):
            return
        state = self.state()
        found: Any = self.redis.hgetall(LIVE)
        live = {key: seq for key, seq in state.live.items() if seq not in state.expired}
        assert {key.decode(): int(seq) for key, seq in found.items()} == live
        superseded = {self.in_flight} if self.superseded_in_flight and self.in_flight is not None else set()
        assert set(seqs_of(self.redis, PENDING)) == self.pending | superseded
        assert set(seqs_of(self.redis, DELIVERED)) >= state.acknowledged
        position = self.redis.hget(STATE, "acked_seq")
        assert (None if position is None else int(position)) == state.position == self.position

    @invariant()
    def one_is_in_flight(self) -> None:
        if hasattr(self, "appends"):
            held = self.redis.hget(INFLIGHT, "seq")
            assert (None if held is None else int(held)) == self.in_flight

    @invariant()
    def memory_is_bound_by_live_keys(self) -> None:
        if hasattr(self, "appends"):
            live = set(map(int, self.redis.hvals(LIVE)))
            kept = set(map(int, self.redis.hkeys(MESSAGES)))
            assert kept - live <= ({self.in_flight} if self.in_flight is not None else set())

    def teardown(self) -> None:
        """After the retention, pending messages are not sent: each ends as expired, oldest first."""
        if not hasattr(self, "appends"):
            return
        if self.in_flight is not None:
            self.run(Release(self.in_flight, ReleaseReason.LOST))
        expected, ended = sorted(self.pending), []
        self.now += DAYS.ecq_pending_retention_ms + 60_000
        assert self.run(ListMustEnd()).must_end == (), "0 keeps unfetched messages"
        claim = self.run(Claim(), policy=DAYS)
        while claim.word is ClaimWord.MUST_END:
            (first, *_) = claim.must_end
            assert first.outcome is Outcome.EXPIRED
            ended.append(first.seq)
            record = EcqAck(ID, first.seq, self.now, passed_over=True, outcome=Outcome.EXPIRED)
            claim = self.run(ecq.Acknowledge(record), policy=DAYS).next
        assert claim.word is ClaimWord.IDLE
        assert ended == expected
        if ended:
            assert not self.redis.exists(PENDING, INFLIGHT, LIVE, MESSAGES, ATTEMPTS), "nothing of the messages is left"


@pytest.mark.slow
def test_compacted_queue_verbs_keep_their_promises_in_any_order(redis: Redis) -> None:
    class OnThisRedis(CompactedQueueMachine):
        pass

    OnThisRedis.redis = redis
    checks = settings(
        max_examples=60,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    run_state_machine_as_test(OnThisRedis, settings=checks)
