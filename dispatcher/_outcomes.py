"""Outcomes of entries that must not be sent any more."""

from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.queues.verbs.claims import MustEnd

WHY = {Outcome.EXPIRED: "its retention has passed", Outcome.CANCELLED: "cancelled while it was in flight, and not acknowledged"}


def forced(owner: str, entry: MustEnd, now_ms: int) -> OutcomeRecord:
    """The record for the recorder of an entry that must not be sent any more."""
    return OutcomeRecord(owner, entry.seq, entry.outcome, now_ms, attempts=entry.attempts, reason=WHY.get(entry.outcome))
