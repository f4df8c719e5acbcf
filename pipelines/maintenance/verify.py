"""Compares the queues with the lake, and repairs them: `python -m pipelines verify`.

It may run beside any other job. First, digests of queues and lake show which vehicles may differ (`verify_digest`). Then the
entries of these vehicles are compared one by one (`verify_entries`).
"""

import io
import json
from dataclasses import asdict, dataclass, field
from datetime import datetime

import pyarrow.parquet as pq
import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession

from manifold.lake.catalog import ensure_tables
from manifold.lake.reports import QUEUES, open_reports
from manifold.queues import Loader, Policy
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.maintenance.verify_digest import compare_digests
from pipelines.maintenance.verify_ecq import QueueDifference, compare_queues
from pipelines.maintenance.verify_entries import differences
from pipelines.maintenance.verify_lake import PinnedLake
from pipelines.maintenance.verify_redis import Difference
from pipelines.maintenance.verify_repair import repair_queues

MAX_REPORTED = 1_000_000  # differences listed in the report; all are counted

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Verified:
    """The differences between queues and lake, and the numbers of repaired differences."""

    loaded: bool  # false if Redis was wiped, so that a rebuild is needed
    in_queues: int  # number of pending and parked entries
    too_young: int  # number of pending and parked entries that are not ingested yet
    differences: dict[str, int]  # number of differences of each kind, including kinds without any
    repaired: dict[str, int] = field(default_factory=dict)  # number of repaired differences by kind, if a repair was requested
    report: str | None = None  # address of the report's folder; None if there is no difference
    compacted: dict[str, int] = field(default_factory=dict)  # number of clients whose compacted queue differs, by kind
    compacted_repaired: dict[str, int] = field(default_factory=dict)  # number of these clients that were repaired, by kind

    @property
    def agree(self) -> bool:
        """Whether queues and lake agree, or every difference was repaired.

        Overdue entries and messages do not count, because the next garbage collection ends them.
        """
        for kind, count in self.differences.items():
            if kind != Difference.OVERDUE and count > self.repaired.get(kind, 0):
                return False
        for kind, count in self.compacted.items():
            if kind != QueueDifference.OVERDUE and count > self.compacted_repaired.get(kind, 0):
                return False
        return True

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self) | {"agree": self.agree})


def verify(spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime, repair: bool = False) -> Verified:
    """Compare the queues with the lake, and write a report to `<reports>/queues/<instant>/`.

    With `repair`, repair the differences for which it is certain what is right (`verify_repair`).

    Raises:
        Retryable: with `repair`, another process holds the populate lock.
        redis.RedisError: Redis is unavailable or refuses.
    """
    ensure_tables(catalog)
    lake = PinnedLake(spark, catalog, settings, now)
    digests = compare_digests(lake)
    counts: dict[str, int] = {}
    repaired: dict[str, int] = {}
    report = None
    if digests.differing:
        with differences(lake, digests.differing, digests.in_queues) as found:
            counts = {row["difference"]: row["count"] for row in found.groupBy("difference").count().collect()}
            if counts:
                report = _write_report(found, settings, now)
                if repair:
                    repaired = repair_queues(found, settings, now)
    compacted, compacted_repaired = compare_queues(spark, settings, lake.base, now=now, repair=repair)
    with connect(settings.redis) as redis:
        loaded = Loader(redis, Policy.of(settings)).is_loaded()
    result = Verified(
        loaded=loaded,
        in_queues=digests.in_queues,
        too_young=digests.too_young,
        differences={kind.value: counts.get(kind, 0) for kind in Difference},
        repaired=repaired,
        report=report,
        compacted=compacted,
        compacted_repaired=compacted_repaired,
    )
    log.info(
        "queues compared with the lake",
        agree=result.agree,
        queues_loaded=result.loaded,
        entries_in_queues=result.in_queues,
        entries_not_ingested_yet=result.too_young,
        differences=result.differences,
        repaired_differences=result.repaired,
        compacted_queues_with_differences=result.compacted,
        repaired_compacted_queues=result.compacted_repaired,
        report=result.report,
    )
    return result


def _write_report(found: DataFrame, settings: Settings, now: datetime) -> str:
    """Write the first `MAX_REPORTED` differences as Parquet; return the address of the folder."""
    reports = open_reports(settings)
    folder = f"{QUEUES}/{now:%Y%m%dT%H%M%S}"
    content = io.BytesIO()
    pq.write_table(found.orderBy("difference", "vin", "seq").limit(MAX_REPORTED).toArrow(), content)
    reports.write(f"{folder}/differences.parquet", content.getvalue())
    return reports.address(folder)
