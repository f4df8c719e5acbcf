"""What every DAG of this house has in common: an owner, retries, and how a job of the pipelines is run.

A job is a stage of `python -m pipelines`. Without Spark it is a process of its own; with Spark the connection `spark_default`
says where that runs: a cluster changes the connection, and no DAG. What a job prints as its result becomes the task's (XCom).
A job says by its exit status whether doing it again can help; where it cannot, the task fails at once.
"""

import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, Context
from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import Asset, BaseOperator

from contracts import assets

PIPELINES = Path(__file__).parents[1] / "pipelines" / "__main__.py"
START = datetime(2026, 1, 1, tzinfo=UTC)
DEFAULTS: dict[str, Any] = {
    "owner": "data-platform",
    "retries": 2,
    "retry_delay": timedelta(seconds=20),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=5),
    "execution_timeout": timedelta(hours=2),
}
# What a DAG is made with besides its id, schedule, params, tags and doc_md=__doc__.
HOUSE: dict[str, Any] = {
    "start_date": START,
    "catchup": False,
    "max_active_runs": 1,  # two runs of one DAG would only overtake each other
    "is_paused_upon_creation": False,
    "default_args": DEFAULTS,
}
LAKE, QUEUES = Asset(assets.LAKE), Asset(assets.QUEUES)
# The id of a run names its branches and its pages; Airflow makes it the same on every retry.
RUN = ("--run-id", "{{ run_id }}")
DONE, NOT_DONE = 0, 1  # exit status of a job; every other one may be cured by doing it again


class PlainJob(BaseOperator):
    """One stage in a process of its own, so that Airflow's never carries a pipeline's libraries; its result is the task's.

    An argument whose template comes out empty is not there.
    """

    template_fields: Sequence[str] = ("arguments",)

    def __init__(self, *, arguments: Iterable[str], **rest: Any) -> None:
        super().__init__(**rest)
        self.arguments = list(arguments)
        self._hook = SubprocessHook()

    def execute(self, context: Context) -> Any:
        """Run it, with what it says in this task's log."""
        del context
        with tempfile.TemporaryDirectory(prefix="manifold-task-") as folder:
            result = Path(folder) / "result.json"
            given = [argument for argument in self.arguments if argument]
            done = self._hook.run_command([sys.executable, "-m", "pipelines", *given, "--result", str(result)])
            if done.exit_code == NOT_DONE:
                raise AirflowFailException(f"{self.task_id}: {done.output}; doing it again changes nothing")
            if done.exit_code != DONE:
                raise AirflowException(f"{self.task_id}: {done.output} (exit status {done.exit_code})")
            return json.loads(result.read_text())

    def on_kill(self) -> None:
        """End the process with the task."""
        self._hook.send_sigterm()  # type: ignore[no-untyped-call]  # the provider's


class SparkJob(SparkSubmitOperator):
    """One stage as a Spark application; its result is the task's where the driver runs beside the task (client mode).

    An argument whose template comes out empty is not there.
    """

    def execute(self, context: Context) -> Any:
        """Submit, and wait for the end."""
        with tempfile.TemporaryDirectory(prefix="manifold-task-") as folder:
            result = Path(folder) / "result.json"
            given = [argument for argument in self.application_args or [] if argument]
            self.application_args = [*given, "--result", str(result)]
            try:
                super().execute(context)
            except AirflowException as exc:
                submitted = self._hook._submit_sp if self._hook else None
                if submitted is not None and submitted.returncode == NOT_DONE:
                    raise AirflowFailException(f"{self.task_id}: the reason is above; doing it again changes nothing") from exc
                raise
            return json.loads(result.read_text()) if result.exists() else None


def plain_job(job: str, *arguments: str, **task: Any) -> PlainJob:
    """The task that runs one stage without Spark. `arguments` may be templates; `task` is what Airflow takes for a task."""
    return PlainJob(task_id=job, arguments=[job, *RUN, *arguments], doc=f"python -m pipelines {job}", **task)


def spark_job(job: str, *arguments: str, **task: Any) -> SparkJob:
    """The task that runs one stage on Spark. `arguments` may be templates; `task` is what Airflow takes for a task."""
    return SparkJob(
        task_id=job,
        conn_id="spark_default",
        application=str(PIPELINES),
        name=f"manifold-{job}",
        application_args=[job, *RUN, *arguments],
        doc=f"spark-submit pipelines/__main__.py {job}",
        **task,
    )
