"""How entries end, as records for the recorder."""

from contracts.names import Owner
from contracts.outcomes import Outcome, OutcomeRecord
from dispatcher._events import Unsendable
from queues.verbs.claims import MustEnd
from queues.verbs.ends import Ack

WHY = {Outcome.EXPIRED: "its retention has passed", Outcome.CANCELLED: "cancelled while it was in flight, and not acknowledged"}


def failed(owner: Owner, seq: int, attempts: int, now_ms: int) -> Ack:
    """What follows when the attempts of an entry are used up."""
    why = f"not acknowledged after {attempts} attempts"
    return Ack(OutcomeRecord(owner, seq, Outcome.FAILED, now_ms, attempts=attempts, reason=why))


def unsendable(owner: Owner, event: Unsendable) -> Ack:
    """What follows where the broker does not take an entry's packet."""
    return Ack(OutcomeRecord(owner, event.seq, Outcome.FAILED, event.at_ms, reason=event.why))


def forced(owner: str, entry: MustEnd, now_ms: int) -> OutcomeRecord:
    """The outcome of an entry that must not be sent any more."""
    return OutcomeRecord(owner, entry.seq, entry.outcome, now_ms, attempts=entry.attempts, reason=WHY.get(entry.outcome))
