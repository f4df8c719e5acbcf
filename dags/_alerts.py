"""Alerts about runs that failed or did not end in time, sent by `manifold.runtime.alert`.

The JSON of an alert has `text`, `what` (failed or late), `dag_id`, `run_id`, `tasks` and `url`.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from airflow.sdk.configuration import conf
from airflow.sdk.definitions.callback import SyncCallback
from airflow.sdk.definitions.deadline import BaseDeadlineReference, DeadlineAlert

from manifold.settings import load_settings

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class RunQueued(BaseDeadlineReference):
    """A deadline reference: the instant at which a run was queued. `plugins/deadlines.py` registers this class.

    Airflow's own DeadlineReference.DAGRUN_QUEUED_AT names the same instant, but Airflow 3.3.2 cannot clear a task of a DAG that
    uses it: Airflow then reads the stored interval as a number, and responds with status 500.
    """

    required_kwargs: ClassVar = {"dag_id", "run_id"}

    def _evaluate_with(self, *, session: "Session", dag_id: str, run_id: str) -> datetime | None:
        from airflow.models import DagRun  # imported here: only the scheduler calls this method, and parsing DAGs needs no models
        from sqlalchemy import select

        query = select(DagRun.queued_at).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        queued_at: datetime | None = session.scalar(query)
        return queued_at


def deadline_after(duration: timedelta) -> DeadlineAlert:
    """A deadline for runs of a DAG: Airflow calls `tell_late` if a run has not ended within this duration since it was queued."""
    return DeadlineAlert(
        reference=RunQueued(),
        interval=duration,
        callback=SyncCallback("dags._alerts.tell_late"),
        name="late",
    )


def tell_late(context: Mapping[str, Any]) -> None:
    """Post an alert for a run that has missed its deadline. Airflow calls this, with the run as its REST API shows it."""
    run = context["dag_run"]
    _post_alert("late", run["dag_id"], run["dag_run_id"], [])


def tell_failed(context: Mapping[str, Any]) -> None:
    """Post an alert for a failed run. Airflow calls this when a run has failed, that is, after its tasks' last retries."""
    task = context.get("task")  # Airflow may name none
    _post_alert("failed", context["dag"].dag_id, context["run_id"], [task.task_id] if task else [])


def _post_alert(what: str, dag_id: str, run_id: str, tasks: list[str]) -> None:
    """Post an alert about a run; `what` is `failed` or `late`, and `tasks` has the ids of the tasks that failed."""
    from manifold.runtime.alert import alert  # imported here: Airflow parses DAG files repeatedly, and parsing needs no HTTP

    airflow_url = conf.get("api", "base_url", fallback="")
    run_url = f"{airflow_url}/dags/{quote(dag_id)}/runs/{quote(run_id, safe='')}"
    event = "has failed" if what == "failed" else "has not ended in time"
    text = f"{dag_id} {event}: run {run_id}, {run_url}"
    alert(load_settings(), what, text, dag_id=dag_id, run_id=run_id, tasks=tasks, url=run_url)
