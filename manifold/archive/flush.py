"""Asks the ingress services to close their open segments, so that an ingest or a query sees everything accepted so far."""

import json
from collections.abc import Iterable, Iterator
from http.client import HTTPException
from typing import Any
from urllib.request import Request, urlopen

from manifold.runtime.tls import web_context
from manifold.settings import Settings

TIMEOUT_S = 60.0  # a segment of many megabytes may be written first

Answer = dict[str, Any] | str


def flush(settings: Settings) -> bool:
    """Close every recorder's open segments; returns whether all did. Logs recorders that failed or have no known address."""
    answers = _ask_all(settings)
    failures = _failures(answers)
    problems = [*failures.items(), *(() if failures else _unnamed(settings, answers.values()))]
    if problems:
        import structlog  # here, because interactive commands use the other function, and this import is slow

        log = structlog.get_logger(__name__)
        for which, reason in problems:
            log.warning("flush failed; open segments are ingested later", recorder=which, reason=reason)
    return not problems


def close_segments(settings: Settings) -> dict[str, str]:
    """Ask every recorder, even if another one fails; returns the failures by URL."""
    return _failures(_ask_all(settings))


def close_signal_segments(settings: Settings) -> bool:
    """Ask only the AMQP service, if there is one; returns whether no signals are left in its journal, as far as is known."""
    return all(isinstance(_ask(settings, f"{url}/flush"), dict) for url in _signals_url_if_leased(settings))


def _failures(answers: dict[str, Answer]) -> dict[str, str]:
    return {url: answer for url, answer in answers.items() if isinstance(answer, str)}


def _unnamed(settings: Settings, answers: Iterable[Answer]) -> Iterator[tuple[str, str]]:
    """Yield recorders that hold a number but were not asked, each with the reason; nothing if an asked one hides its number."""
    nodes = [answer.get("node") if isinstance(answer, dict) else None for answer in answers]
    asked = {node for node in nodes if isinstance(node, int)}
    if not all(isinstance(node, int) for node in nodes):
        return
    from manifold.archive.lease_holders import unqueried_holders  # here, because this import is slow

    try:
        found = unqueried_holders(settings, asked)
    except OSError as exc:
        yield "unknown", f"the archive does not say who holds a number: {exc}"
        return
    for node, holder in sorted(found.items()):
        yield f"node={node}", f"{holder.where} holds it, and MANIFOLD_RECORDER_URLS does not name its address"


def _ask_all(settings: Settings) -> dict[str, Answer]:
    """Return each service's reply by URL: a text if it cannot be reached, or has not closed its segments."""
    return {url: _ask(settings, f"{url}/flush") for url in (*settings.recorders, *_signals_url_if_leased(settings))}


def _signals_url_if_leased(settings: Settings) -> list[str]:
    """The AMQP service's URL, in a list, if its node number is leased (for some time after a crash, too); else an empty list."""
    if not settings.with_signals:
        return []
    from manifold.archive.lease_holders import unqueried_holders  # here, because this import is slow

    try:
        all_holders = unqueried_holders(settings, ())
    except OSError:  # the archive is unreachable: ask only the recorders
        return []
    return [settings.signals] if settings.signals_node in all_holders else []


def _ask(settings: Settings, url: str) -> Answer:
    try:
        request = Request(url, method="POST", headers=settings.bearer)  # noqa: S310  # settings: http(s)
        with urlopen(request, timeout=TIMEOUT_S, context=web_context(settings, url)) as answer:  # noqa: S310  # settings: http(s)
            body = json.load(answer)
    except (OSError, HTTPException) as exc:  # urllib's errors are OSErrors
        return str(exc)
    except ValueError:
        return "its answer is not a recorder's"
    return body if isinstance(body, dict) else "its answer is not a recorder's"
