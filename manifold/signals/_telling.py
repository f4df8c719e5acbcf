"""Counts and logs the decision about each message."""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime

import structlog

from manifold.signals import _metrics
from manifold.signals._fate import Fate
from manifold.signals._received import Received

log, _stdlib = structlog.get_logger(__name__), logging.getLogger(__name__)


def tell(fate: Fate, group: Sequence[Received]) -> None:
    """The group is acknowledged."""
    now = datetime.now(UTC)
    for received in group:
        _metrics.PROCESSING_SECONDS.observe(max(0.0, (now - received.at).total_seconds()))
    _metrics.GROUP_MESSAGES.observe(len(group))
    _metrics.BYTES.inc(sum(len(received.body) for received in group))
    statuses = sum(1 for message in fate.taken if message.received.is_status)
    outcomes = {
        "processed": len(fate.taken) - statuses,
        "status": statuses,
        "duplicate": len(fate.duplicates),
        "refused": len(fate.refused),
        "retried": len(fate.later),
        "expired": len(fate.expired),
    }
    for outcome, count in outcomes.items():
        if count:
            _metrics.MESSAGES.labels(outcome).inc(count)
    for one in fate.refused:
        _metrics.ERRORS.labels(one.refusal.code.value).inc()
    _log_all(fate, now)


def _log_all(fate: Fate, now: datetime) -> None:
    """One log line for each message, with its device and correlation id; of a refused message, those that it claims."""
    for status, some in (("refused", fate.refused), ("expired", fate.expired)):
        for one in some:
            named = {"device_id": ",".join(one.claims.devices) or None, "correlation_id": one.claims.correlation_id}
            why = {"code": one.refusal.code.value, "reason": one.refusal.message}
            _log(log.warning, one.received, status, now, **(named | why))
    for received, reason in fate.later:
        about = {"correlation_id": received.correlation_id, "retry_count": received.retry_count}
        _log(log.warning, received, "retried", now, reason=reason, **about)
    if not _stdlib.isEnabledFor(logging.DEBUG):  # which costs more to find out for each message
        return
    for status, messages in (("processed", fate.taken), ("duplicate", fate.duplicates)):
        for message in messages:
            named = {"device_id": message.said.device_id, "correlation_id": message.correlation_id}
            _log(log.debug, message.received, status, now, **named)


def _log(tell_it: object, received: Received, status: str, now: datetime, **more: object) -> None:
    duration_ms = round((now - received.at).total_seconds() * 1000, 1)
    assert callable(tell_it)
    tell_it("message", status=status, queue=received.queue, duration_ms=duration_ms, **more)
