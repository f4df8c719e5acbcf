"""Alerts: one JSON POST to the setting `alert_url`, for events that need attention now.

The JSON has `text`, which chat services display, `what` (the kind of event in a word or two), and further fields.
"""

import logging

import httpx

from manifold.runtime.tls import outside_context
from manifold.settings import Settings

TIMEOUT_S = 10

log = logging.getLogger(__name__)


def alert(settings: Settings, what: str, text: str, **more: object) -> bool:
    """Send an alert, and log its text in any case. Return whether it was sent: not if `alert_url` is empty or fails."""
    url = settings.alert_url.get_secret_value()
    if not url:
        log.warning("%s (alert not sent: MANIFOLD_ALERT_URL is empty)", text)
        return False
    try:
        body = {"text": text, "what": what, **more}
        response = httpx.post(url, json=body, timeout=TIMEOUT_S, verify=outside_context(settings))
        response.raise_for_status()
    except (OSError, httpx.HTTPError) as exc:
        log.warning("%s (alert not sent: MANIFOLD_ALERT_URL answers %s)", text, type(exc).__name__)
        return False
    log.warning("%s (alert sent)", text)
    return True
