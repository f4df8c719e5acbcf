"""Outcomes of entries that may no longer be sent."""

from manifold.contracts.ecq import EcqAck
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.queue_names import QueueName, owner_of_queue
from manifold.queues.verbs.claims import MustEnd

WHY = {
    Outcome.EXPIRED: "its retention has passed",
    Outcome.CANCELLED: "cancelled while it was in flight, and not acknowledged",
    Outcome.WITHDRAWN: "withdrawn while it was in flight, and not acknowledged",
}


def forced_outcome(owner: str, entry: MustEnd, now_ms: int) -> OutcomeRecord:
    """Build the outcome record of a fanout queue's entry that may no longer be sent."""
    return OutcomeRecord(owner, entry.seq, entry.outcome, now_ms, attempts=entry.attempts, reason=WHY.get(entry.outcome))


def expiry_record(queue: QueueName, entry: MustEnd, now_ms: int) -> EcqAck:
    """Build the record of a compacted queue's message that is past its retention."""
    owner = owner_of_queue(queue)
    return EcqAck(owner, entry.seq, now_ms, reason=WHY[Outcome.EXPIRED], passed_over=True, outcome=Outcome.EXPIRED)
