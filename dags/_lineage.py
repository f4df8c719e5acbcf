"""Passes a job the id of its Airflow task in the lineage catalog, so that the job can name the task as its parent."""

import os
from typing import Any

from airflow.sdk import Context
from airflow.sdk.configuration import conf

from manifold.contracts.lineage import task_run
from manifold.settings import load_settings


def lineage_parent(context: Context) -> list[str]:
    """The command-line arguments that name this task as the job's lineage parent; empty if no lineage catalog is configured.

    Id and namespace are the same as those of Airflow's OpenLineage provider, whether or not that provider is installed.
    """
    if not load_settings().lineage_url.get_secret_value():
        return []
    task: Any = context["ti"]
    run: Any = context["dag_run"]
    namespace = conf.get("openlineage", "namespace", fallback="") or os.environ.get("OPENLINEAGE_NAMESPACE") or "default"
    due = run.logical_date or run.run_after  # a run that somebody triggered may have no logical date
    parent = task_run(namespace, task.dag_id, task.task_id, attempt=task.try_number, mapped=task.map_index, due=due)
    return ["--lineage-parent", str(parent)]
