"""Settings of the pipelines: ingest, stream, Spark, alerts of DAGs, and the upkeep of the lake."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from manifold.settings.field import MAX_DAYS, Days, DaysOrNone, Folder, Port, Positive, Seconds, Secret
from manifold.settings.field import setting as _s
from manifold.settings.lake import LakeSettings


def _refuse_token(address: str) -> str:
    if "token=" in address:
        raise ValueError("must not contain a token: set SPARK_CONNECT_AUTHENTICATE_TOKEN")
    return address


class PipelineSettings(LakeSettings):
    """How the lake is filled and kept in shape: ingest, stream, Spark, compaction, garbage, comparisons, alerts."""

    ingest_schedule: str = _s(
        "*/5 * * * *", "cron expression (UTC) of the DAG ingest_archives; empty: it runs only when triggered"
    )
    ingest_window_days: Annotated[float, Field(gt=0, le=365)] = _s(
        7, "a scheduled ingest takes every segment of these last days that no run has ingested, whenever the last run was"
    )
    ingest_max_bytes: Positive = _s(
        4 << 30, "bytes of the archive that one run takes in; what is new beyond that follows in further runs, the oldest first"
    )
    data_wait_seconds: Seconds = _s(86400, "how long a trigger may wait for its data before the audit warns")
    stream_port: Port = _s(9103, "HTTP of `manifold stream`: /metrics")
    stream_seconds: Seconds = _s(30, "how often `manifold stream` looks for new segments")
    stream_max_segments: Positive = _s(500, "segments that one micro-batch of `manifold stream` takes at most")
    alert_url: Secret = _s(
        SecretStr(""), "gets a POST of JSON with `text` when a DAG's run fails or is late; empty: only the log says so"
    )
    alert_after_seconds: Seconds = _s(3600, "a DAG's run that has not ended so long after it was queued is late")
    jars: Folder = _s(Path(".tools/jars"), "folder of Spark's extra jars")
    spark_master: Annotated[str, AfterValidator(_refuse_token)] = _s(
        "local[2]",
        "where the console's own pipeline runs execute: a master of Spark, or sc://host:port of a Spark Connect server; DAGs use "
        "the Airflow connection spark_default",
    )
    spark_driver_memory: str = _s("2g", "memory of the Spark driver")
    spark_pool: Annotated[str, Field(min_length=1)] = _s(
        "spark",
        "pool of Airflow whose slots bound how many jobs on Spark run at once; it has to exist; "
        "the embedded Airflow uses default_pool",
    )
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
    verify_schedule: str = _s("47 4 * * *", "cron expression (UTC) of the DAG verify_queues; empty: only when triggered")
