"""Measures the lake's lag behind the archive and reads its latest audit results: a paused DAG raises no alert of its own."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

from pyiceberg.catalog import Catalog

from manifold.lake.freshness import oldest_not_in_lake
from manifold.lake.quality import newest_results
from manifold.recorder import _metrics
from manifold.recorder._lake import Lake
from manifold.runtime.alert import alert
from manifold.settings import Settings

LOOK_S = 300.0  # each check lists several days of the archive
SEVERITIES = ("error", "warning")


class Freshness:
    """Reports the lag as a metric, and alerts once when it exceeds `lake_late_seconds`, and again only after it was below."""

    def __init__(self, settings: Settings, lake: Lake, *, look_s: float = LOOK_S) -> None:
        self._settings, self._lake, self._look_s = settings, lake, look_s
        self._is_late = False

    async def watch(self) -> None:
        """Check at intervals until cancelled."""
        while True:
            await self.check(datetime.now(UTC))
            await asyncio.sleep(self._look_s)

    async def check(self, now: datetime) -> None:
        """Check once. If the archive or the lake cannot be read, the metrics keep their values."""
        found = await self._lake.ask(partial(self._measure, now=now), None)
        if found is None:
            return
        oldest, broken = found
        for severity in SEVERITIES:
            _metrics.LAKE_BROKEN_RULES.labels(severity).set(broken.count(severity))
        age_s = max(0.0, (now - oldest).total_seconds()) if oldest else 0.0
        _metrics.LAKE_AGE_SECONDS.set(age_s)
        was_late, self._is_late = self._is_late, age_s > self._settings.lake_late_seconds
        if self._is_late and not was_late and oldest is not None:
            text = (
                f"the lake is {timedelta(seconds=round(age_s))} behind: no run has ingested what was recorded at "
                f"{oldest:%Y-%m-%dT%H:%M:%SZ}; see that ingest_archives is not paused and does not fail, or run `manifold ingest`"
            )
            tell = partial(alert, self._settings, "lake behind", text, oldest=oldest.isoformat(), age_seconds=round(age_s))
            await asyncio.to_thread(tell)

    def _measure(self, catalog: Catalog, now: datetime) -> tuple[datetime | None, list[str]]:
        """The start of the oldest segment that is not in the lake (or None), and the severity of each rule broken now."""
        results = newest_results(catalog, 1, now=now)
        return oldest_not_in_lake(catalog, self._settings, now), [
            row["severity"] for row in results if row["outcome"] == "broken"
        ]
