"""Verbs that end entries. The script that ends an entry also sends its outcome to the recorder."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from manifold.contracts import keys
from manifold.contracts.outcomes import CODES, OF_CODE, Outcome, OutcomeRecord
from manifold.queues._policy import Policy
from manifold.queues._scripts import ECQ_SHARED_CODE, Args, Script
from manifold.queues.verbs.claims import Claim, ClaimReply
from manifold.queues.verbs.verb import Recorded, Verb, number


class ListMustEnd(Claim, frozen=True):
    """List the pending and parked entries that may no longer be sent. Changes nothing."""

    script = Script("must_end")
    ecq_script = Script("ecq_must_end", prepends=ECQ_SHARED_CODE)


class ReadEntryReply(NamedTuple):
    """The state of an entry."""

    published_ms: int | None  # Unix ms; None if the entry is not in flight
    attempts: int | None  # None if unknown
    ended: Outcome | None  # None if the entry has not ended
    sent: bool  # whether an earlier publish may still be under way; while it may, only an acknowledgement ends the entry


class ReadEntry(Verb, frozen=True):
    """Read the state of an entry that is about to end. Changes nothing."""

    seq: int
    script = Script("read_entry")

    @staticmethod
    def read(raw: Any) -> ReadEntryReply:
        published_ms, attempts, code, sent = raw
        ended = None if code == b"" else OF_CODE.get(int(code))
        return ReadEntryReply(number(published_ms), number(attempts), ended, sent == b"1")


class AckReply(NamedTuple):
    """`word` is `ended`, `known` (the entry had ended before), `unknown` (it ends, but was not in the queue) or `sent`.

    `sent` says that a publish of the entry may still be under way, so that the entry cannot fail or be withdrawn yet.
    """

    word: str
    published_ms: int | None  # Unix ms; None if unknown
    attempts: int | None  # None if unknown
    next: ClaimReply


# Outcomes that an entry cannot get while a publish of it may be under way; as in ack.lua.
_ONLY_IF_NOT_SENT = (Outcome.FAILED, Outcome.WITHDRAWN)


class Ack(Verb, frozen=True):
    """End the entry of `record`, send the outcome of `record` to the recorder, and claim the next entry.

    The entry may be in any state. If `record` has no attempts, the queue fills in attempts and publish time. An entry that had
    ended before keeps its outcome, and nothing is sent. As an exception, a withdrawn entry becomes delivered if the vehicle
    acknowledges it. Without `sends_outcome`, nothing is sent to the recorder, which already has the outcome.
    """

    record: OutcomeRecord
    request_id: str = ""  # with compaction, the key by which a later entry would have replaced this one
    claim: bool = True
    sends_outcome: bool = True
    script = Script("ack")

    def record_first(self) -> Sequence[Recorded]:
        """The outcome, unless the entry has ended or cannot end yet."""
        if not self.sends_outcome:
            return ()

        def complete(entry: ReadEntryReply) -> tuple[OutcomeRecord | None, Verb]:
            outcome = self.record.outcome
            is_late_delivery = outcome is Outcome.DELIVERED and entry.ended is Outcome.WITHDRAWN
            keeps_outcome = entry.ended is not None and not is_late_delivery
            cannot_end = entry.sent and outcome in _ONLY_IF_NOT_SENT
            record = None if keeps_outcome or cannot_end else _completed(self.record, entry)
            return record, replace(self, sends_outcome=False)

        return (Recorded(ReadEntry(self.record.seq), complete),)

    def command(self, policy: Policy, owner: str, now_ms: int) -> Args:
        record = self.record
        compaction_key = self.request_id if policy.compaction else ""
        args = (record.seq, compaction_key, "1" if self.claim else "0", CODES[record.outcome])
        if not self.sends_outcome:
            return self._call(policy, owner, now_ms, *args)
        published_ms = "" if record.dispatched_ms is None else record.dispatched_ms
        attempts = "" if record.attempts is None else record.attempts
        outcome_args = (record.to_wire_prefix(), published_ms, attempts)
        return self._call(policy, owner, now_ms, *args, *outcome_args, others=(keys.OUTCOMES,))

    @staticmethod
    def read(raw: Any) -> AckReply:
        word, published_ms, attempts, *claim = raw
        return AckReply(word.decode(), number(published_ms), number(attempts), Claim.read(claim))


class EndReply(NamedTuple):
    """The outcome of each entry, in the order of the records; None for an entry in flight, which is not sent again."""

    outcomes: tuple[Outcome | None, ...]
    next: ClaimReply


class End(Verb, frozen=True):
    """End entries that may no longer be sent, send the outcomes of those that end now, and claim the next entry.

    An entry in flight gets its outcome at its deadline, unless it is acknowledged. Without `sends_outcome`, nothing is sent to
    the recorder, which already has the outcomes.
    """

    records: tuple[OutcomeRecord, ...]
    claim: bool = True
    sends_outcome: bool = True
    script = Script("end")

    def record_first(self) -> Sequence[Recorded]:
        """The outcomes, except those of entries that have ended or are in flight."""
        if not self.sends_outcome:
            return ()
        return [Recorded(ReadEntry(record.seq), partial(self._complete, record)) for record in self.records]

    def command(self, policy: Policy, owner: str, now_ms: int) -> Args:
        args: list[Any] = ["1" if self.claim else "0"]
        for record in self.records:
            args += (record.seq, CODES[record.outcome], record.to_wire() if self.sends_outcome else b"")
        others = (keys.OUTCOMES,) if self.sends_outcome else ()
        return self._call(policy, owner, now_ms, *args, others=others)

    @staticmethod
    def read(raw: Any) -> EndReply:
        codes, *claim = raw
        outcomes = tuple(OF_CODE.get(int(code)) for code in codes)  # no outcome has the code 0, which means in flight
        return EndReply(outcomes, Claim.read(claim))

    def _complete(self, record: OutcomeRecord, entry: ReadEntryReply) -> tuple[OutcomeRecord | None, Verb]:
        """Return the completed record, or None if its entry does not end now, and this verb without outcomes."""
        is_in_flight = entry.published_ms is not None or entry.sent
        ends_now = entry.ended is None and not is_in_flight
        return _completed(record, entry) if ends_now else None, replace(self, sends_outcome=False)


def _completed(record: OutcomeRecord, entry: ReadEntryReply) -> OutcomeRecord:
    """Fill in attempts and publish time as ack.lua does, if the record has no attempts."""
    if record.attempts is not None:
        return record
    return replace(record, attempts=entry.attempts, dispatched_ms=entry.published_ms or record.dispatched_ms)
