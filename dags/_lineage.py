"""Tells a job the id under which the lineage catalog knows the task that runs it."""

import os
from typing import Any

from airflow.sdk import Context
from airflow.sdk.configuration import conf

from manifold.contracts.lineage import task_run
from manifold.settings import load_settings


def lineage_parent(context: Context) -> list[str]:
    """The arguments of a job that name this task as its parent; none if there is no lineage catalog.

    The id, and the namespace, are those of Airflow's own provider of OpenLineage, whether or not it is installed.
    """
    if not load_settings().lineage_url.get_secret_value():
        return []
    task: Any = context["ti"]
    run: Any = context["dag_run"]
    namespace = conf.get("openlineage", "namespace", fallback="") or os.environ.get("OPENLINEAGE_NAMESPACE") or "default"
    due = run.logical_date or run.run_after
    named = task_run(namespace, task.dag_id, task.task_id, attempt=task.try_number, mapped=task.map_index, due=due)
    return ["--lineage-parent", str(named)]
