"""The operators that run a job of the pipelines, and their handling of jobs that failed.

The result that a job prints becomes the result of the task (XCom). A job says whether a retry can help: by its exit status, or,
on Spark, by its result, because cluster deploy mode returns no exit status. If a retry cannot help, the task fails at once.
Every other failure is retried: an unforeseen error may pass.
"""

import json
import os
import secrets
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    BaseHook,
    Context,
)
from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.providers.standard.utils.skipmixin import SkipMixin
from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.configuration import conf

from dags._connections import SPARK_CONNECT, settings_of, spark_connect, write_file
from dags._lineage import lineage_parent
from manifold.settings import load_settings

if TYPE_CHECKING:
    from manifold.lake.files import Files

PIPELINES = Path(__file__).parents[1] / "pipelines" / "__main__.py"
JAVA_OPTIONS = "JDK_JAVA_OPTIONS"  # every JVM takes these, besides those of its command line
JOBS = "jobs"  # folder beside the reports in which jobs on Spark leave their results, until the task has read them
PROPERTIES_FILE = "properties-file"  # of the connection: Spark's defaults for that cluster, as `manifold ship` writes them
DRIVER_HAS_SETTINGS = "driver-has-settings"  # of the connection: a driver on the cluster gets the settings in another way
UNREACHED = (
    "the driver runs on the cluster, where these, which connections of Airflow say, do not reach it: {names}; give it them by "
    "spark.kubernetes.driver.secretKeyRef.<name> in spark-defaults.conf, then say so in spark_default: "
    f'{{{{"{DRIVER_HAS_SETTINGS}": true}}}}; or have it run beside the task: {{{{"deploy-mode": "client"}}}}'
)
# Exit status of a job, as `pipelines.cli` has them; every other one may be cured by doing it again.
DONE, PERMANENT = 0, 5


class QualityReport(BaseOperatorLink):
    """A button of a task in the Airflow UI: the report of the run, where it has one. A plugin serves the pages."""

    name = "Quality report"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """The page's address; empty before the run has been judged."""
        del operator
        from manifold.lake.reports import open_reports, run_page  # DAG files are read again and again, and need no Arrow

        page = run_page(ti_key.run_id)
        there = open_reports(load_settings()).has(page)
        return f"{conf.get('api', 'base_url', fallback='')}/reports/{quote(page)}" if there else ""


class SubprocessOperator(BaseOperator):
    """One stage in a process of its own, so that Airflow's never carries a pipeline's libraries; its result is the task's.

    An argument whose template comes out empty is not there.
    """

    template_fields: Sequence[str] = ("arguments",)

    def __init__(self, *, arguments: Iterable[str], links: Iterable[BaseOperatorLink] = (), **rest: Any) -> None:
        super().__init__(**rest)
        self.operator_extra_links = tuple(links)
        self.arguments = list(arguments)
        self._hook = SubprocessHook()

    def execute(self, context: Context) -> Any:
        """Run it, with what it says in this task's log."""
        _refuse_unknown_parameters(context)
        os.environ.update(_from_connections())  # of this task's own process, which the job inherits
        return _result(self.task_id, self._hook, [*self.arguments, *lineage_parent(context)])

    def on_kill(self) -> None:
        """End the process with the task."""
        self._hook.send_sigterm()  # type: ignore[no-untyped-call]  # the provider's


class DiscoverOperator(SubprocessOperator, SkipMixin):
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
    """One stage as a Spark application; its result is the task's, wherever the driver runs.

    The driver leaves its result beside the reports, which it and the task both reach, under a name of this attempt alone. An
    argument whose template comes out empty is not there. `java_options` are added to those that a site gives its drivers, where
    the driver runs beside the task. The connection's field `properties-file` names Spark's defaults for its cluster.

    Where the connection is of the type `spark_connect`, the stage is a client of that server, in a process of its own.
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "java_options")

    def __init__(
        self,
        *,
        java_options: str = "",
        links: Iterable[BaseOperatorLink] = (),
        **rest: Any,
    ) -> None:
        # Not durable: the provider can resume no application of Python's, and refuses YARN's cluster mode where it should.
        super().__init__(durable=False, **rest)
        self.site = rest["conn_id"]  # says where Spark runs
        self.java_options = java_options
        self._client = SubprocessHook()
        self.operator_extra_links = tuple(links)

    def execute(self, context: Context) -> Any:
        """Submit, and wait for the end."""
        from manifold.lake.reports import open_reports  # DAG files are read again and again, and need no Arrow

        _refuse_unknown_parameters(context)
        given = [*filter(None, self.application_args or []), *lineage_parent(context)]
        connected = _from_connections()
        os.environ.update(connected)  # of this task's own process: spark-submit inherits it
        site = _connection(self.site)
        if site is not None and site.conn_type == SPARK_CONNECT:
            os.environ.update(spark_connect(site))
            return _result(self.task_id, self._client, given)
        files, name = open_reports(load_settings()), f"{JOBS}/{secrets.token_hex(8)}.json"
        self.application_args = [*given, "--result", f"{files.url}/{name}"]
        # Not Spark's own option for it: that would take the place of the site's.
        if self.java_options:
            os.environ[JAVA_OPTIONS] = " ".join(filter(None, [os.environ.get(JAVA_OPTIONS), self.java_options]))
        with tempfile.TemporaryDirectory(prefix="manifold-task-") as folder:
            self._know_the_site(connected, Path(folder))
            try:
                super().execute(context)
            except Exception as exc:  # the provider raises what comes
                left = self._take(files, name) or {}
                raise _failure(self.task_id, left.get("error", str(exc)), again=left.get("again", True)) from exc
            return self._take(files, name)

    def on_kill(self) -> None:
        """End the application, or the client, which ends what its server does for it."""
        if self._client.sub_process:
            self._client.send_sigterm()  # type: ignore[no-untyped-call]  # the provider's
        else:
            super().on_kill()

    def _know_the_site(self, settings: Mapping[str, str], folder: Path) -> None:
        """What the connection says besides what the provider reads; and settings for a driver that inherits no environment.

        Raises:
            AirflowFailException: the driver would not get them.
        """
        connection = _connection(self.site)
        extra = connection.extra_dejson if connection else {}
        self.properties_file = extra.get(PROPERTIES_FILE, self.properties_file)
        if extra.get("deploy-mode") != "cluster" or not settings or extra.get(DRIVER_HAS_SETTINGS):
            return
        if (connection.host or connection.conn_type or "").partition(":")[0] != "yarn":
            raise AirflowFailException(f"{self.task_id}: {UNREACHED.format(names=', '.join(sorted(settings)))}")
        self.files = ",".join(filter(None, [self.files, str(write_file(settings, folder))]))

    def _take(self, files: "Files", name: str) -> Any:
        """What the job has left, which then goes; None if it has left nothing, or nobody can see it."""
        try:
            found = files.read(name)
            files.remove(name)
        except OSError as exc:
            self.log.warning("what the job has left at %s cannot be read: %s", files.url, exc)
            return None
        if found is None:
            self.log.warning("the job has left no result at %s; see that its driver can write there", files.url)
        return json.loads(found) if found else None


def _refuse_unknown_parameters(context: Context) -> None:
    """Fail the task at once where the run was given a parameter that the DAG does not have: Airflow ignores it.

    Raises:
        AirflowFailException: there is one; the message names those that there are.
    """
    if (run := context.get("dag_run")) is None:
        return
    known = sorted(context.get("params") or ())
    if unknown := sorted((getattr(run, "conf", None) or {}).keys() - set(known)):
        raise AirflowFailException(f"the DAG has no parameter {', '.join(unknown)}; it has {', '.join(known) or 'none'}")


def _result(task_id: str, hook: SubprocessHook, arguments: Iterable[str]) -> Any:
    """Run a stage in its own process; return its result.

    Raises:
        AirflowException: the stage failed, and a retry may help.
        AirflowFailException: the stage failed, and a retry cannot help.
    """
    status, said, result = _run(hook, arguments)
    if status != DONE:
        raise _failure(task_id, said, again=status != PERMANENT)
    return result


def _run(hook: SubprocessHook, arguments: Iterable[str]) -> tuple[int, str, Any]:
    """Run a stage in its own process; return its exit status, last line and result."""
    with tempfile.TemporaryDirectory(prefix="manifold-task-") as folder:
        file = Path(folder) / "result.json"
        given = [argument for argument in arguments if argument]
        command = [sys.executable, "-m", "pipelines", *given, "--result", str(file)]
        done = hook.run_command(command, cwd=str(PIPELINES.parents[1]))  # settings may name folders from there
        return done.exit_code, done.output, json.loads(file.read_text()) if file.exists() else None


def _from_connections() -> dict[str, str]:
    """Settings of the job that Airflow's connections give."""
    return settings_of(_connection)


def _connection(name: str) -> Any:
    """The connection; None if there is none of this name."""
    try:
        return BaseHook.get_connection(name)
    except AirflowNotFoundException:
        return None


def _failure(task_id: str, said: str, *, again: bool) -> AirflowException:
    if again:
        return AirflowException(f"{task_id}: {said}; doing it again may help")
    return AirflowFailException(f"{task_id}: {said}; doing it again changes nothing")
