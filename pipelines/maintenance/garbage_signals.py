"""Removes signals past `signals_retention_days`, by whole days of receipt. By default, signals are kept."""

from datetime import datetime

from pyiceberg.catalog import Catalog

from manifold.contracts.tables import SIGNAL_TABLES
from manifold.lake.catalog import has_signals
from manifold.settings import Settings
from pipelines.maintenance.expire_partitions import OldDays, midnight_before
from pipelines.maintenance.garbage_run import Removal

KEPT = "MANIFOLD_SIGNALS_RETENTION_DAYS is 0: signals are kept"
OLD_SIGNALS = OldDays("signals", SIGNAL_TABLES, counted=SIGNAL_TABLES, kept_because=KEPT)


def signals_cutoff(settings: Settings, now: datetime) -> datetime | None:
    """The midnight before which signals may be removed; None if signals are kept."""
    return midnight_before(now, settings.signals_retention_days) if settings.signals_retention_days else None


def drop_signals(catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool) -> Removal:
    """Remove the days past the retention; return the number of rows removed from all signal tables. `dry_run` only counts.

    Raises:
        Overtaken: other runs kept being published first; the tables are unchanged, run it again.
    """
    cutoff = signals_cutoff(settings, now)
    if cutoff is not None and not has_signals(catalog):  # the lake has no tables of signals
        return Removal()
    return OLD_SIGNALS.drop(catalog, cutoff, now=now, dry_run=dry_run)
