"""Resolves the list of a proposed campaign's targets, audits it, and records it. A list that fails its audit is not recorded."""

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
from manifold.campaigns.plan import Targets as ListSource
from manifold.campaigns.proposals import LISTS, is_below, target_orders
from manifold.campaigns.record import read_campaigns
from manifold.campaigns.standing import Status
from manifold.contracts.campaigns import Target
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
MAX_LIST_ROWS = 5_000_000
PARQUET_MAGIC = b"PAR1"  # the first bytes of a Parquet file
AUTHOR_PREFIX = "airflow/"  # before the user's name in the record

log = structlog.get_logger(__name__)


def record_targets(
    settings: Settings, spark: SparkSession, catalog: Catalog, campaign: str, *, by: str, run_id: str
) -> dict[str, Any]:
    """Resolve, audit and record the list of a campaign's targets.

    Return the number of `targets`, the number of orders that were `recorded`, and the address of the audit's `report`. A repeated
    run records only the targets that are not on record yet.

    Raises:
        Permanent: the campaign does not wait for a list, the source of the list does not exist, or the list breaks a rule. The
            campaign stays a proposal.
        Retryable: the recorder, the broker or the catalog is unavailable.
    """
    if not by:
        raise Permanent("no user triggered the run; trigger it as a user of Airflow, whose name is recorded with the list")
    proposal = read_campaigns(settings, [campaign]).get(campaign, Campaign())
    decided = proposal.decided
    if decided.plan is None or not decided.is_proposal or decided.approved_by:
        raise Permanent(f"campaign {campaign!r} waits for no list: it is {decided.stage}, because {decided.because}")
    if decided.is_listed:  # the whole list is on record, for example because an earlier attempt recorded it
        return {"campaign": campaign, "targets": len(decided.targets), "recorded": 0, "report": None}
    listed = _resolve_list(settings, spark, catalog, decided.plan.targets)
    if not 0 < len(listed) <= MAX_LIST_ROWS:
        raise Permanent(f"the list of {campaign} has {len(listed)} rows; it must have 1 to {MAX_LIST_ROWS}")
    report = _audit_list(settings, spark, listed, decided.plan, campaign, run_id)
    listed = listed.sort_by("vin")  # the same order in each attempt, so that this one can continue where another was interrupted
    columns = [listed[name].to_pylist() for name in COLUMNS]
    targets = [Target(*row) for row in zip(*columns, strict=True)]
    recorded_targets = len(decided.targets)  # by an earlier attempt, which was interrupted
    if tuple(targets[:recorded_targets]) != decided.targets:
        raise Permanent(f"a part of another list is on record for {campaign}; refuse it, and propose it under another id")
    missing_targets = targets[recorded_targets:]
    orders = asyncio.run(_record(settings, campaign, f"{AUTHOR_PREFIX}{by}", missing_targets))
    log.info("targets of campaign recorded", campaign=campaign, targets=len(targets), orders=orders)
    return {"campaign": campaign, "targets": len(targets), "recorded": orders, "report": report}


def _audit_list(settings: Settings, spark: SparkSession, listed: pa.Table, plan: Plan, campaign: str, run_id: str) -> str:
    """Audit the rows of a list; return the address of the report.

    Raises:
        Permanent: the rows break a rule of severity error.
    """
    # Arrow computes the flags: Spark would compare each row with every zone in turn, on one core, before its tasks begin.
    valid_names = {"zone": sorted(zoneinfo.available_timezones()), "wave": [wave.name for wave in plan.waves]}
    for column, names in valid_names.items():
        listed = listed.append_column(f"is_{column}", pc.is_in(listed[column], value_set=pa.array(names)))
    is_iso_3779 = are_iso_3779(pc.fill_null(listed["vin"], "").combine_chunks())
    is_missing = listed["vin"].is_null()  # another rule reports missing VINs
    listed = listed.append_column("vin_is_iso_3779", pc.or_(pa.array(is_iso_3779), is_missing))
    # `createDataFrame` makes partitions of 10,000 rows, which are too many tasks.
    rows = spark.createDataFrame(listed).coalesce(parallelism(spark)).persist()
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
        log.warning("list of targets breaks a rule", campaign=campaign, run_id=run_id, rule=str(warning))
    if not result.passed:
        raise Permanent("\n".join([str(result), *map(str, result.failures)]))
    return str(result.report)


def _resolve_list(settings: Settings, spark: SparkSession, catalog: Catalog, source: ListSource) -> pa.Table:
    """Read the list that the plan names: a file, data of the lake, or targets of an earlier campaign or batch. Not audited."""
    if source.file is not None:
        if not is_below(source.file):
            raise Permanent(f"targets.file {source.file!r} must be a path below {LISTS}/ of the archive, such as fleet.csv")
        files = Files(settings.archive, settings.s3)
        path = f"{LISTS}/{source.file}"
        content = files.read(path)
        if content is None:
            raise Permanent(f"{files.address(path)} is not there; put the list there, as CSV or Parquet with a column vin")
        return _parse_list(content, source.file)
    if source.data is not None:
        payload = read_payload(catalog, source.data)
        if payload is None:
            raise Permanent(f"the lake has no data {source.data!r}; publish the list, and trigger this after ingest_archives")
        return _parse_list(payload, source.data)
    if source.campaign is not None:
        return _campaign_targets(catalog, source.campaign, source.ended)
    return _batch_targets(settings, spark, catalog, str(source.batch), source.ended)


def _parse_list(content: bytes, name: str) -> pa.Table:
    """Parse a CSV file with a header, or a Parquet file. The result has all `COLUMNS`; empty values are null."""
    try:
        # No threads, for the reason in `manifold.archive.formats`.
        if content.startswith(PARQUET_MAGIC):
            table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
        else:
            column_types = dict.fromkeys(COLUMNS, pa.string())
            convert_options = pa.csv.ConvertOptions(column_types=column_types, strings_can_be_null=True, null_values=[""])
            read_options = pa.csv.ReadOptions(use_threads=False)
            table = pa.csv.read_csv(pa.BufferReader(content), read_options=read_options, convert_options=convert_options)
        if "vin" not in table.column_names:
            raise Permanent(f"{name} has no column vin; it has {', '.join(table.column_names)}")
        all_null = pa.nulls(len(table), pa.string())
        columns = [table[column].cast(pa.string()) if column in table.column_names else all_null for column in COLUMNS]
    except (pa.ArrowException, UnicodeDecodeError) as exc:
        raise Permanent(f"{name} is not a list ({exc}); write CSV with a header, or Parquet, with a column vin") from exc
    return pa.table([pc.if_else(pc.equal(column, ""), None, column) for column in columns], names=list(COLUMNS))


def _campaign_targets(catalog: Catalog, name: str, ended: tuple[str, ...]) -> pa.Table:
    """The targets of an earlier campaign that are in one of the states `ended`, with their zones."""
    campaign = fold(Campaign(), read_campaign(catalog, name).facts)
    targets: list[dict[str, Any]] = []
    for state in ended:
        if state in set(Status):  # always true for a valid plan: it allows only these words for a campaign
            in_state, _ = views.targets(campaign, state=Status(state), limit=len(campaign.roster))
            targets += in_state
    vins = pa.array([target["vin"] for target in targets], pa.string())
    zones = pa.array([target["zone"] for target in targets], pa.string())
    return pa.table({"vin": vins, "zone": zones, "wave": pa.nulls(len(targets), pa.string())})


def _batch_targets(settings: Settings, spark: SparkSession, catalog: Catalog, batch: str, ended: tuple[str, ...]) -> pa.Table:
    """The vehicles of an earlier batch whose entries have one of the outcomes `ended`.

    Raises:
        Permanent: the lake has no such batch.
    """
    unknown_batch = Permanent(f"the lake has no batch {batch!r}; trigger this after ingest_archives")
    if not all(catalog.table_exists(table.identifier) for table in (IDS, OUTCOMES)):
        raise unknown_batch
    ids, outcomes = (spark.table(f"{settings.catalog_name}.{table.identifier}") for table in (IDS, OUTCOMES))
    entries = ids.where(sf.col("request_id") == batch).select("vin", "seq", "ts")
    first_ts, last_ts = entries.agg(sf.min("ts"), sf.max("ts")).collect()[0]
    if first_ts is None:  # there are no entries
        raise unknown_batch
    # The join alone would suffice, but Iceberg prunes files only by literals.
    is_in_time = sf.col("accepted_at").between(sf.lit(first_ts), sf.lit(last_ts))
    batch_outcomes = outcomes.where(is_in_time).join(entries, ["vin", "seq"])
    # An entry that was withdrawn, but delivered nevertheless, has both outcomes. `min` chooses "delivered", because it comes
    # before "withdrawn" in the alphabet.
    final_outcomes = batch_outcomes.groupBy("vin", "seq").agg(sf.min("outcome").alias("outcome"))
    matching = final_outcomes.where(sf.col("outcome").isin(list(ended)))
    vins = matching.select("vin").distinct().toArrow()["vin"].cast(pa.string())
    return pa.table({"vin": vins, "zone": pa.nulls(len(vins), pa.string()), "wave": pa.nulls(len(vins), pa.string())})


async def _record(settings: Settings, campaign: str, by: str, targets: list[Target]) -> int:
    """Send the targets to the recorder as orders; return the number of orders.

    Raises:
        Permanent: the recorder refused an order.
    """
    async with Publisher(settings, settings.mqtt_username_campaigns) as publisher:
        receipts = await publisher.orders(target_orders(campaign, by, targets))
    for receipt in receipts:
        if receipt.status is ReceiptStatus.REFUSED:
            raise Permanent(f"the recorder refused the list of {campaign}: {receipt.reason}")
    return len(receipts)
