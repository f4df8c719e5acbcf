"""Invariants of the queues: a state machine that runs every verb against a real Redis and a simple model."""

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.events import Connected, Disconnected, PresenceSign, Subscribed
from manifold.contracts.names import Owner
from manifold.contracts.outcomes import OF_CODE, Outcome, OutcomeRecord
from manifold.contracts.seq import EPOCH_MS, seq_of, unix_ms_of
from manifold.queues import is_cluster
from manifold.queues.verbs.claims import Claim, ClaimWord, Park, Release, ReleaseReason, UpdatePresence
from manifold.queues.verbs.ends import Ack, End, EndReply
from manifold.queues.verbs.fills import Enqueue, Unpark
from manifold.queues.verbs.verb import Verb
from tests.manifold.queues.clocked import ClockedBatch
from tests.manifold.queues.conftest import POLICY, seqs_of

VIN = Owner("VIN-1")
START_MS = EPOCH_MS + 200_000_000_000
NOT_ACKNOWLEDGED = st.sampled_from([Outcome.EXPIRED, Outcome.CANCELLED, Outcome.WITHDRAWN])
SEQS = st.integers(0, 40).map(lambda n: seq_of(START_MS + n // 4, 0, n % 4))


class Model:
    """The promises of the queues as a simple model."""

    def __init__(self) -> None:
        self.pending: set[int] = set()
        self.parked: set[int] = set()
        self.done: dict[int, Outcome] = {}
        self.recorded: list[tuple[int, Outcome]] = []  # outcomes recorded, one per entry
        self.marked: dict[int, Outcome] = {}  # in flight or released since: they end this way instead of being resent
        self.inflight: int | None = None
        self.deadline, self.published_at = 0, 0
        self.sent, self.sent_until = 0, 0  # released while its publish may be under way: nothing overtakes it until then
        self.attempts: dict[int, int] = {}
        self.connected, self.heard, self.since = "no", 0, START_MS
        self.listens, self.subscribed_at = True, 0
        self.expiry: int | None = None  # unknown for a connection whose start was not seen
        self.session_until = 0

    def here(self, now: int) -> str:
        if self.connected == "no" or (self.connected == "heard" and self.heard + POLICY.presence_ms < now):
            return "absent"
        return "here" if self.listens else "unsubscribed"

    def wait(self, attempt: int) -> int:
        waits = POLICY.waits_ms
        return waits[min(attempt, len(waits)) - 1]

    def claim(self, now: int) -> tuple[str, int]:
        if self.inflight is not None:
            return "busy", self.inflight
        if not self.pending:
            return "idle", 0
        first = self.waited_for(now) or min(self.pending)
        if self.verdict(first, now) is not None:
            return ("busy", first) if self.waited_for(now) else ("must_end", 0)
        if (where := self.here(now)) != "here":
            return where, 0
        self.inflight = first
        self.attempts[self.inflight] = self.attempts.get(self.inflight, 0) + 1
        self.deadline, self.published_at = now + self.wait(self.attempts[self.inflight]), now
        return "claimed", self.inflight

    def waited_for(self, now: int) -> int | None:
        return self.sent if self.sent in self.pending and self.sent_until > now else None

    def verdict(self, seq: int, now: int) -> Outcome | None:
        if seq in self.marked:
            return self.marked[seq]
        return Outcome.EXPIRED if unix_ms_of(seq) + POLICY.retention_ms < now else None

    def must_end(self, now: int) -> list[tuple[int, Outcome]]:
        found = [(seq, self.verdict(seq, now)) for seq in sorted(self.pending) if seq != self.waited_for(now)]
        return [(seq, how) for seq, how in takewhile(lambda one: one[1] is not None, found) if how is not None]

    def finish(self, seq: int, how: Outcome) -> None:
        is_late = self.done.get(seq) is Outcome.WITHDRAWN and how is Outcome.DELIVERED
        if is_late:
            del self.done[seq]
        if seq not in self.done:
            self.recorded.append((seq, how))
        self.pending.discard(seq)
        self.parked.discard(seq)
        self.done.setdefault(seq, how)
        self.attempts.pop(seq, None)
        self.marked.pop(seq, None)

    def let_go(self, now: int = 0) -> int | None:
        released, self.inflight = self.inflight, None
        if now and released is not None and self.published_at + self.wait(1) > now:
            self.sent, self.sent_until = released, self.published_at + self.wait(1)
        return released


class QueueMachine(RuleBasedStateMachine):
    """Run verbs in any order and compare each reply with that of the model."""

    redis: Redis
    seqs = Bundle("seqs")

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        self.model, self.now = Model(), START_MS
        self.seen_a_connection = False
        self.sends_outcomes = not is_cluster(self.redis)  # beyond a cluster's scripts, the batch records them first

    def run(self, verb: Verb) -> Any:
        batch = ClockedBatch(self.redis, POLICY)
        batch.add(VIN, verb, self.now)
        (reply,) = batch.run()
        return reply

    def end_as(self, ends: list[tuple[int, Outcome]], *, claim_next: bool) -> EndReply:
        records = [OutcomeRecord(VIN, seq, how, self.now) for seq, how in ends]
        reply: EndReply = self.run(End(tuple(records), claim=claim_next, sends_outcome=self.sends_outcomes))
        return reply

    def check_claim(self, claim: Any) -> None:
        assert (claim.word.value, claim.seq) == self.model.claim(self.now)
        if claim.word is ClaimWord.CLAIMED:
            assert claim.attempts == self.model.attempts[claim.seq]
            assert claim.deadline_ms == self.model.deadline
        elif claim.word is ClaimWord.BUSY and self.model.inflight is None:
            assert claim.deadline_ms == self.model.sent_until
        if claim.word is ClaimWord.CLAIMED:
            assert self.model.verdict(claim.seq, self.now) is None
        if claim.word is ClaimWord.MUST_END:
            assert [(each.seq, each.outcome) for each in claim.must_end] == self.model.must_end(self.now)
            assert [each.attempts for each in claim.must_end] == [self.model.attempts.get(each.seq, 0) for each in claim.must_end]

    @rule(ms=st.integers(0, 700_000) | st.just(POLICY.retention_ms // 3))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(target=seqs, offered=st.lists(SEQS, min_size=1, max_size=5))
    def enqueue(self, offered: list[int]) -> int:
        """Enqueue, also repeated, late, and after the entry has ended."""
        m = self.model
        new = {seq for seq in offered if seq not in m.pending | m.parked | m.done.keys()}
        m.pending |= new
        reply = self.run(Enqueue([(seq, "r") for seq in offered]))
        assert reply.queued == len(new)
        ready = bool(m.pending) and m.inflight is None and m.here(self.now) == "here"
        assert reply.word == ("ready" if ready else "queued" if new else "known")
        return offered[0]

    @rule()
    def claim(self) -> None:
        self.check_claim(self.run(Claim()))

    @rule(
        seq=seqs | SEQS, claim_next=st.booleans(), outcome=st.sampled_from([Outcome.DELIVERED, Outcome.FAILED, Outcome.WITHDRAWN])
    )
    def ack(self, seq: int, claim_next: bool, outcome: Outcome) -> None:
        """Acknowledge or give up the entry in flight, a released one, a repeated one, a withdrawn one, or one never queued."""
        m = self.model
        word = "ended" if seq in m.pending | m.parked else "known" if seq in m.done else "unknown"
        if outcome is Outcome.DELIVERED and m.done.get(seq) is Outcome.WITHDRAWN:
            word = "unknown"  # and recorded as a second end
        if outcome is not Outcome.DELIVERED and m.waited_for(self.now) == seq:
            word = "sent"
            if m.inflight == seq:
                m.attempts[seq] -= 1
        if m.inflight == seq:
            m.inflight = None
        if word != "sent":
            m.finish(seq, outcome)
        record = OutcomeRecord(VIN, seq, outcome, self.now)
        reply = self.run(Ack(record, claim=claim_next, sends_outcome=self.sends_outcomes))
        assert reply.word == word
        if word == "sent":
            assert (reply.next.word, reply.next.seq, reply.next.deadline_ms) == (ClaimWord.BUSY, seq, m.sent_until)
        elif claim_next:
            self.check_claim(reply.next)

    @rule(ends=st.lists(st.tuples(seqs | SEQS, NOT_ACKNOWLEDGED), min_size=1, max_size=3), claim_next=st.booleans())
    def end(self, ends: list[tuple[int, Outcome]], claim_next: bool) -> None:
        """End entries: one in flight stays, and the first outcome of an entry is final."""
        m = self.model
        for seq, how in ends:
            if seq in (m.inflight, m.waited_for(self.now)):
                m.marked[seq] = how
            else:
                m.finish(seq, how)
        reply = self.end_as(ends, claim_next=claim_next)
        assert reply.outcomes == tuple(m.done.get(seq) for seq, _ in ends)
        if claim_next:
            self.check_claim(reply.next)

    @rule()
    def end_what_is_over(self) -> None:
        """End overdue entries as a dispatcher does; afterwards none is overdue."""
        m = self.model
        if m.inflight is None and not m.waited_for(self.now) and (must_end := m.must_end(self.now)):
            claim = self.run(Claim())
            ends = [(each.seq, each.outcome) for each in claim.must_end]
            assert ends == must_end
            for seq, how in ends:
                m.finish(seq, how)
            reply = self.end_as(ends, claim_next=True)
            self.check_claim(reply.next)
            assert reply.next.word is not ClaimWord.MUST_END

    @rule(seq=seqs, reason=st.sampled_from(ReleaseReason), older=st.sampled_from([None, 0, 1]))
    def release(self, seq: int, reason: ReleaseReason, older: int | None) -> None:
        """Release with any claim, the current claim, or an older one."""
        m = self.model
        claimed_ms = None if older is None else m.published_at - older
        reply = self.run(Release(seq, reason, claimed_ms))
        if m.inflight != seq or older:
            assert reply.word == "stale"
        elif reason is ReleaseReason.DEADLINE and m.deadline > self.now:
            assert reply[:3] == ("early", 0, m.deadline)
        elif reason is ReleaseReason.DEADLINE and m.connected == "no" and m.session_until > self.now:
            m.deadline = m.session_until
            assert reply[:3] == ("early", 0, m.deadline)
        else:
            if reason is ReleaseReason.UNSUBSCRIBED:
                m.attempts[seq] -= 1
                m.listens = m.listens and m.subscribed_at >= m.published_at
            elif reason in (ReleaseReason.UNSENT, ReleaseReason.CUT):
                m.attempts[seq] -= 1
            elif reason is ReleaseReason.DEADLINE and m.connected == "yes" and m.heard + POLICY.presence_ms < self.now:
                m.connected = "heard"  # of the same age
            m.let_go(0 if reason in (ReleaseReason.UNSENT, ReleaseReason.UNSUBSCRIBED) else self.now)
            assert reply[:3] == ("released", m.attempts[seq], 0)

    @rule()
    def heard(self) -> None:
        m = self.model
        overdue = m.inflight if m.inflight is not None and m.deadline <= self.now else None
        if overdue is not None and m.connected == "no" and m.session_until > self.now:
            m.deadline, overdue = self.now + m.wait(m.attempts[overdue]), None
        m.connected = m.connected if m.connected == "yes" else "heard"
        m.heard, m.listens, m.subscribed_at = self.now, True, 0
        if overdue is not None:
            m.let_go(self.now)
        reply = self.run(UpdatePresence(PresenceSign(), True))
        assert (reply.word, reply.released) == ("noted", overdue)
        self.check_claim(reply.next)

    @rule(clean=st.booleans(), expiry=st.sampled_from([0, 1, 300]), ago=st.sampled_from([0, 5_000]))
    def connected(self, clean: bool, expiry: int, ago: int) -> None:
        m, at = self.model, self.now - ago
        reply = self.run(UpdatePresence(Connected(VIN, at, clean, expiry), False))
        if self.seen_a_connection and at < m.since:
            assert reply.word == "stale"
            return
        self.seen_a_connection = True
        session_expired = 0 < m.session_until < at
        m.connected, m.since, m.expiry, m.heard, m.session_until = "yes", at, expiry, self.now, 0
        released = None
        if clean or session_expired:
            m.listens, m.subscribed_at = True, 0
            released = m.let_go(self.now) if m.published_at <= at else None
        elif m.inflight is not None:
            m.deadline = self.now + m.wait(m.attempts[m.inflight])
        assert (reply.word, reply.released) == ("noted", released)

    @rule(own_expiry=st.sampled_from([None, 0, 60]), older=st.booleans(), ago=st.sampled_from([0, 5_000]))
    def disconnected(self, own_expiry: int | None, older: bool, ago: int) -> None:
        m, at = self.model, self.now - ago
        began = m.since - 1 if older else m.since
        reply = self.run(UpdatePresence(Disconnected(VIN, at, began, own_expiry, ""), False))
        if older and self.seen_a_connection:
            assert reply.word == "stale"
            return
        self.seen_a_connection = True
        m.expiry = m.expiry if own_expiry is None else own_expiry
        m.connected, m.session_until, m.since = "no", 0 if m.expiry is None else at + m.expiry * 1000, began
        lost = m.expiry == 0 and m.published_at <= at
        assert (reply.word, reply.released) == ("noted", m.let_go(self.now) if lost else None)

    @rule(on=st.booleans(), claim_next=st.booleans())
    def subscribed(self, on: bool, claim_next: bool) -> None:
        self.model.listens, self.model.subscribed_at = on, self.now if on else 0
        reply = self.run(UpdatePresence(Subscribed(VIN, self.now, "", on), claim_next))
        if claim_next:
            self.check_claim(reply.next)

    @precondition(lambda self: self.model.inflight is not None)
    @rule()
    def park(self) -> None:
        m, seq = self.model, self.model.inflight
        assert seq is not None
        m.attempts[seq] -= 1
        m.let_go()
        reply = self.run(Park(seq, "d"))
        if m.waited_for(self.now) == seq:
            assert (reply.word, reply.seq, reply.deadline_ms) == (ClaimWord.BUSY, seq, m.sent_until)
            return
        m.pending.discard(seq)
        m.parked.add(seq)
        self.check_claim(reply)

    @rule(seq=seqs)
    def park_too_late(self, seq: int) -> None:
        assume(seq != self.model.inflight)
        reply = self.run(Park(seq, "d"))
        if seq in self.model.parked:  # a repetition returns the first claim
            self.check_claim(reply)
        elif self.model.waited_for(self.now) == seq:  # possibly a repetition
            assert (reply.word, reply.seq, reply.deadline_ms) == (ClaimWord.BUSY, seq, self.model.sent_until)
        else:
            assert reply.word is ClaimWord.NONE

    @rule(named=st.lists(seqs, max_size=3))
    def unpark(self, named: list[int]) -> None:
        """Unpark the named entries, or all if none is named."""
        m = self.model
        moved = m.parked & set(named) if named else set(m.parked)
        reply = self.run(Unpark(named))
        ready = (moved or m.pending) and m.inflight is None and m.here(self.now) == "here"
        assert (reply.word, reply.queued) == ("ready" if ready else "queued" if moved else "known", len(moved))
        m.pending |= moved
        m.parked -= moved

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        m = self.model
        assert seqs_of(self.redis, keys.pending(VIN)) == sorted(m.pending)
        assert seqs_of(self.redis, keys.parked(VIN)) == sorted(m.parked)
        held = self.redis.hget(keys.inflight(VIN), "seq")
        assert (None if held is None else int(held)) == m.inflight

    @invariant()
    def what_has_ended_is_remembered_as_it_ended(self) -> None:
        done: Any = self.redis.zrange(keys.done(VIN), 0, -1, withscores=True)
        assert {int(seq): OF_CODE[int(code)] for seq, code in done} == self.model.done

    @invariant()
    def the_recorder_is_told_once_of_each_end_and_of_a_late_delivery(self) -> None:
        records: Any = self.redis.xrange(keys.OUTCOMES)
        told = [OutcomeRecord.from_wire(fields[b"o"]) for _, fields in records]
        assert [(record.seq, record.outcome) for record in told] == (self.model.recorded if self.sends_outcomes else [])

    @invariant()
    def what_is_in_flight_is_pending_and_not_done(self) -> None:
        m = self.model
        assert m.inflight is None or m.inflight in m.pending
        assert not m.done.keys() & (m.pending | m.parked)


@pytest.mark.slow
def test_the_verbs_keep_their_promises_in_any_order(redis: Redis) -> None:
    machine = type("Machine", (QueueMachine,), {"redis": redis})
    check = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        machine, settings=settings(max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=check)
    )


@pytest.fixture(autouse=True)
def _no_leftovers(redis: Redis) -> Iterator[None]:
    yield
    redis.flushall()
