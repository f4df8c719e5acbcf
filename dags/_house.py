"""What every DAG of this house has in common: an owner, retries, and how a job of the pipelines is run.

A job is a stage of `python -m pipelines`. Without Spark it is a process of its own; with Spark the connection `spark_default`
says where that runs: a cluster changes the connection, and no DAG. What a job prints as its result becomes the task's (XCom).
A job says by its exit status whether doing it again can help; where it cannot, the task fails at once.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, Context
from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.providers.standard.utils.skipmixin import SkipMixin
from airflow.sdk import Asset, BaseOperator, BaseOperatorLink
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.configuration import conf

from contracts import assets
from contracts.settings import load_settings
from dags._alerts import late, tell_failed

PIPELINES = Path(__file__).parents[1] / "pipelines" / "__main__.py"
PROPERTIES = "SPARK_PROPERTIES_FILE"  # names Spark's defaults for spark-submit; unset: those of the Spark installation
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
    "on_failure_callback": tell_failed,
    "deadline": late(timedelta(seconds=load_settings().alert_after_seconds)),
}
# For a cron expression without data intervals: with a start date, Airflow would make up for the last tick as soon as it starts.
FROM_THE_NEXT_TICK: dict[str, Any] = {"start_date": None}
LAKE, QUEUES, REBUILT = Asset(assets.LAKE), Asset(assets.QUEUES), Asset(assets.REBUILT)
# The id of a run names its branches and its pages; Airflow makes it the same on every retry.
RUN = ("--run-id", "{{ run_id }}")
# Exit status of a job; every other one may be cured by doing it again.
DONE, NOT_DONE, NEEDS_SPARK = 0, 1, 4


class QualityReport(BaseOperatorLink):
    """A button of a task in the Airflow UI: the report of the run, where it has one. A plugin serves the pages."""

    name = "Quality report"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """The page's address; empty before the run has been judged."""
        del operator
        page = Path("runs", ti_key.run_id, "index.html")
        there = (load_settings().reports_folder / page).is_file()
        return f"{conf.get('api', 'base_url', fallback='')}/reports/{quote(str(page))}" if there else ""


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
        status, said, result = _run(self._hook, self.arguments)
        if status != DONE:
            raise _failure(self.task_id, status, said)
        return result

    def on_kill(self) -> None:
        """End the process with the task."""
        self._hook.send_sigterm()  # type: ignore[no-untyped-call]  # the provider's


class LookJob(PlainJob, SkipMixin):
    """A stage whose result names, as `next`, the tasks that are to follow. Without any the run is over, and green."""

    inherits_from_skipmixin = True

    def execute(self, context: Context) -> Any:
        """Run it, and skip what need not follow: all of it at once, where the scheduler would go from task to task."""
        result = super().execute(context)
        context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=result)  # to skip is to raise: nothing would be returned
        following = set(result["next"]).union(*(self.dag.get_task(name).get_flat_relative_ids() for name in result["next"]))
        self.skip(context["ti"], [self.dag.get_task(name) for name in sorted(self.get_flat_relative_ids() - following)])
        return result


class SparkJob(SparkSubmitOperator):
    """One stage as a Spark application; its result is the task's where the driver runs beside the task (client mode).

    An argument whose template comes out empty is not there. With `plain_first` the stage is tried in a process of its own, and
    Spark starts only if the stage says that it needs it.
    """

    def __init__(self, *, plain_first: bool = False, links: Iterable[BaseOperatorLink] = (), **rest: Any) -> None:
        super().__init__(**rest)
        self.plain_first = plain_first
        self.operator_extra_links = tuple(links)
        self._plain: SubprocessHook | None = None

    def execute(self, context: Context) -> Any:
        """Submit, and wait for the end."""
        given = [argument for argument in self.application_args or [] if argument]
        if self.plain_first:
            self._plain = SubprocessHook()
            status, said, result = _run(self._plain, [*given, "--without-spark"])
            if status == DONE:
                return result
            if status != NEEDS_SPARK:
                raise _failure(self.task_id, status, said)
        with tempfile.TemporaryDirectory(prefix="manifold-task-") as folder:
            file = Path(folder) / "result.json"
            self.application_args = [*given, "--result", str(file)]
            try:
                super().execute(context)
            except AirflowException as exc:
                submitted = self._hook._submit_sp if self._hook else None
                if submitted is not None and submitted.returncode == NOT_DONE:
                    raise _failure(self.task_id, NOT_DONE, "the reason is in the log") from exc
                raise
            return json.loads(file.read_text()) if file.exists() else None

    def on_kill(self) -> None:
        """End the process or the application with the task."""
        if self._hook is None and self._plain is not None:
            self._plain.send_sigterm()  # type: ignore[no-untyped-call]  # the provider's
        else:
            super().on_kill()


def _run(hook: SubprocessHook, arguments: Iterable[str]) -> tuple[int, str, Any]:
    """Exit status, last line and result of a stage in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="manifold-task-") as folder:
        file = Path(folder) / "result.json"
        given = [argument for argument in arguments if argument]
        command = [sys.executable, "-m", "pipelines", *given, "--result", str(file)]
        done = hook.run_command(command, cwd=str(PIPELINES.parents[1]))  # settings may name folders from there
        return done.exit_code, done.output, json.loads(file.read_text()) if file.exists() else None


def _failure(task_id: str, status: int, said: str) -> AirflowException:
    if status == NOT_DONE:
        return AirflowFailException(f"{task_id}: {said}; doing it again changes nothing")
    return AirflowException(f"{task_id}: {said} (exit status {status}); doing it again may help")


def plain_job(job: str, *arguments: str, **task: Any) -> PlainJob:
    """The task that runs one stage without Spark. `arguments` may be templates; `task` is what Airflow takes for a task."""
    return PlainJob(task_id=job, arguments=[job, *RUN, *arguments], doc=f"python -m pipelines {job}", **task)


def look_job(job: str, *arguments: str, **task: Any) -> LookJob:
    """The task that finds out, without Spark, what there is to do, and skips the tasks for which there is nothing."""
    return LookJob(task_id=job, arguments=[job, *RUN, *arguments], doc=f"python -m pipelines {job}", **task)


def spark_job(job: str, *arguments: str, **task: Any) -> SparkJob:
    """The task that runs one stage on Spark. `arguments` may be templates; `task` is what Airflow takes for a task.

    `plain_first=True`: without Spark, if the stage can (it takes `--without-spark`).
    """
    return SparkJob(
        task_id=job,
        conn_id="spark_default",
        application=str(PIPELINES),
        name=f"manifold-{job}",
        properties_file=os.environ.get(PROPERTIES),
        application_args=[job, *RUN, *arguments],
        doc=f"spark-submit pipelines/__main__.py {job}",
        **task,
    )
