"""### Remove what is past its retention and needed by nobody.

**Reads** the lake and the archive, and takes in everything recorded first, like `ingest_archives`. **Writes** the queues, the
lake and the archive, in this order: entries pending for longer than the retention end as `expired`, in the queues and in the
lake; data that was not seen for as long goes, unless an entry without an outcome refers to it; messages of compacted queues
go, pending ones as `expired` (`MANIFOLD_ECQ_RETENTION_DAYS`, `MANIFOLD_ECQ_PENDING_RETENTION_DAYS`), from Redis and from the
lake; refused messages, history
(entries that ended, with their outcomes; kept for good by default), old snapshots, files that no snapshot knows and archive
segments go by retentions of their own (`MANIFOLD_RETENTION_DAYS`, `MANIFOLD_QUARANTINE_RETENTION_DAYS`,
`MANIFOLD_HISTORY_RETENTION_DAYS`, `MANIFOLD_SNAPSHOT_RETENTION_DAYS`, `MANIFOLD_ORPHAN_DAYS`,
`MANIFOLD_ARCHIVE_RETENTION_DAYS`). The task's result says how many of each went, with a few of them by name.

**It is paused at first**, because what it removes is gone: look at a dry run, then unpause it. Until then nothing is removed, and
entries past their retention stay in the lake as pending.

**Trigger it** with `dry_run` to see what would go. **Do not trigger it** after a retention was made shorter, before a dry run
has shown what that means; nor while an old archive is being copied in.

**When it fails** nothing is gone that is needed: each step is complete in itself. The log's last line says what to do; clear
the task. Where it names another job that holds the lease, let that one end first. Where the recorder cannot be asked to close its
segments, data stays, and the result says so.

**To back out**, `manifold lake rollback --run-id` with the run that the log names, until `MANIFOLD_SNAPSHOT_RETENTION_DAYS` have
passed; what went from the archive, and files that no snapshot knew, are gone for good.

Owner: data-platform.
"""

from airflow.sdk import DAG, Param

from dags._defaults import DAG_DEFAULTS, PUBLISHED, QUALITY_RESULTS, QUEUES, by_cron, spark_job
from manifold.settings import load_settings

with DAG(
    "collect_garbage",
    tags=["archive", "destructive", "housekeeping", "lake", "queues"],
    doc_md=__doc__,
    params={"dry_run": Param(False, type="boolean", description="list what would go, and change nothing")},
    **DAG_DEFAULTS | by_cron(load_settings().garbage_schedule) | {"is_paused_upon_creation": True},
):
    spark_job("garbage", "{{ '--dry-run' if params['dry_run'] else '' }}", outlets=[*PUBLISHED, QUALITY_RESULTS, QUEUES])
