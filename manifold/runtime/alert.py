"""Alerts: one JSON POST to the setting `alert_url`, for events that need attention now.

The JSON has `text`, which chat services display, `what` (the kind of event in a word or two), and further fields.
"""

import logging

import httpx

from manifold.runtime.request_failure import describe_failure
from manifold.runtime.tls import outside_context
from manifold.settings import Settings

TIMEOUT_S = 10

log = logging.getLogger(__name__)


def alert(settings: Settings, what: str, text: str, **fields: object) -> bool:
    """Send an alert, with these further fields, and log its text in any case.

    Return whether it was sent: it is not if `alert_url` is empty, or if the request fails.
    """
    url = settings.alert_url.get_secret_value()
    if not url:
        log.warning("%s (alert not sent: MANIFOLD_ALERT_URL is empty)", text)
        return False
    try:
        body = {"text": text, "what": what, **fields}
        response = httpx.post(url, json=body, timeout=TIMEOUT_S, verify=outside_context(settings))
        response.raise_for_status()
    except (OSError, httpx.HTTPError, httpx.InvalidURL) as exc:
        log.warning("%s (alert not sent: MANIFOLD_ALERT_URL %s)", text, describe_failure(exc))
        return False
    log.warning("%s (alert sent)", text)
    return True
