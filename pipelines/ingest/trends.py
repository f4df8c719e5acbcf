"""Redraws the trend charts if `quality_results` has changed. This happens after a run, so that no run waits for it. No Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import structlog

from manifold.contracts.errors import Permanent
from manifold.lake.catalog import open_catalog
from manifold.lake.quality import newest_results, version_of_results
from manifold.lake.reports import charts_version, open_reports, record_charts_version
from manifold.settings import Settings
from pipelines.ingest.report_states import without_overtaken

MAX_AUDITS = 100  # audits in a chart, one bar each: the result of each audit is a file to read, and more bars are illegible

log = structlog.get_logger(__name__)


def draw_trends(settings: Settings, *, now: datetime) -> bool:
    """Redraw the page with the charts unless it shows the current version of `quality_results`; return whether it was redrawn.

    If an error occurs, the page stays unchanged, and the next run redraws it.
    """
    try:
        catalog, reports = open_catalog(settings), open_reports(settings)
        version = version_of_results(catalog)
        if not version or charts_version(reports) == version:
            return False  # the lake has no tables yet, or the page is up to date
        from expectations import publish_trends  # imported here because it imports PySpark, which takes a second

        rows = newest_results(catalog, min(settings.report_max, MAX_AUDITS), now=now)
        publish_trends(without_overtaken(catalog, rows), reports)
        record_charts_version(reports, version)
    except Exception as exc:  # noqa: BLE001  # the run is audited and published; a chart is no reason to fail it
        log.warning("trend charts of quality not redrawn; the next run retries", reason=" ".join(str(exc).split())[:300])
        return False
    return True


@contextmanager
def refresh_trends(settings: Settings) -> Iterator[None]:
    """Redraw the charts when the block ends, even with an error: the charts matter most when a run is held back."""
    try:
        yield
    finally:
        draw_trends(settings, now=datetime.now(UTC))


@contextmanager
def trends_if_held_back(settings: Settings) -> Iterator[None]:
    """Redraw the charts if the block raises `Permanent`. After a run that passes, a later stage redraws them."""
    try:
        yield
    except Permanent:
        draw_trends(settings, now=datetime.now(UTC))
        raise
