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
    """`published_ms` is None if the entry is not in flight, `attempts` if unknown, `ended` if it has not ended."""

    published_ms: int | None
    attempts: int | None
    ended: Outcome | None
    sent: bool  # an earlier publish may still be under way: until then, only an acknowledgement ends it


class ReadEntry(Verb, frozen=True):
    """Read the state of an entry that is about to end. Changes nothing."""

    seq: int
    script = Script("read_entry")

    @staticmethod
    def read(raw: Any) -> ReadEntryReply:
        return ReadEntryReply(number(raw[0]), number(raw[1]), OF_CODE.get(number(raw[2]) or 0), raw[3] == b"1")


class AckReply(NamedTuple):
    """`word` is `ended`, `known` (it ended before), `unknown`, or `sent` (under way, so it cannot fail yet). None: unknown."""

    word: str
    published_ms: int | None
    attempts: int | None
    next: ClaimReply


_ONLY_IF_NOT_SENT = (Outcome.FAILED, Outcome.WITHDRAWN)  # as in ack.lua


class Ack(Verb, frozen=True):
    """End the entry of this outcome in any state, send the outcome to the recorder, and claim the next entry.

    If `record` has no attempts, the queue fills in attempts and publish time. An entry that ended before keeps its outcome, and
    nothing is sent; but one that was withdrawn is delivered if it is acknowledged. Without `sends_outcome`, the recorder already
    has the outcome.
    """

    record: OutcomeRecord
    request_id: str = ""
    claim: bool = True
    sends_outcome: bool = True
    script = Script("ack")

    def record_first(self) -> Sequence[Recorded]:
        """The outcome, unless the entry has ended."""
        if not self.sends_outcome:
            return ()

        def complete(found: ReadEntryReply) -> tuple[OutcomeRecord | None, Verb]:
            how = self.record.outcome
            was_withdrawn = how is Outcome.DELIVERED and found.ended is Outcome.WITHDRAWN  # its late delivery counts
            stays = (found.ended is not None and not was_withdrawn) or (found.sent and how in _ONLY_IF_NOT_SENT)
            return None if stays else _completed(self.record, found), replace(self, sends_outcome=False)

        return (Recorded(ReadEntry(self.record.seq), complete),)

    def command(self, policy: Policy, owner: str, now_ms: int) -> Args:
        record = self.record
        args = (record.seq, self.request_id if policy.compaction else "", "1" if self.claim else "0", CODES[record.outcome])
        if not self.sends_outcome:
            return self._call(policy, owner, now_ms, *args)
        at = "" if record.dispatched_ms is None else record.dispatched_ms
        times = "" if record.attempts is None else record.attempts
        return self._call(policy, owner, now_ms, *args, record.to_wire_prefix(), at, times, others=(keys.OUTCOMES,))

    @staticmethod
    def read(raw: Any) -> AckReply:
        return AckReply(raw[0].decode(), number(raw[1]), number(raw[2]), Claim.read(raw[3:]))


class EndReply(NamedTuple):
    """The outcome of each entry, in the order of the records; None for one in flight, which is not sent again."""

    outcomes: tuple[Outcome | None, ...]
    next: ClaimReply


class End(Verb, frozen=True):
    """End entries that may no longer be sent, send the outcomes of those that end now, and claim the next entry.

    An entry in flight gets its outcome unless it is acknowledged. `sends_outcome` as for `Ack`.
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
        each = (part for r in self.records for part in (r.seq, CODES[r.outcome], r.to_wire() if self.sends_outcome else b""))
        others = (keys.OUTCOMES,) if self.sends_outcome else ()
        return self._call(policy, owner, now_ms, "1" if self.claim else "0", *each, others=others)

    @staticmethod
    def read(raw: Any) -> EndReply:
        return EndReply(tuple(OF_CODE.get(int(how)) for how in raw[0]), Claim.read(raw[1:]))

    def _complete(self, record: OutcomeRecord, found: ReadEntryReply) -> tuple[OutcomeRecord | None, Verb]:
        ends_now = found.ended is None and found.published_ms is None and not found.sent
        return _completed(record, found) if ends_now else None, replace(self, sends_outcome=False)


def _completed(record: OutcomeRecord, found: ReadEntryReply) -> OutcomeRecord:
    """Complete the record as ack.lua does."""
    if record.attempts is not None:
        return record
    return replace(record, attempts=found.attempts, dispatched_ms=found.published_ms or record.dispatched_ms)
