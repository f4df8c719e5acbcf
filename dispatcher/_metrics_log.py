"""Counts the replies to a batch, and logs one line for each entry that was not simply delivered."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable

import structlog

from dispatcher import _metrics
from dispatcher._events import Answered
from manifold.contracts.ecq import EcqAck
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.queue_names import QueueName
from manifold.queues.verbs.claims import ClaimReply, ClaimWord, Park, Release, UpdatePresence
from manifold.queues.verbs.ecq import Acknowledge
from manifold.queues.verbs.ends import Ack, End

RequestIdOf = Callable[[int], str | None]  # returns the request id of a seq, or None if this process does not know it

log = structlog.get_logger(__name__)


def count_answers(answers: Iterable[tuple[QueueName, Answered]], request_id_of: RequestIdOf) -> None:
    """Count and log the replies to the verbs of a batch."""
    delivered = ecq_delivered = redelivered = 0
    outcomes = Counter[Outcome]()
    is_debug = logging.getLogger(__name__).isEnabledFor(logging.DEBUG)
    for queue, answer in answers:
        verb, reply = answer.verb, answer.reply
        if is_debug:
            _log_for_debugging(queue, answer, request_id_of)
        match verb:
            case Ack(record) if reply.word not in ("known", "sent"):  # with these words, the entry did not end now
                outcomes[record.outcome] += 1
                if record.outcome is not Outcome.DELIVERED:
                    _log_outcome(record, request_id_of)
                elif reply.word == "ended":  # otherwise the entry was not in the queue
                    delivered += 1
                    _observe_ack_seconds(record.ended_ms, reply.published_ms)
                    if reply.attempts is not None:
                        _metrics.ATTEMPTS.observe(reply.attempts)
            case Acknowledge(record) if reply.word in ("ended", "unknown"):
                if record.is_expired:
                    outcomes[Outcome.EXPIRED] += 1
                    log.info("message of a compacted queue expired", **_fields_of(record))
                elif record.passed_over:
                    _metrics.ECQ_PASSED_OVER.inc()
                    log.warning("message of a compacted queue passed over", **_fields_of(record))
                else:
                    ecq_delivered += 1
                    _observe_ack_seconds(record.acked_ms, reply.published_ms)
            case End(records):
                for record, outcome in zip(records, reply.outcomes, strict=True):
                    if outcome is record.outcome:  # otherwise the entry is in flight, or had ended before
                        outcomes[record.outcome] += 1
                        _log_outcome(record, request_id_of)
            case Release(seq, reason) if reply.word == "released":
                _metrics.RELEASED.labels(reason.value).inc()
                log.info(
                    "entry pending again",
                    vin=queue,
                    seq=seq,
                    request_id=request_id_of(seq),
                    reason=reason.value,
                    attempts=reply.attempts,
                )
            case UpdatePresence() if reply.released is not None:
                _metrics.RELEASED.labels("session").inc()
                log.info(
                    "entry pending again",
                    vin=queue,
                    seq=reply.released,
                    request_id=request_id_of(reply.released),
                    reason="session",
                )
            case Park(seq, data_id) if _has_parked(seq, reply):
                _metrics.PARKED.inc()
                log.info("entry parked", vin=queue, seq=seq, request_id=request_id_of(seq), data_id=data_id)
        if reply.next.word is ClaimWord.CLAIMED and reply.next.attempts > 1:
            redelivered += 1
    for outcome, count in outcomes.items():
        _metrics.OUTCOMES.labels(outcome.value).inc(count)
    _metrics.DELIVERED.inc(delivered)
    _metrics.ECQ_DELIVERED.inc(ecq_delivered)
    _metrics.REDELIVERIES.inc(redelivered)


def _has_parked(seq: int, reply: ClaimReply) -> bool:
    """Whether the verb `Park` with this reply has parked the entry `seq`."""
    is_unknown = reply.word is ClaimWord.NONE  # neither in flight nor parked
    is_pending_again = reply.word is ClaimWord.BUSY and reply.seq == seq  # because a publish of it may still be under way
    return not is_unknown and not is_pending_again


def _log_outcome(record: OutcomeRecord, request_id_of: RequestIdOf) -> None:
    log.info(
        "entry ended",
        vin=record.vin,
        seq=record.seq,
        request_id=request_id_of(record.seq),
        outcome=record.outcome.value,
        attempts=record.attempts,
        reason=record.reason,
    )


def _fields_of(record: EcqAck) -> dict[str, object]:
    return {"client_id": record.client_id, "seq": record.seq, "reason": record.reason}


def _observe_ack_seconds(acked_ms: int, published_ms: int | None) -> None:
    """Observe the time from publish to acknowledgement, if the publish time is known; the two clocks may differ."""
    if published_ms is not None:
        _metrics.ACK_SECONDS.observe(max(0, acked_ms - published_ms) / 1000)


def _log_for_debugging(queue: QueueName, answer: Answered, request_id_of: RequestIdOf) -> None:
    """Log each reply to `Ack`, which also ends entries that failed or were withdrawn, and each claim."""
    if isinstance(answer.verb, Ack):
        record = answer.verb.record
        ids = {"vin": queue, "seq": record.seq, "request_id": request_id_of(record.seq)}
        log.debug("end of entry requested", **ids, outcome=record.outcome.value, result=answer.reply.word)
    claim: ClaimReply = answer.reply.next
    if claim.word is ClaimWord.CLAIMED:
        log.debug("entry claimed", vin=queue, seq=claim.seq, request_id=request_id_of(claim.seq), attempt=claim.attempts)
