"""### Take new archive segments into the lake, judge them, publish them.

**Reads** the archive: segments that no run has ingested yet. **Writes** all Iceberg tables, the quality reports, and the
queues. `discover` finds what is new; if nothing is, the rest is skipped (but for `populate`, if the queues lag) and the run is
green. `ingest` writes to branches that nobody reads, and judges what it wrote while Spark runs. Messages behind rows that break
a rule are set aside in quarantine; `audit` holds the run back if they are too many for that; `publish` makes it count, all at
once; `populate` offers what the queues do not have. Each task's result (XCom) has its numbers.

**A scheduled run** takes all that is new of the last days (`MANIFOLD_INGEST_WINDOW_DAYS`), so that a pause of fewer days leaves
no hole; after a longer one, trigger it by hand. **Triggered by hand** it takes all that is new, or what lies between `from` and
`to`. To backfill, trigger one run with both, or let Airflow make a run for each day, in `backfill_archives`: both give the same
tables as running at the time. **Two runs at once** are safe: the one that publishes last does its work again.

**Do not trigger it** to make delivery faster (vehicles are served without it), nor while an archive is still being copied in.

**When it fails.** Nothing is published, vehicles are still served, and the next run takes the same segments again.
- `discover`, `ingest`, `populate`: the log's last line says what to do (*rebuild needed*: trigger `rebuild_queues`); then clear
  the task.
- `audit`: much of the run breaks a rule of severity error. The log names rule, rows and reason, the quality report shows more.
  Clear `ingest` and what follows once the cause is gone.
- `publish` was overtaken by another run and could not repeat itself: clear `ingest` and what follows.

**To back out** a published run, pause this DAG, then `manifold lake rollback --run-id …`: that run and all later ones do not
count any more. Repair the cause, and unpause: the next run takes the segments again.

Owner: data-platform.
"""

from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, Param
from airflow.utils.types import DagRunType

from dags._defaults import DAG_DEFAULTS, ingest_jobs
from manifold.settings import load_settings

schedule = load_settings().ingest_schedule

# A scheduled run does not ingest its data interval alone: after a pause, no run would ingest the intervals of the pause.
SELECTION = (
    "{% if params['from'] %}--from={{ params['from'] }}{% endif %}",
    "{% if params['to'] %}--to={{ params['to'] }}{% endif %}",
    "{{ '--recent' if dag_run.run_type == 'scheduled' and not params['from'] else '' }}",
)
INSTANT: dict[str, Any] = {"type": ["null", "string"], "format": "date-time"}

with DAG(
    "ingest_archives",
    schedule=CronDataIntervalTimetable(schedule, timezone="UTC") if schedule else None,
    tags=["fanout", "lake", "queues"],
    doc_md=__doc__,
    params={
        "from": Param(None, **INSTANT, description="take segments that began at or after this instant; goes with `to`"),
        "to": Param(None, **INSTANT, description="take segments that began before this instant; goes with `from`"),
        "flush": Param(True, type="boolean", description="first ask the recorder to close its open segments"),
        "dry_run": Param(False, type="boolean", description="only say what is new, and take nothing"),
    },
    # No backfills: one of a year would be a hundred thousand runs here; `backfill_archives` has one run per day.
    **DAG_DEFAULTS | {"allowed_run_types": set(DagRunType) - {DagRunType.BACKFILL_JOB}},
):
    ingest_jobs(*SELECTION)
