"""Alerts about runs that failed or did not end in time (`manifold.runtime.alert`).

Besides `text` and `what` (failed, late) its JSON has `dag_id`, `run_id`, `tasks` and `url`.
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
    """The instant at which a run was queued; `plugins/deadlines.py` registers it.

    Airflow has the same as DeadlineReference.DAGRUN_QUEUED_AT, with which 3.3.2 cannot clear a task any more: it takes the stored
    interval for a number there, and answers 500.
    """

    required_kwargs: ClassVar = {"dag_id", "run_id"}

    def _evaluate_with(self, *, session: "Session", dag_id: str, run_id: str) -> datetime | None:
        from airflow.models import DagRun  # of the scheduler, which calls this; not for those who only read DAG files
        from sqlalchemy import select

        found: datetime | None = session.scalar(select(DagRun.queued_at).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
        return found


def late(after: timedelta) -> DeadlineAlert:
    """The deadline after which Airflow calls `tell_late`: a run that has not ended so long after it was queued."""
    return DeadlineAlert(
        reference=RunQueued(),
        interval=after,
        callback=SyncCallback("dags._alerts.tell_late"),
        name="late",
    )


def tell_late(context: Mapping[str, Any]) -> None:
    """Called by Airflow when a run has missed its deadline; `context` has the run as the REST API shows it."""
    run = context["dag_run"]
    _post_alert("late", run["dag_id"], run["dag_run_id"], [])


def tell_failed(context: Mapping[str, Any]) -> None:
    """Called by Airflow when a run has failed: when its tasks have used up their retries."""
    task = context.get("task")
    _post_alert("failed", context["dag"].dag_id, context["run_id"], [task.task_id] if task else [])


def _post_alert(what: str, dag_id: str, run_id: str, tasks: list[str]) -> None:
    from manifold.runtime.alert import alert  # DAG files are read again and again, and need no HTTP

    page = f"{conf.get('api', 'base_url', fallback='')}/dags/{quote(dag_id)}/runs/{quote(run_id, safe='')}"
    text = f"{dag_id} {'has failed' if what == 'failed' else 'has not ended in time'}: run {run_id}, {page}"
    alert(load_settings(), what, text, dag_id=dag_id, run_id=run_id, tasks=tasks, url=page)
