"""Metrics and log lines for the decision about each message."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import structlog

from manifold.signals import _metrics
from manifold.signals._disposition import Disposition
from manifold.signals._received import Received
from manifold.signals._stated_identity import StatedIdentity, stated_identity_of

log = structlog.get_logger(__name__)


def log_outcomes(disposition: Disposition, group: Sequence[Received], *, log_accepted: float = 1.0) -> None:
    """Count and log the messages of an acknowledged group.

    Copies of dead letters that were already recorded have no outcome and no log line, but count for duration, size and bytes.
    `log_accepted` is the share of accepted messages that are logged, from 0 to 1; refused and retried messages are all logged.
    """
    now = datetime.now(UTC)
    for received in group:
        _metrics.PROCESSING_SECONDS.observe(max(0.0, (now - received.at).total_seconds()))
    _metrics.GROUP_MESSAGES.observe(len(group))
    _metrics.BYTES.inc(sum(len(received.body) for received in group))
    statuses = sum(1 for message in disposition.claimed if message.received.is_status)
    outcomes = {
        "processed": len(disposition.claimed) - statuses,
        "status": statuses,
        "duplicate": len(disposition.duplicates),
        "refused": len(disposition.refused),
        "retried": len(disposition.to_retry),
        "expired": len(disposition.expired),
    }
    for outcome, count in outcomes.items():
        if count:
            _metrics.MESSAGES.labels(outcome).inc(count)
    for refused in disposition.refused:
        _metrics.ERRORS.labels(refused.refusal.code.value).inc()
    _log_all(disposition, now, log_accepted)


def _log_all(disposition: Disposition, now: datetime, log_accepted: float) -> None:
    """Log one line per message, with its outcome as `status`, device and correlation id.

    For refused and retried messages, these ids are not authenticated.
    """
    for status, refused_messages in (("refused", disposition.refused), ("expired", disposition.expired)):
        for refused in refused_messages:
            refusal = refused.refusal
            why = {"code": refusal.code.value, "reason": refusal.message, "details": refusal.details}
            log.warning("message settled", status=status, **_common_fields(refused.received, now), **_ids(refused.stated), **why)
    for received, reason in disposition.to_retry:
        fields = _common_fields(received, now) | {"retry_count": received.retry_count}
        log.warning("message settled", status="retried", **fields, **_ids(stated_identity_of(received)), reason=reason)
    for status, messages in (("processed", disposition.claimed), ("duplicate", disposition.duplicates)):
        for message in messages:
            if random.random() < log_accepted:
                ids = {"device_id": message.parsed.device_id, "correlation_id": message.correlation_id}
                log.info("message settled", status=status, **_common_fields(message.received, now), **ids)


def _ids(stated: StatedIdentity) -> dict[str, str | None]:
    """Return the log fields of the ids that a message states; several device ids are joined by commas."""
    return {"device_id": ",".join(stated.devices) or None, "correlation_id": stated.correlation_id}


def _common_fields(received: Received, now: datetime) -> dict[str, Any]:
    """Return the log fields of every message; `duration_ms` is the time from its delivery to `now`."""
    return {"queue": received.queue, "duration_ms": round(max(0.0, (now - received.at).total_seconds()) * 1000, 1)}
