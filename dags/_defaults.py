"""What all DAGs share: an owner, retries, and the way in which a job of the pipelines is run.

A job is a stage of `python -m pipelines`. Without Spark it is a process of its own; with Spark the connection `spark_default`
says where that runs: a cluster changes the connection, and no DAG. `dags._jobs` has the operators.
"""

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Asset, AssetOrTimeSchedule, CronTriggerTimetable

from dags._alerts import late, tell_failed
from dags._jobs import PIPELINES, DiscoverOperator, SparkJob, SubprocessOperator
from manifold.contracts import assets
from manifold.settings import load_settings

PROPERTIES = "SPARK_PROPERTIES_FILE"  # names Spark's defaults for spark-submit; unset: those of the Spark installation
START = datetime(2026, 1, 1, tzinfo=UTC)
TASK_DEFAULTS: dict[str, Any] = {
    "owner": "data-platform",
    "retries": 2,
    "retry_delay": timedelta(seconds=20),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=5),
    "execution_timeout": timedelta(hours=2),
}
# The arguments of a DAG besides its id, schedule (`by_cron`), params, tags and doc_md=__doc__.
DAG_DEFAULTS: dict[str, Any] = {
    "start_date": START,
    "catchup": False,
    "max_active_runs": 1,  # two runs of one DAG would only supersede each other
    "is_paused_upon_creation": False,
    "default_args": TASK_DEFAULTS,
    "on_failure_callback": tell_failed,
    "deadline": late(timedelta(seconds=load_settings().alert_after_seconds)),
}
PUBLISHED = [Asset(table, assets.table_uri(table)) for table in assets.PUBLISHED]
QUALITY_RESULTS = Asset(assets.QUALITY_RESULTS, assets.table_uri(assets.QUALITY_RESULTS))
QUEUES, REBUILT = (Asset(name, assets.queues_uri(name)) for name in (assets.QUEUES, assets.REBUILT))
# The id of a run names its branches and its pages; Airflow makes it the same on every retry.
RUN = ("--run-id", "{{ run_id }}")


def by_cron(cron: str, also: Asset | None = None) -> dict[str, Any]:
    """The arguments that say when a DAG runs: at each tick of `cron`, and after `also`; where `cron` is empty, only by hand."""
    schedule: CronTriggerTimetable | AssetOrTimeSchedule | None = CronTriggerTimetable(cron, timezone="UTC") if cron else None
    if schedule and also:
        schedule = AssetOrTimeSchedule(timetable=schedule, assets=also)
    # With a start date, Airflow would make up for the last tick as soon as it starts.
    return {"schedule": schedule, "start_date": None}


def plain_job(job: str, *arguments: str, **task: Any) -> SubprocessOperator:
    """The task that runs one stage without Spark. `arguments` may be templates; `task` is what Airflow takes for a task."""
    return SubprocessOperator(task_id=job, arguments=[job, *RUN, *arguments], doc=f"python -m pipelines {job}", **task)


def discover_job(job: str, *arguments: str, **task: Any) -> DiscoverOperator:
    """The task of a stage that says, without Spark, what there is to do next, and skips the tasks for which there is nothing."""
    return DiscoverOperator(task_id=job, arguments=[job, *RUN, *arguments], doc=f"python -m pipelines {job}", **task)


def spark_job(job: str, *arguments: str, **task: Any) -> SparkJob:
    """The task that runs one stage on Spark. `arguments` may be templates; `task` is what Airflow takes for a task."""
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
