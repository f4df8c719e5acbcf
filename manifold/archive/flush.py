"""Makes the ingress services close their open segments, so that an ingest or a query sees all messages accepted so far."""

import json
from collections.abc import Iterable, Iterator
from http.client import HTTPException
from typing import Any
from urllib.request import Request, urlopen

from manifold.runtime.tls import web_context
from manifold.settings import Settings

TIMEOUT_S = 60.0  # before it responds, a service may have to write segments of many megabytes

Response = dict[str, Any] | str  # the JSON of a response, or why there is none


def flush(settings: Settings) -> bool:
    """Close the open segments of all ingress services; return whether all services have closed theirs.

    A service that failed, and a recorder whose address is unknown, are logged and count as not closed.
    """
    responses = _post_to_all(settings)
    problems = list(_failures(responses).items())
    if not problems:  # every service has responded, so it is known which recorders were called
        problems = list(_recorders_without_address(settings, responses.values()))
    if problems:
        import structlog  # imported here because it is slow, and interactive commands do not log

        log = structlog.get_logger(__name__)
        for service, reason in problems:
            log.warning("open segments not closed; their messages are ingested later", service=service, reason=reason)
    return not problems


def close_segments(settings: Settings) -> dict[str, str]:
    """Close the open segments of all ingress services; return the failures, URL → reason.

    If one service fails, the others are still called.
    """
    return _failures(_post_to_all(settings))


def close_signal_segments(settings: Settings) -> bool:
    """Close the open segments of the AMQP service; return whether it has closed them.

    Returns True if no AMQP service is known to be running.
    """
    responses = {url: _post(settings, f"{url}/flush") for url in _signals_url_if_leased(settings)}
    return not _failures(responses)


def _failures(responses: dict[str, Response]) -> dict[str, str]:
    """The responses that are the reason of a failure, not the JSON of a service: URL → reason."""
    return {url: response for url, response in responses.items() if isinstance(response, str)}


def _recorders_without_address(settings: Settings, responses: Iterable[Response]) -> Iterator[tuple[str, str]]:
    """Yield the recorders that hold a number but were not called, because the settings lack their address; each with a reason.

    Yields nothing if a called service did not return its number: it may be any of the recorders.
    """
    called_nodes: set[int] = set()
    for response in responses:
        node = response.get("node") if isinstance(response, dict) else None
        if not isinstance(node, int):
            return
        called_nodes.add(node)
    from manifold.archive.lease_holders import current_holders  # imported here because it is slow

    try:
        holders = current_holders(settings, excluding=called_nodes)
    except OSError as exc:
        yield "unknown", f"the archive does not say who holds a number: {exc}"
        return
    for node, holder in sorted(holders.items()):
        yield f"node={node}", f"{holder.where} holds it, and MANIFOLD_RECORDER_URLS does not name its address"


def _post_to_all(settings: Settings) -> dict[str, Response]:
    """Call all ingress services; return URL → response."""
    return {url: _post(settings, f"{url}/flush") for url in (*settings.recorders, *_signals_url_if_leased(settings))}


def _signals_url_if_leased(settings: Settings) -> list[str]:
    """The URL of the AMQP service as the only element of a list; an empty list if the lease of its number has expired.

    After a crash of the service, its number stays leased for some time. If the archive, which has the leases, is unavailable, the
    list is empty.
    """
    if not settings.with_signals:
        return []
    from manifold.archive.lease_holders import current_holders  # imported here because it is slow

    try:
        holders = current_holders(settings)
    except OSError:
        return []
    return [settings.signals] if settings.signals_node in holders else []


def _post(settings: Settings, url: str) -> Response:
    """The JSON object with which the service responds to a POST request; a text with the reason if the request failed."""
    try:
        # The settings allow no other schemes than http and https.
        request = Request(url, method="POST", headers=settings.bearer)  # noqa: S310
        context = web_context(settings, url)
        with urlopen(request, timeout=TIMEOUT_S, context=context) as response:  # noqa: S310
            body = json.load(response)
    except (OSError, HTTPException) as exc:  # urllib's errors are OSErrors
        return str(exc)
    except ValueError:  # not JSON
        return "its answer is not a recorder's"
    return body if isinstance(body, dict) else "its answer is not a recorder's"
