"""Arguments and tasks that the DAGs share: owner, retries, and the functions that create the tasks of pipeline jobs.

A job is a stage of `python -m pipelines`. A job without Spark runs in a process of its own. For a job with Spark, the connection
`spark_default` says where Spark runs; moving to a cluster changes only this connection. `dags._jobs` has the operators.
"""

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Asset, AssetOrTimeSchedule, CronTriggerTimetable

from dags._alerts import deadline_after, tell_failed
from dags._jobs import PIPELINES, BranchingOperator, QualityReport, SparkJob, SubprocessOperator
from manifold.contracts import assets
from manifold.settings import load_settings

# The environment variable that names the properties file for spark-submit. If it is unset, Spark uses its installation's file.
PROPERTIES = "SPARK_PROPERTIES_FILE"
START = datetime(2026, 1, 1, tzinfo=UTC)
TASK_DEFAULTS: dict[str, Any] = {
    "owner": "data-platform",
    "retries": 2,
    "retry_delay": timedelta(seconds=20),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=5),
    "execution_timeout": timedelta(hours=2),
}
# The common arguments of the DAGs. Each DAG adds its id, schedule (`by_cron`), params, tags and doc_md=__doc__.
DAG_DEFAULTS: dict[str, Any] = {
    "start_date": START,
    "catchup": False,
    "max_active_runs": 1,  # of two concurrent runs, the one that publishes last would have to repeat its work
    "is_paused_upon_creation": False,
    "default_args": TASK_DEFAULTS,
    "on_failure_callback": tell_failed,
    "deadline": deadline_after(timedelta(seconds=load_settings().alert_after_seconds)),
}
PUBLISHED = [Asset(table, assets.table_uri(table)) for table in assets.PUBLISHED]
QUALITY_RESULTS = Asset(assets.QUALITY_RESULTS, assets.table_uri(assets.QUALITY_RESULTS))
QUEUES, REBUILT = (Asset(name, assets.queues_uri(name)) for name in (assets.QUEUES, assets.REBUILT))
# The run id names a run's branches and report pages. Airflow keeps the id on every retry.
RUN = ("--run-id", "{{ run_id }}")
# The driver's Java options depend on the size of the ingest, which `discover` measures.
DRIVER_OPTIONS = "{{ (ti.xcom_pull(task_ids='discover') or {}).get('java_options', '') }}"


def by_cron(cron: str, also_after: Asset | None = None) -> dict[str, Any]:
    """The arguments that schedule a DAG at each tick of `cron`, and after each update of the asset `also_after`.

    If `cron` is empty, the DAG has no schedule at all, and runs only when somebody triggers it.
    """
    schedule: CronTriggerTimetable | AssetOrTimeSchedule | None = None
    if cron:
        schedule = CronTriggerTimetable(cron, timezone="UTC")
        if also_after is not None:
            schedule = AssetOrTimeSchedule(timetable=schedule, assets=also_after)
    # No start date: with one, Airflow would run the DAG for the last missed tick as soon as Airflow itself starts.
    return {"schedule": schedule, "start_date": None}


def plain_job(job: str, *arguments: str, **task: Any) -> SubprocessOperator:
    """The task that runs one stage without Spark. `arguments` may be templates; `task` has further arguments of the operator."""
    return SubprocessOperator(task_id=job, arguments=[job, *RUN, *arguments], doc=f"python -m pipelines {job}", **task)


def branching_job(job: str, *arguments: str, **task: Any) -> BranchingOperator:
    """The task that runs, without Spark, a stage whose result names the next tasks; the task skips all others downstream."""
    return BranchingOperator(task_id=job, arguments=[job, *RUN, *arguments], doc=f"python -m pipelines {job}", **task)


def spark_job(job: str, *arguments: str, **task: Any) -> SparkJob:
    """The task that runs one stage on Spark. `arguments` may be templates; `task` has further arguments of the operator."""
    return SparkJob(
        task_id=job,
        pool=load_settings().spark_pool,
        conn_id="spark_default",
        application=str(PIPELINES),
        name=f"manifold-{job}",
        properties_file=os.environ.get(PROPERTIES),
        application_args=[job, *RUN, *arguments],
        doc=f"spark-submit pipelines/__main__.py {job}",
        **task,
    )


def ingest_jobs(*selection: str) -> None:
    """Add the ingest tasks to the DAG whose block calls this; the DAG must have the params `flush` and `dry_run`.

    Every DAG that ingests the archive has the same tasks, but selects other segments: `selection` has the command-line arguments
    of the jobs that select segments, such as --from and --to.
    """
    flush = "{{ '' if params['flush'] else '--no-flush' }}"
    dry_run = "{{ '--dry-run' if params['dry_run'] else '' }}"
    discover = branching_job("discover", *selection, flush, dry_run)
    # Only `discover` asks the recorder to close its open segments: once is enough.
    ingest = spark_job("ingest", *selection, "--no-flush", java_options=DRIVER_OPTIONS, outlets=[QUALITY_RESULTS])
    audit = plain_job("audit", links=[QualityReport()])
    publish = branching_job("publish", outlets=PUBLISHED)
    # `discover` may skip all tasks but `populate`: without new segments, the queues may still lag behind the lake. Therefore
    # `populate` also follows `discover` itself, and its trigger rule lets it run although `publish` was skipped.
    populate = spark_job("populate", java_options=DRIVER_OPTIONS, outlets=[QUEUES], trigger_rule="none_failed_min_one_success")
    discover >> ingest >> audit >> publish >> populate
    discover >> populate
