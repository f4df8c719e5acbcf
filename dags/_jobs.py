"""The operators that run a job of the pipelines, and their handling of jobs that failed.

A job's result becomes the result of its task (XCom). A failed job also says whether a retry can help: by its exit status, or, on
Spark, by a field of its result, because cluster deploy mode returns no exit status. If a retry cannot help, the task fails
without further retries. After every other failure Airflow retries the task, because the cause may be temporary.
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

from dags._connections import SPARK_CONNECT, spark_connect, variables_from_connections, write_settings_file
from dags._lineage import lineage_parent
from manifold.settings import load_settings

if TYPE_CHECKING:
    from manifold.lake.files import Files

PIPELINES = Path(__file__).parents[1] / "pipelines" / "__main__.py"
JAVA_OPTIONS = "JDK_JAVA_OPTIONS"  # environment variable: every JVM adds these options to those of its command line
JOBS = "jobs"  # folder in the store of the reports: a Spark job writes its result there, and its task reads and removes it
# Fields of the Spark connection.
PROPERTIES_FILE = "properties-file"  # path of Spark's defaults for the connection's cluster, as `manifold ship` writes them
DRIVER_HAS_SETTINGS = "driver-has-settings"  # true if a driver on the cluster gets the settings without the task's help
UNREACHED = (
    "the driver runs on the cluster, where these, which connections of Airflow say, do not reach it: {names}; give it them by "
    "spark.kubernetes.driver.secretKeyRef.<name> in spark-defaults.conf, then say so in spark_default: "
    f'{{{{"{DRIVER_HAS_SETTINGS}": true}}}}; or have it run beside the task: {{{{"deploy-mode": "client"}}}}'
)
# Exit statuses of a job, defined by `pipelines.cli`. After any other status, a retry may help.
DONE, PERMANENT = 0, 5


class QualityReport(BaseOperatorLink):
    """A button of a task in the Airflow UI that opens the quality report of its run. A plugin serves the pages."""

    name = "Quality report"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """The URL of the report; empty if the run has no report yet."""
        del operator
        from manifold.lake.reports import open_reports, run_page  # imported here: parsing DAG files needs no Arrow

        page = run_page(ti_key.run_id)
        if not open_reports(load_settings()).has(page):
            return ""
        airflow_url = conf.get("api", "base_url", fallback="")
        return f"{airflow_url}/reports/{quote(page)}"


class SubprocessOperator(BaseOperator):
    """Runs one stage in a process of its own, so that Airflow's process never loads the libraries of the pipelines.

    The stage's result becomes the result of the task. Arguments whose templates render to empty text are omitted.
    """

    template_fields: Sequence[str] = ("arguments",)

    def __init__(self, *, arguments: Iterable[str], links: Iterable[BaseOperatorLink] = (), **rest: Any) -> None:
        super().__init__(**rest)
        self.operator_extra_links = tuple(links)
        self.arguments = list(arguments)
        self._hook = SubprocessHook()

    def execute(self, context: Context) -> Any:
        """Run the stage, and write its output to the log of this task."""
        _refuse_unknown_parameters(context)
        os.environ.update(_variables_from_connections())  # the job's process inherits the environment of this task's process
        return _run_stage(self.task_id, self._hook, [*self.arguments, *lineage_parent(context)])

    def on_kill(self) -> None:
        """Terminate the stage's process."""
        self._hook.send_sigterm()  # type: ignore[no-untyped-call]  # the provider's


class BranchingOperator(SubprocessOperator, SkipMixin):
    """Runs a stage whose result lists, as `next`, the ids of the tasks to run next; all other downstream tasks are skipped.

    If the list is empty, all downstream tasks are skipped, and the run succeeds.
    """

    inherits_from_skipmixin = True

    def execute(self, context: Context) -> Any:
        """Run the stage, and skip the downstream tasks that neither are in `next` nor follow a task in `next`.

        All of them are skipped at once; the scheduler would skip them one after the other.
        """
        result = super().execute(context)
        # Push the result explicitly: `skip` may end this method with an exception, and the return value would be lost.
        context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=result)
        to_run = set(result["next"])
        for task_id in result["next"]:
            to_run |= self.dag.get_task(task_id).get_flat_relative_ids()
        to_skip = sorted(self.get_flat_relative_ids() - to_run)
        self.skip(context["ti"], [self.dag.get_task(task_id) for task_id in to_skip])
        return result


class SparkJob(SparkSubmitOperator):
    """Runs one stage as a Spark application; its result becomes the result of the task, wherever the driver runs.

    The driver writes its result to the store of the reports, which both driver and task can reach, under a new name for each
    attempt. Arguments whose templates render to empty text are omitted. If the driver runs in client mode, `java_options` are
    added to the site's own driver options. The connection's field `properties-file` names Spark's defaults for its cluster.

    If the connection has the type `spark_connect`, the stage runs in a process of its own, as a client of that server.
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "java_options")

    def __init__(
        self,
        *,
        java_options: str = "",
        links: Iterable[BaseOperatorLink] = (),
        **rest: Any,
    ) -> None:
        # Not durable: the provider cannot resume Python applications, and its durable mode refuses YARN in cluster mode.
        super().__init__(durable=False, **rest)
        self.spark_conn_id = rest["conn_id"]
        self.java_options = java_options
        self._client = SubprocessHook()
        self.operator_extra_links = tuple(links)

    def execute(self, context: Context) -> Any:
        """Run the stage on Spark, and wait until it ends."""
        _refuse_unknown_parameters(context)
        arguments = [argument for argument in self.application_args or [] if argument]
        arguments += lineage_parent(context)
        variables = _variables_from_connections()
        os.environ.update(variables)  # spark-submit, or the client, inherits the environment of this task's process
        connection = _connection(self.spark_conn_id)
        if connection is not None and connection.conn_type == SPARK_CONNECT:
            os.environ.update(spark_connect(connection))
            return _run_stage(self.task_id, self._client, arguments)
        return self._submit(context, arguments, variables)

    def _submit(self, context: Context, arguments: list[str], variables: Mapping[str, str]) -> Any:
        """Submit the stage as an application, wait until it ends, and return its result.

        `variables` are the settings from connections; they are also in the environment.

        Raises:
            AirflowException: the stage failed, and a retry may help.
            AirflowFailException: the stage failed, or the settings cannot reach its driver, and a retry cannot help.
        """
        from manifold.lake.reports import open_reports  # imported here: parsing DAG files needs no Arrow

        files = open_reports(load_settings())
        result_path = f"{JOBS}/{secrets.token_hex(8)}.json"
        self.application_args = [*arguments, "--result", f"{files.url}/{result_path}"]
        # Set by environment variable, because Spark's own option for driver options would replace the site's.
        if self.java_options:
            present_options = os.environ.get(JAVA_OPTIONS)
            os.environ[JAVA_OPTIONS] = f"{present_options} {self.java_options}" if present_options else self.java_options
        with tempfile.TemporaryDirectory(prefix="manifold-task-") as folder:
            self._apply_connection(variables, Path(folder))
            try:
                super().execute(context)
            except Exception as exc:  # the provider raises many types
                # The job has written why it failed, and whether a retry can help, unless it was killed or could not start.
                failure = self._take_result(files, result_path) or {}
                message = failure.get("error", str(exc))
                may_retry = failure.get("again", True)
                raise _failure(self.task_id, message, may_retry=may_retry) from exc
            return self._take_result(files, result_path)

    def on_kill(self) -> None:
        """End the application, or the Spark Connect client; the server then ends the client's work."""
        if self._client.sub_process:
            self._client.send_sigterm()  # type: ignore[no-untyped-call]  # the provider's
        else:
            super().on_kill()

    def _apply_connection(self, variables: Mapping[str, str], folder: Path) -> None:
        """Apply the connection's fields that the provider ignores, and pass `variables` to a driver on the cluster.

        Such a driver does not inherit the environment. On YARN, spark-submit uploads a settings file, written to `folder`.

        Raises:
            AirflowFailException: the driver runs on another kind of cluster, so the settings would not reach it.
        """
        connection = _connection(self.spark_conn_id)
        extra = connection.extra_dejson if connection else {}
        self.properties_file = extra.get(PROPERTIES_FILE, self.properties_file)
        is_on_cluster = extra.get("deploy-mode") == "cluster"
        if not is_on_cluster or not variables or extra.get(DRIVER_HAS_SETTINGS):
            return
        master = connection.host or connection.conn_type or ""  # for example yarn, or k8s://https://…
        if master.partition(":")[0] != "yarn":
            names = ", ".join(sorted(variables))
            raise AirflowFailException(f"{self.task_id}: {UNREACHED.format(names=names)}")
        settings_file = str(write_settings_file(variables, folder))
        self.files = f"{self.files},{settings_file}" if self.files else settings_file

    def _take_result(self, files: "Files", path: str) -> Any:
        """Read the result that the job has written, and remove its file; None if there is none, or if it cannot be read."""
        address = f"{files.url}/{path}"
        try:
            content = files.read(path)
            files.remove(path)
        except OSError as exc:
            self.log.warning("cannot read the result of job %s from %s: %s", self.task_id, address, exc)
            return None
        if content is None:
            self.log.warning("job %s has left no result at %s; check that its driver can write there", self.task_id, address)
        try:
            return json.loads(content) if content else None
        except ValueError as exc:
            self.log.warning("the result of job %s at %s is not JSON: %s", self.task_id, address, exc)
            return None


def _refuse_unknown_parameters(context: Context) -> None:
    """Fail the task if the run was triggered with a parameter that the DAG does not have. Airflow itself ignores it.

    Raises:
        AirflowFailException: there is an unknown parameter; the message lists the DAG's parameters.
    """
    run = context.get("dag_run")
    if run is None:
        return
    known = sorted(context.get("params") or ())
    triggered_with = getattr(run, "conf", None) or {}
    unknown = sorted(triggered_with.keys() - set(known))
    if unknown:
        raise AirflowFailException(f"the DAG has no parameter {', '.join(unknown)}; it has {', '.join(known) or 'none'}")


def _run_stage(task_id: str, hook: SubprocessHook, arguments: Iterable[str]) -> Any:
    """Run a stage in its own process; return its result.

    Raises:
        AirflowException: the stage failed, and a retry may help.
        AirflowFailException: the stage failed, and a retry cannot help.
    """
    status, last_line, result = _run_command(hook, arguments)
    if status != DONE:
        raise _failure(task_id, last_line, may_retry=status != PERMANENT)
    return result


def _run_command(hook: SubprocessHook, arguments: Iterable[str]) -> tuple[int, str, Any]:
    """Run a stage in its own process; return its exit status, the last line of its output, and its result.

    The result is None if the stage failed, or has left none.
    """
    with tempfile.TemporaryDirectory(prefix="manifold-task-") as folder:
        file = Path(folder) / "result.json"
        stage = [argument for argument in arguments if argument]  # its name and options, without those that rendered to nothing
        command = [sys.executable, "-m", "pipelines", *stage, "--result", str(file)]
        # Run in the project's folder, because paths in settings may be relative to it.
        process = hook.run_command(command, cwd=str(PIPELINES.parents[1]))
        has_result = process.exit_code == DONE and file.exists()
        result = json.loads(file.read_text()) if has_result else None
        return process.exit_code, process.output, result


def _variables_from_connections() -> dict[str, str]:
    """The environment variables of a job that are set from Airflow's connections."""
    return variables_from_connections(_connection)


def _connection(connection_id: str) -> Any:
    """The connection of this id; None if there is none."""
    try:
        return BaseHook.get_connection(connection_id)
    except AirflowNotFoundException:
        return None


def _failure(task_id: str, message: str, *, may_retry: bool) -> AirflowException:
    """The exception that fails the task; only if `may_retry`, Airflow retries the task."""
    if may_retry:
        return AirflowException(f"{task_id}: {message}; doing it again may help")
    return AirflowFailException(f"{task_id}: {message}; doing it again changes nothing")
