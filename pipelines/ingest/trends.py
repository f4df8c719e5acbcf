"""Redraws the trend charts after a run if `quality_results` has changed, so that no run waits for them. No Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import structlog

from manifold.contracts.errors import Permanent
from manifold.lake.catalog import open_catalog
from manifold.lake.quality import newest_results, version_of_results
from manifold.lake.reports import drawn_version, note_drawn, open_reports
from manifold.settings import Settings
from pipelines.ingest.report_states import without_overtaken

JUDGEMENTS = 100  # maximum in a chart: each is a file to read, and more bars would be illegible

log = structlog.get_logger(__name__)


def draw_trends(settings: Settings, *, now: datetime) -> bool:
    """Redraw the page unless it shows the current version of the table; return whether it was redrawn.

    On an error the page stays as it was, and the next run redraws it.
    """
    try:
        catalog, reports = open_catalog(settings), open_reports(settings)
        version = version_of_results(catalog)
        if not version or drawn_version(reports) == version:
            return False
        from expectations import publish_trends  # imports PySpark, a second that most checks of an archive can save

        rows = newest_results(catalog, min(settings.report_max, JUDGEMENTS), now=now)
        publish_trends(without_overtaken(catalog, rows), reports)
        note_drawn(reports, version)
    except Exception as exc:  # noqa: BLE001  # the run is audited and published; a chart is no reason to fail it
        log.warning("trend charts not redrawn; the next run retries", reason=" ".join(str(exc).split())[:300])
        return False
    return True


@contextmanager
def refresh_trends(settings: Settings) -> Iterator[None]:
    """Redraw the charts when the block ends, with or without an error: they matter most for a run that is held back."""
    try:
        yield
    finally:
        draw_trends(settings, now=datetime.now(UTC))


@contextmanager
def trends_if_held_back(settings: Settings) -> Iterator[None]:
    """Redraw the charts if the block fails for good; after a run that passes, a later stage does so."""
    try:
        yield
    except Permanent:
        draw_trends(settings, now=datetime.now(UTC))
        raise
