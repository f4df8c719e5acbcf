"""Compares queues with the lake (missing, extra, out of order) and repairs: `python -m pipelines verify`.

It may run beside everything else. First, digests of both sides show where they may differ (`verify_digest`); there they are
compared entry by entry (`verify_entries`).
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
    """The differences between queues and lake, and how many were repaired."""

    loaded: bool  # false: Redis was wiped, and a rebuild is needed
    in_queues: int  # pending and parked entries
    too_young: int  # of those, not ingested yet
    differences: dict[str, int]  # by kind, including kinds without any
    repaired: dict[str, int] = field(default_factory=dict)  # by kind, if requested
    report: str | None = None  # address of the folder; None: there is no difference
    compacted: dict[str, int] = field(default_factory=dict)  # of compacted queues: number of clients, by kind of difference
    compacted_repaired: dict[str, int] = field(default_factory=dict)  # of them, the repaired ones

    @property
    def agree(self) -> bool:
        """Whether every difference was repaired; an overdue entry or message is not a difference."""
        kinds = (kind for kind in Difference if kind is not Difference.OVERDUE)
        entries = all(self.differences.get(kind, 0) <= self.repaired.get(kind, 0) for kind in kinds)
        compacted = ((kind, count) for kind, count in self.compacted.items() if kind != QueueDifference.OVERDUE)
        return entries and all(count <= self.compacted_repaired.get(kind, 0) for kind, count in compacted)

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self) | {"agree": self.agree})


def verify(spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime, repair: bool = False) -> Verified:
    """Compare, report to `<reports>/queues/<instant>/`, and with `repair` fix what either side is certain of.

    Raises:
        Retryable: with `repair`, another process holds the populate lock.
        redis.RedisError: Redis is unavailable or refuses.
    """
    ensure_tables(catalog)
    lake = PinnedLake(spark, catalog, settings, now)
    digests = compare_digests(lake)
    counted: dict[str, int] = {}
    repaired: dict[str, int] = {}
    report = None
    if digests.differing:
        with differences(lake, digests.differing, digests.in_queues) as found:
            counted = {row["difference"]: row["count"] for row in found.groupBy("difference").count().collect()}
            report = _report(found, settings, now) if counted else None
            repaired = repair_queues(found, settings, now) if repair and counted else {}
    compacted = compare_queues(spark, settings, lake.base, now=now, repair=repair)
    with connect(settings.redis) as redis:
        loaded = Loader(redis, Policy.of(settings)).is_loaded()
    by_kind = {kind.value: counted.get(kind, 0) for kind in Difference}
    result = Verified(loaded, digests.in_queues, digests.too_young, by_kind, repaired, report, *compacted)
    log.info("queues compared with the lake", agree=result.agree, **asdict(result))
    return result


def _report(found: DataFrame, settings: Settings, now: datetime) -> str:
    reports, folder, content = open_reports(settings), f"{QUEUES}/{now:%Y%m%dT%H%M%S}", io.BytesIO()
    pq.write_table(found.orderBy("difference", "vin", "seq").limit(MAX_REPORTED).toArrow(), content)
    reports.write(f"{folder}/differences.parquet", content.getvalue())
    return reports.address(folder)
