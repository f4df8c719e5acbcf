"""Measures the lake's lag behind the archive, and reads the latest audit results.

The recorder does both because a paused DAG raises no alert of its own.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

from pyiceberg.catalog import Catalog

from manifold.contracts.tables import RuleOutcome, Severity
from manifold.lake.freshness import oldest_not_in_lake
from manifold.lake.quality import newest_results
from manifold.recorder import _metrics
from manifold.recorder._lake import Lake
from manifold.runtime.alert import alert
from manifold.settings import Settings

CHECK_INTERVAL_S = 300.0  # long, because each check lists several days of the archive


class Freshness:
    """Reports the lag as a metric, and alerts each time it begins to exceed `lake_late_seconds`."""

    def __init__(self, settings: Settings, lake: Lake, *, interval_s: float = CHECK_INTERVAL_S) -> None:
        self._settings, self._lake, self._interval_s = settings, lake, interval_s
        self._is_late = False

    async def watch(self) -> None:
        """Check at intervals until cancelled."""
        while True:
            await self.check(datetime.now(UTC))
            await asyncio.sleep(self._interval_s)

    async def check(self, now: datetime) -> None:
        """Check once. If the archive or the lake cannot be read, the metrics keep their values."""
        measured = await self._lake.ask(partial(self._measure, now=now), None)
        if measured is None:
            return
        oldest, broken_severities = measured
        for severity in Severity:
            _metrics.LAKE_BROKEN_RULES.labels(severity).set(broken_severities.count(severity))
        age_s = max(0.0, (now - oldest).total_seconds()) if oldest else 0.0  # None: the lake has every segment
        _metrics.LAKE_AGE_SECONDS.set(age_s)
        was_late = self._is_late
        self._is_late = age_s > self._settings.lake_late_seconds
        if self._is_late and not was_late and oldest is not None:
            text = (
                f"the lake is {timedelta(seconds=round(age_s))} behind: no run has ingested what was recorded at "
                f"{oldest:%Y-%m-%dT%H:%M:%SZ}; see that ingest_archives is not paused and does not fail, or run `manifold ingest`"
            )
            details = {"oldest": oldest.isoformat(), "age_seconds": round(age_s)}
            await asyncio.to_thread(alert, self._settings, "lake behind", text, **details)

    def _measure(self, catalog: Catalog, now: datetime) -> tuple[datetime | None, list[str]]:
        """Measure the lag of the lake.

        Returns the start of the oldest segment that is not in the lake (None if all are), and the severity of each broken rule.
        """
        results = newest_results(catalog, 1, now=now)
        broken_severities = [row["severity"] for row in results if row["outcome"] == RuleOutcome.BROKEN]
        return oldest_not_in_lake(catalog, self._settings, now), broken_severities
