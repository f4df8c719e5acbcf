"""Resolves the list of a proposed campaign, judges it, and records it: nobody sees a list that has not passed."""

import asyncio
import zoneinfo
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from expectations import audit
from manifold.campaigns import views
from manifold.campaigns.fold import Campaign, fold
from manifold.campaigns.lake import read_campaign
from manifold.campaigns.plan import Plan
from manifold.campaigns.plan import Targets as Named
from manifold.campaigns.proposals import LISTS, is_below, lists
from manifold.campaigns.record import read_campaigns
from manifold.campaigns.standing import Status
from manifold.contracts import campaigns as r
from manifold.contracts.errors import Permanent
from manifold.contracts.messages import ReceiptStatus
from manifold.contracts.tables import CAMPAIGN_LIST, IDS, OUTCOMES
from manifold.contracts.vins import are_iso_3779
from manifold.lake.files import Files
from manifold.lake.payloads import read_payload
from manifold.lake.reports import open_reports
from manifold.messaging.publisher import Publisher
from manifold.settings import Settings
from pipelines.spark.parallelism import parallelism

COLUMNS = tuple(column.name for column in CAMPAIGN_LIST.columns)
MAX_ROWS = 5_000_000
PARQUET = b"PAR1"
BY = "airflow/"

log = structlog.get_logger(__name__)


def record_targets(
    settings: Settings, spark: SparkSession, catalog: Catalog, campaign: str, *, by: str, run_id: str
) -> dict[str, Any]:
    """Resolve, judge and record the list of a campaign; return how many vehicles it has, and where its report is.

    A run that is repeated records what is still missing.

    Raises:
        Permanent: the campaign waits for no list, its source is not there, or the list breaks a rule; it stays a proposal.
        Retryable: recorder, broker or catalog are away.
    """
    if not by:
        raise Permanent("no user triggered the run; trigger it as a user of Airflow, whose name is recorded with the list")
    proposal = read_campaigns(settings, [campaign]).get(campaign, Campaign())
    decided = proposal.decided
    if decided.plan is None or not decided.is_proposal or decided.approved_by:
        raise Permanent(f"campaign {campaign!r} waits for no list: it is {decided.stage}, because {decided.because}")
    if decided.is_listed:
        return {"campaign": campaign, "targets": len(decided.targets), "recorded": 0, "report": None}
    listed = _resolved(settings, spark, catalog, decided.plan.targets)
    if not 0 < len(listed) <= MAX_ROWS:
        raise Permanent(f"the list of {campaign} has {len(listed)} rows; it must have 1 to {MAX_ROWS}")
    report = _judge(settings, spark, listed, decided.plan, run_id)
    listed = listed.sort_by("vin")
    targets = list(map(r.Target, *(listed[name].to_pylist() for name in COLUMNS)))
    known = len(decided.targets)
    if tuple(targets[:known]) != decided.targets:
        raise Permanent(f"a part of another list is on record for {campaign}; refuse it, and propose it under another id")
    recorded = asyncio.run(_publish(settings, campaign, f"{BY}{by}", targets[known:]))
    log.info("targets recorded", campaign=campaign, targets=len(targets), orders=recorded)
    return {"campaign": campaign, "targets": len(targets), "recorded": recorded, "report": report}


def _judge(settings: Settings, spark: SparkSession, listed: pa.Table, plan: Plan, run_id: str) -> str:
    """Judge the rows; return the address of the report.

    Raises:
        Permanent: they break a rule of severity error.
    """
    # By Arrow, because Spark compares each row with all zones one after the other, and on one core, before its tasks begin.
    named = {"zone": sorted(zoneinfo.available_timezones()), "wave": [wave.name for wave in plan.waves]}
    for column, names in named.items():
        listed = listed.append_column(f"is_{column}", pc.is_in(listed[column], value_set=pa.array(names)))
    flags = are_iso_3779(pc.fill_null(listed["vin"], "").combine_chunks())
    listed = listed.append_column("vin_is_iso_3779", pc.or_(pa.array(flags), listed["vin"].is_null()))
    rows = spark.createDataFrame(listed).coalesce(parallelism(spark)).persist()  # it comes in pieces of 10,000 rows
    try:
        result = audit(
            {CAMPAIGN_LIST.name: rows},
            run_id=run_id,
            as_of=datetime.now(UTC),
            reports=open_reports(settings),
            keep=settings.report_max,
            references={},
            data_wait=timedelta(0),
        )
    finally:
        rows.unpersist()
    for warning in result.warnings:
        log.warning("list breaks a rule", run_id=run_id, rule=str(warning))
    if not result.passed:
        raise Permanent("\n".join([str(result), *map(str, result.failures)]))
    return str(result.report)


def _resolved(settings: Settings, spark: SparkSession, catalog: Catalog, source: Named) -> pa.Table:
    """The rows of a list, as they are."""
    if source.file is not None:
        if not is_below(source.file):
            raise Permanent(f"targets.file {source.file!r} must be a path below {LISTS}/ of the archive, such as fleet.csv")
        files, path = Files(settings.archive, settings.s3), f"{LISTS}/{source.file}"
        content = files.read(path)
        if content is None:
            raise Permanent(f"{files.address(path)} is not there; put the list there, as CSV or Parquet with a column vin")
        return _rows(content, source.file)
    if source.data is not None:
        payload = read_payload(catalog, source.data)
        if payload is None:
            raise Permanent(f"the lake has no data {source.data!r}; publish the list, and trigger this after ingest_archives")
        return _rows(payload, source.data)
    if source.campaign is not None:
        return _campaign_targets(catalog, source.campaign, source.ended)
    return _batch_targets(settings, spark, catalog, str(source.batch), source.ended)


def _rows(content: bytes, name: str) -> pa.Table:
    """The rows of a CSV file with a header, or of a Parquet file."""
    try:
        # No threads, for the reason in `manifold.archive.formats`.
        if content.startswith(PARQUET):
            table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
        else:
            options = pa.csv.ConvertOptions(column_types=dict.fromkeys(COLUMNS, pa.string()), strings_can_be_null=True)
            options.null_values = [""]
            read = pa.csv.ReadOptions(use_threads=False)
            table = pa.csv.read_csv(pa.BufferReader(content), read_options=read, convert_options=options)
        if "vin" not in table.column_names:
            raise Permanent(f"{name} has no column vin; it has {', '.join(table.column_names)}")
        empty = pa.nulls(len(table), pa.string())
        columns = [table[column].cast(pa.string()) if column in table.column_names else empty for column in COLUMNS]
    except (pa.ArrowException, UnicodeDecodeError) as exc:
        raise Permanent(f"{name} is not a list ({exc}); write CSV with a header, or Parquet, with a column vin") from exc
    return pa.table([pc.if_else(pc.equal(column, ""), None, column) for column in columns], names=list(COLUMNS))


def _campaign_targets(catalog: Catalog, name: str, ended: tuple[str, ...]) -> pa.Table:
    campaign = fold(Campaign(), read_campaign(catalog, name).facts)
    rows = [
        target
        for state in ended
        if state in set(Status)
        for target in views.targets(campaign, state=Status(state), limit=len(campaign.roster))[0]
    ]
    vins, zones = ([row[column] for row in rows] for column in ("vin", "zone"))
    return pa.table(
        {"vin": pa.array(vins, pa.string()), "zone": pa.array(zones, pa.string()), "wave": pa.nulls(len(rows), pa.string())}
    )


def _batch_targets(settings: Settings, spark: SparkSession, catalog: Catalog, batch: str, ended: tuple[str, ...]) -> pa.Table:
    unknown = Permanent(f"the lake has no batch {batch!r}; trigger this after ingest_archives")
    if not all(catalog.table_exists(table.identifier) for table in (IDS, OUTCOMES)):
        raise unknown
    ids, outcomes = (spark.table(f"{settings.catalog_name}.{table.identifier}") for table in (IDS, OUTCOMES))
    entries = ids.where(sf.col("request_id") == batch).select("vin", "seq", "ts")
    first, last = entries.agg(sf.min("ts"), sf.max("ts")).collect()[0]
    if first is None:
        raise unknown
    # Literals, because Iceberg prunes files by them and not by a join.
    ends = outcomes.where(sf.col("accepted_at").between(sf.lit(first), sf.lit(last))).join(entries, ["vin", "seq"])
    # An entry that was withdrawn and delivered after all has both ends: delivered counts, and is the first by the alphabet.
    found = ends.groupBy("vin", "seq").agg(sf.min("outcome").alias("outcome")).where(sf.col("outcome").isin(list(ended)))
    vins = found.select("vin").distinct().toArrow()["vin"].cast(pa.string())
    return pa.table({"vin": vins, "zone": pa.nulls(len(vins), pa.string()), "wave": pa.nulls(len(vins), pa.string())})


async def _publish(settings: Settings, campaign: str, by: str, targets: list[r.Target]) -> int:
    async with Publisher(settings, settings.mqtt_username_campaigns) as publisher:
        receipts = await publisher.orders(lists(campaign, by, targets))
    refused = next((receipt for receipt in receipts if receipt.status is ReceiptStatus.REFUSED), None)
    if refused is not None:
        raise Permanent(f"the recorder refused the list of {campaign}: {refused.reason}")
    return len(receipts)
