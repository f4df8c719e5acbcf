"""Settings of the lake, by group: default, bounds and meaning of each; `manifold.settings` joins all into one class."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

from manifold.settings.field import MAX_DAYS, Days, DaysOrNone, Positive, Seconds, SecondsOrNone
from manifold.settings.field import setting as _s


class StorageSettings(BaseSettings):
    """Where archive and warehouse lie in an S3-compatible store (`archive_url` or `warehouse` begins with s3://)."""

    s3_endpoint: Annotated[str, Field(pattern="^(https?://.+)?$")] = _s("", "http(s):// address of the store; empty: AWS")
    s3_region: str = _s("us-east-1", "region of the store")
    s3_access_key: SecretStr = _s(SecretStr(""), "access key; empty: AWS's own chain of credentials")
    s3_secret_key: SecretStr = _s(SecretStr(""), "secret key that belongs to s3_access_key")


class LakeSettings(BaseSettings):
    """The catalog, the warehouse, and the pipelines over them."""

    catalog_name: str = _s("manifold", "name of the Iceberg catalog; part of the SQL catalog's key")
    catalog_type: Annotated[str, Field(pattern="^(sql|rest)$")] = _s("sql", "sql or rest")
    catalog_uri: SecretStr = _s(SecretStr(""), "address of the catalog; empty: SQLite in <home>/lake/catalog.db")
    catalog_properties: SecretStr = _s(
        SecretStr(""),
        "further properties of the catalog for PyIceberg and Spark, a JSON object: token, credential, rest.sigv4-enabled, …",
    )
    warehouse: str = _s(
        "",
        "root of the tables, file:// or s3://, or what a REST catalog calls it; empty: <home>/lake/warehouse, with REST its own",
    )
    ingest_schedule: str = _s(
        "*/5 * * * *", "cron expression (UTC) of the DAG ingest_archives; empty: it runs only when triggered"
    )
    alert_url: SecretStr = _s(
        SecretStr(""), "gets a POST of JSON with `text` when a DAG's run fails or is late; empty: only the log says so"
    )
    alert_after_seconds: Seconds = _s(3600, "a DAG's run that has not ended so long after it was queued is late")
    lineage_url: SecretStr = _s(
        SecretStr(""),
        "gets OpenLineage events of runs and jobs: http(s)://…/api/v1/lineage, or file://… (lines of JSON); empty: none",
    )
    lineage_namespace: Annotated[str, Field(min_length=1)] = _s("manifold", "namespace of the jobs in those events")
    lineage_parent: str = _s(
        "", "the run that starts a job, for those events: <namespace>/<job>/<run id>, as Airflow's tasks say it; empty: none"
    )
    lineage_token: SecretStr = _s(SecretStr(""), "token of the address at lineage_url; empty: none is shown")
    spark_pool: Annotated[str, Field(min_length=1)] = _s(
        "spark",
        "pool of Airflow whose slots bound how many jobs on Spark run at once; it has to exist; "
        "the embedded Airflow uses default_pool",
    )
    catalog_wait_seconds: SecondsOrNone = _s(
        60, "how long a pipeline's job waits for a catalog that is away or locked before it gives up; it can then be run again"
    )
    stream_seconds: Seconds = _s(30, "how often `manifold stream` looks for new segments")
    stream_max_segments: Positive = _s(500, "segments that one micro-batch of `manifold stream` takes at most")
    ingest_window_days: Annotated[float, Field(gt=0, le=365)] = _s(
        7, "a scheduled ingest takes every segment of these last days that no run has taken in, whenever the last run was"
    )
    ingest_max_bytes: Positive = _s(
        4 << 30, "bytes of the archive that one run takes in; what is new beyond that follows in further runs, the oldest first"
    )
    lake_late_seconds: Seconds = _s(
        3600, "a segment of the archive that is not in the lake after so long is told to alert_url; see manifold_lake_age_seconds"
    )
    data_wait_seconds: Seconds = _s(86400, "how long a trigger may wait for its data before the audit warns")
    report_max: Positive = _s(200, "runs that the quality reports keep")
    reports: Annotated[str, Field(pattern=r"^((file|s3)://.+|[^:]*)$")] = _s(
        "", "store of the HTML reports: a folder, file:// or s3://; empty: <home>/reports"
    )
    jars: Path = _s(Path(".tools/jars"), "folder of Spark's extra jars")
    spark_master: str = _s(
        "local[2]",
        "where the console's own pipeline runs execute: a master of Spark, or sc://host:port of a Spark Connect server; DAGs use "
        "the Airflow connection spark_default",
    )
    spark_driver_memory: str = _s("2g", "memory of the Spark driver")


class HousekeepingSettings(BaseSettings):
    """What keeps the lake in shape: compaction, garbage, and the comparison of queues and lake."""

    compact_schedule: str = _s("17 */6 * * *", "cron expression (UTC) of the DAG compact_tables; empty: only when triggered")
    compact_target_bytes: Positive = _s(128 << 20, "size of the files that compaction makes")
    compact_min_files: Annotated[int, Field(ge=2)] = _s(8, "small files of one day, or of a table without days, worth a rewrite")
    compact_max_manifests: Positive = _s(30, "manifests of one table above which they are rewritten")
    compact_settled_days: Annotated[int, Field(gt=0, le=MAX_DAYS)] = _s(
        2, "a day this many days ago is settled: its rows are sorted by vehicle"
    )
    garbage_schedule: str = _s("23 3 * * *", "cron expression (UTC) of the DAG collect_garbage; empty: only when triggered")
    snapshot_retention_days: Days = _s(3, "how long a table can still be read as it was")
    snapshot_max: Annotated[int, Field(ge=2)] = _s(
        1000, "snapshots of a table's history that are kept at most, besides those of the last hour"
    )
    orphan_days: Annotated[float, Field(gt=1, le=MAX_DAYS)] = _s(
        3, "files in a table's folder that no snapshot knows go when they are this old"
    )
    archive_retention_days: Days = _s(400, "how long the archive keeps a segment that is in the lake; others stay")
    quarantine_retention_days: Days = _s(90, "how long refused messages stay in the table quarantine")
    history_retention_days: DaysOrNone = _s(
        0, "how long ended entries and campaigns that are over stay in the tables, at least retention_days; 0: for good"
    )
    check_schedule: str = _s("23 3 * * 0", "cron expression (UTC) of the DAG check_lake; empty: only when triggered")
    campaign_approvals_schedule: str = _s(
        "*/5 * * * *", "cron expression (UTC) at which campaign_approvals looks who has to be asked; empty: only when triggered"
    )
    campaign_reports_schedule: str = _s(
        "37 5 * * *", "cron expression (UTC) of the DAG campaign_reports; empty: only when triggered"
    )
    verify_schedule: str = _s("47 4 * * *", "cron expression (UTC) of the DAG verify_queues; empty: only when triggered")
