"""### Compare archive, ledger and tables, segment by segment.

**Reads** the archive of the last `days` (0: all of it), `ingested_segments`, and the rows that those segments brought to each
table. **Writes** nothing; with `repair` it removes what is there more than once, and takes the segments concerned in again. The
task's result says how many segments and messages were compared; a disagreement fails the run.

**Trigger it** after an outage of the catalog or the storage, after a rollback, or with `repair` once a run of it has failed.
**Do not trigger it** with `days` 0 beside a large backfill: it reads the whole archive once.

**When it fails** the log names segments, tables and remedies. Trigger it with `repair`: it leaves what it cannot
repair (a segment that is gone from the archive), and says so.

**To back out** a repair, `manifold lake rollback --run-id` with the run that it names in the log.

Owner: data-platform.
"""

from airflow.sdk import DAG, Param

from dags._defaults import DAG_DEFAULTS, PUBLISHED, QUALITY_RESULTS, by_cron, spark_job
from manifold.settings import load_settings

with DAG(
    "check_lake",
    tags=["archive", "housekeeping", "lake", "repair"],
    doc_md=__doc__,
    params={
        "days": Param(
            8, type="number", minimum=0, maximum=36500, description="what began so many days ago or later; 0: the whole archive"
        ),
        "repair": Param(False, type="boolean", description="ingest again what is missing or doubled, and what was not ingested"),
    },
    **DAG_DEFAULTS | by_cron(load_settings().check_schedule),
):
    part = ("--days={{ params['days'] }}", "{{ '--repair' if params['repair'] else '' }}")
    spark_job("check", *part, outlets=[*PUBLISHED, QUALITY_RESULTS])
