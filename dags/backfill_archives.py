"""### Take the archive of past days into the lake, a run for each day.

**Reads** and judges what `ingest_archives` does, and **Writes** the same tables by the same tasks: each run takes the segments
that began on its day (UTC) and that no run has ingested yet. A day on which nothing is new is over in seconds.

**It never starts by itself.** Choose *Backfill* behind *Trigger*, or `airflow backfill create`. Days that have had their run are
passed over, unless it is told to reprocess them. A *Single Run* takes the day before. `flush` asks the recorder first to close
its open segments, which days past do not need; `dry_run` only says what is new.

**One run at a time** is best (*Max Active Runs* 1, `--max-active-runs 1`): of several, the one that publishes last does its work
again. Cheaper than a run a day is one run of `ingest_archives` with `from` and `to`, which takes a long backlog in several runs.
**Do not trigger it** while an archive is still being copied in. Trigger `compact_tables` afterwards.

**When it fails** nothing of that day is published; the other days go on. Look at the task that failed as in `ingest_archives`;
clear it.

**To back out** what a run has published, `manifold lake rollback --run-id …`, as in `ingest_archives`: all later runs go with it.

Owner: data-platform.
"""

from airflow.sdk import DAG, Param

from dags._days import BackfillDays
from dags._defaults import DAG_DEFAULTS, ingest_jobs

# The end of the run's day. A run that somebody triggers for no particular day has no interval; it takes the day before.
END = "(dag_run.data_interval_end or dag_run.run_after).replace(hour=0, minute=0, second=0, microsecond=0)"
DAY = (f"--from={{{{ ({END} - macros.timedelta(days=1)).isoformat() }}}}", f"--to={{{{ {END}.isoformat() }}}}")

with DAG(
    "backfill_archives",
    schedule=BackfillDays(),
    tags=["archive", "fanout", "lake", "queues"],
    doc_md=__doc__,
    params={
        "flush": Param(False, type="boolean", description="first ask the recorder to close its open segments"),
        "dry_run": Param(False, type="boolean", description="only say what is new, and take nothing"),
    },
    # No deadline: all runs of a backfill are queued at once, and most of a long backfill would miss it.
    **DAG_DEFAULTS | {"deadline": None},
):
    ingest_jobs(*DAY)
