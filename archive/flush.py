"""Ask the recorders to close their open segments, so that an ingest, or an answer, sees everything accepted so far."""

from http.client import HTTPException
from urllib.request import Request, urlopen

from contracts.settings import Settings

TIMEOUT_S = 60.0  # a segment of many megabytes is written first


def flush(settings: Settings) -> bool:
    """Whether every recorder has closed its open segments; those that cannot be asked are logged."""
    failures = close_segments(settings)
    if failures:
        import structlog  # here: answers that people wait for use the other function, and loading it takes them long

        log = structlog.get_logger(__name__)
        for url, reason in failures.items():
            log.warning(
                "recorder cannot be asked to close its open segments; they come with a later ingest", url=url, reason=reason
            )
    return not failures


def close_segments(settings: Settings) -> dict[str, str]:
    """Ask every recorder, whatever another one answers. Why not, of each that has not closed them, by its URL."""
    asked = {url: _ask(f"{url}/flush", settings.bearer) for url in settings.recorders}
    return {url: reason for url, reason in asked.items() if reason is not None}


def _ask(url: str, headers: dict[str, str]) -> str | None:
    try:
        with urlopen(Request(url, method="POST", headers=headers), timeout=TIMEOUT_S):  # noqa: S310  # settings: http(s)
            return None
    except (OSError, HTTPException) as exc:  # also what urllib raises
        return str(exc)
