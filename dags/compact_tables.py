"""### Rewrite small files, sort settled days by vehicle, apply deletes.

**Reads** the files of all Iceberg tables. **Writes** other files with the same rows. Days that still grow are packed: many
small files become few. Days that are settled (`MANIFOLD_COMPACT_SETTLED_DAYS`) are sorted by vehicle, so that a vehicle's
history is found in few files. Of compacted queues, superseded messages go and settled states are folded; no answer changes. What
pays is decided by the settings `MANIFOLD_COMPACT_…`; a run that finds nothing worth it
changes nothing.

**Trigger it** after a backfill, which writes many files at once. It runs beside ingestion: neither is in the other's way.
**Do not trigger it** when storage is short: old files stay until `collect_garbage` has removed the snapshots that know them.

**When it fails** the tables are as they were, or partly compacted: clear the task, or wait for the next run. Where the log names
another job that holds the lease, that one rewrites tables: let it end first.

**To back out** there is nothing to do: each query gives what it gave before. The task's result tells files, bytes and manifests
of each table before and after.

Owner: data-platform.
"""

from airflow.sdk import DAG

from dags._defaults import DAG_DEFAULTS, by_cron, spark_job
from manifold.settings import load_settings

with DAG(
    "compact_tables",
    tags=["housekeeping", "lake"],
    doc_md=__doc__,
    **DAG_DEFAULTS | by_cron(load_settings().compact_schedule),
):
    spark_job("compact")
