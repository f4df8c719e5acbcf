"""Ask the recorders to close their open segments, so that an ingest sees everything accepted so far."""

import httpx
import structlog

from contracts.settings import Settings

TIMEOUT_S = 60.0  # a segment of many megabytes is written first

log = structlog.get_logger(__name__)


def flush(settings: Settings) -> bool:
    """Whether every recorder has closed its open segments. Those of one that cannot be asked come with a later ingest."""
    # Each is asked, whatever another one answers.
    done = [_has_flushed(f"{url}/flush", settings.bearer) for url in settings.recorders]
    return all(done)


def _has_flushed(url: str, headers: dict[str, str]) -> bool:
    try:
        httpx.post(url, headers=headers, timeout=TIMEOUT_S).raise_for_status()
    except httpx.HTTPError as exc:
        log.warning(
            "recorder cannot be asked to close its open segments; they come with a later ingest", url=url, reason=str(exc)
        )
        return False
    return True
