"""Ask the recorder to close its open segments, so that an ingest sees everything accepted so far."""

import httpx
import structlog

from contracts.settings import Settings

TIMEOUT_S = 60.0  # a segment of many megabytes is written first

log = structlog.get_logger(__name__)


def flush(settings: Settings) -> bool:
    """Whether the recorder has closed its open segments. If it cannot be asked, they come with a later ingest."""
    url = f"http://{settings.host}:{settings.recorder_port}/flush"
    try:
        httpx.post(url, timeout=TIMEOUT_S).raise_for_status()
    except httpx.HTTPError as exc:
        log.warning(
            "recorder cannot be asked to close its open segments; they come with a later ingest", url=url, reason=str(exc)
        )
        return False
    return True
