"""Alerts: one POST of JSON to the setting `alert_url`, for what should not wait until somebody looks.

The JSON has `text`, which chat services show, `what` (the kind of event in a word or two), and further fields.
"""

import logging

import httpx

from manifold.runtime.tls import outside_context
from manifold.settings import Settings

TIMEOUT_S = 10

log = logging.getLogger(__name__)


def alert(settings: Settings, what: str, text: str, **more: object) -> bool:
    """Send an alert. False: there is no `alert_url`, or it does not answer. The log has the alert in any case."""
    url = settings.alert_url.get_secret_value()
    if not url:
        log.warning("%s (nobody is told: MANIFOLD_ALERT_URL is empty)", text)
        return False
    try:
        said = {"text": text, "what": what, **more}
        httpx.post(url, json=said, timeout=TIMEOUT_S, verify=outside_context(settings)).raise_for_status()
    except (OSError, httpx.HTTPError) as exc:
        log.warning("%s (nobody is told: MANIFOLD_ALERT_URL answers %s)", text, type(exc).__name__)
        return False
    log.warning("%s (told)", text)
    return True
