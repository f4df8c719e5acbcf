"""How entries end, as records for the recorder."""

from contracts.names import Owner
from contracts.outcomes import Outcome, OutcomeRecord
from dispatcher._vocabulary import Ack, Effect, RecordOutcome
from queues import AckReply, Over

WHY = {Outcome.EXPIRED: "its retention has passed", Outcome.CANCELLED: "cancelled while it was in flight, and not acknowledged"}


def acknowledged(owner: Owner, ack: Ack, reply: AckReply) -> OutcomeRecord:
    """Also of what had ended before: a crash may have come between end and record, and recording twice is recording once."""
    published_ms = reply.published_ms if reply.published_ms is not None else ack.published_ms
    return OutcomeRecord(owner, ack.seq, ack.outcome, ack.at_ms, published_ms, reply.attempts, ack.reason)


def failed(owner: Owner, seq: int, attempts: int, now_ms: int) -> list[Effect]:
    """What follows when the attempts of an entry are used up: recorded first, then ended."""
    why = f"not acknowledged after {attempts} attempts"
    record = OutcomeRecord(owner, seq, Outcome.FAILED, now_ms, attempts=attempts, reason=why)
    return [RecordOutcome(record), Ack(seq, Outcome.FAILED, now_ms, reason=why)]


def over(owner: str, entry: Over, now_ms: int) -> OutcomeRecord:
    """Of an entry that must not be sent any more."""
    return OutcomeRecord(owner, entry.seq, entry.outcome, now_ms, attempts=entry.attempts, reason=WHY.get(entry.outcome))
