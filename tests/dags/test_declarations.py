"""Rules for every DAG, checked without a database. Each failure says how to comply."""

import ast
import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, AssetOrTimeSchedule, CronDataIntervalTimetable, CronTriggerTimetable

from dags._defaults import DRIVER_OPTIONS, REBUILT
from dags._jobs import BranchingOperator, SparkJob, SubprocessOperator
from manifold.contracts import assets
from manifold.contracts.tables import EVERY_RUN_TABLE, NAMESPACE, QUALITY, XRAY_PROCESSED
from manifold.settings import Settings
from tests.support.servers import ROOT

FOLDER = ROOT / "dags"
FILES = sorted(path for path in FOLDER.glob("*.py") if not path.name.startswith("_"))
OURS = {SparkJob.__module__}
TEAMS = {"data-platform"}
MAX_LINES = 70  # the runbook is among them
RUNBOOK = ("**Reads**", "**Writes**", "**Do not trigger it**", "**When it fails", "**To back out**", "Owner: ")
WRITERS = [
    ("ingest_archives", "publish"),
    ("backfill_archives", "publish"),
    ("collect_garbage", "garbage"),
    ("stream_archives", "stream"),
    ("rebuild_queues", "rebuild"),
    ("check_lake", "check"),
]
JOBS = {
    "discover",
    "ingest",
    "audit",
    "publish",
    "populate",
    "rebuild",
    "compact",
    "garbage",
    "verify",
    "check",
    "stream",
    "process_signals",
    "rotate_keys",
    "campaign_order",
    "campaign_asks",
    "campaign_reports",
    "campaign_targets",
}
ASKING = {"missing", "ask", "approve"}  # tasks that are Airflow's own: they ask people
SIDE_BY_SIDE = {"campaign_approvals", "campaign_control"}  # runs that wait for people, and orders: none overtakes another


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(FOLDER, bundle_path=FOLDER)


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def file(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def dag(file: Path, bag: DagBag) -> DAG:
    assert not bag.import_errors
    assert file.stem in bag.dags, f"name the DAG after its file: {file.name} has no DAG {file.stem}"
    found: DAG = bag.dags[file.stem]
    return found


def test_every_dag_is_declared_in_its_own_file(bag: DagBag, file: Path) -> None:
    assert set(bag.dags) == {path.stem for path in FILES}, "one DAG per file, named after it"
    lines = len(file.read_text().splitlines())
    assert lines <= MAX_LINES, f"{file.name} has {lines} lines: move what is not a declaration into pipelines/"


def test_every_dag_documents_how_to_operate_it(dag: DAG) -> None:
    missing = [part for part in RUNBOOK if part not in (dag.doc_md or "")]
    assert not missing, f"write the runbook as the module's docstring and pass doc_md=__doc__; it lacks {missing}"
    assert dag.tags, "add tags, by which the list of DAGs can be filtered"
    assert {task.owner for task in dag.tasks} <= TEAMS, f"owners are teams, not people: one of {TEAMS}"


def test_every_dag_has_a_schedule(dag: DAG) -> None:
    assert dag.catchup is False, "set catchup=False on the DAG; backfills have their own DAG"
    assert dag.max_active_runs == 1 or dag.dag_id in SIDE_BY_SIDE, (
        "set max_active_runs=1: concurrent runs of one DAG would overtake each other"
    )
    if isinstance(dag.timetable, CronTriggerTimetable | AssetOrTimeSchedule):
        assert dag.start_date is None, "use by_cron: otherwise it runs at every start of Airflow for the previous tick"
    else:
        assert dag.start_date is not None, "set a fixed start_date"


def test_every_task_retries_with_backoff_and_has_a_timeout(dag: DAG) -> None:
    for task in dag.tasks:
        assert task.retries, f"{task.task_id}: set retries; a job is safe to repeat"
        assert task.retry_exponential_backoff, f"{task.task_id}: set retry_exponential_backoff"
        assert isinstance(task.max_retry_delay, timedelta), f"{task.task_id}: bound the pauses with max_retry_delay"
        assert task.execution_timeout, f"{task.task_id}: set execution_timeout, or a hung job blocks the DAG forever"


def test_every_param_has_a_type_and_a_description(dag: DAG) -> None:
    for name in dag.params:
        param = dag.params.get_param(name)
        assert "type" in param.schema, f"{name}: give the Param a type"
        assert param.description, f"{name}: give the Param a description"


def test_spark_tasks_take_the_master_from_the_connection(dag: DAG) -> None:
    for task in dag.tasks:
        if isinstance(task, SparkSubmitOperator):
            assert isinstance(task, SparkJob), f"{task.task_id}: make it with spark_job"
            assert task.spark_conn_id == "spark_default", f"{task.task_id}: use the connection spark_default"
            assert not task.conf, f"{task.task_id}: Spark's configuration belongs to the site: a conf of ours would hide its own"
            assert task.pool == Settings().spark_pool, f"{task.task_id}: give it the pool whose slots bound Spark"
            assert Path(task.application).is_file(), f"{task.task_id}: {task.application} is not there"
        assert task.task_id in JOBS | ASKING, f"{task.task_id}: name the task after its job in pipelines/"


@pytest.mark.parametrize("dag_id", ["ingest_archives", "backfill_archives"])
def test_ingest_stages_run_in_order(bag: DagBag, dag_id: str) -> None:
    follows = {task.task_id: task.downstream_task_ids for task in bag.dags[dag_id].tasks}
    assert follows == {
        "discover": {"ingest", "populate"},
        "ingest": {"audit"},
        "audit": {"publish"},
        "publish": {"populate"},
        "populate": set(),
    }


@pytest.mark.parametrize("dag_id", ["ingest_archives", "backfill_archives"])
def test_spark_jobs_of_an_ingest_get_jvm_options_for_its_size(bag: DagBag, dag_id: str) -> None:
    jobs = {task.task_id: task.java_options for task in bag.dags[dag_id].tasks if isinstance(task, SparkJob)}
    assert jobs == dict.fromkeys(("ingest", "populate"), DRIVER_OPTIONS)


def test_the_ingest_schedule_has_a_data_interval(bag: DagBag) -> None:
    timetable = bag.dags["ingest_archives"].timetable
    assert isinstance(timetable, CronDataIntervalTimetable), "other timetables give an empty interval"


def test_loading_the_dags_imports_neither_spark_nor_pipelines() -> None:
    program = "\n".join(
        [
            "import runpy, sys",
            *(f"runpy.run_path({str(path)!r})" for path in FILES),
            "heavy = ('pyspark', 'great_expectations', 'pipelines', 'pyiceberg', 'redis')",
            "print(*sorted({name.partition('.')[0] for name in sys.modules} & set(heavy)))",
        ]
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MANIFOLD_INGEST_SCHEDULE": "*/5 * * * *"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "", "DAG files are parsed repeatedly: import nothing heavy at module level"


def test_failed_and_late_runs_raise_alerts(dag: DAG) -> None:
    assert dag.has_on_failure_callback, "create the DAG with **DAG_DEFAULTS"
    assert dag.deadline or dag.dag_id in {"backfill_archives", "process_signals", "campaign_approvals"}, (
        "create the DAG with **DAG_DEFAULTS"
    )


def test_the_dags_produce_every_declared_asset(bag: DagBag) -> None:
    made = {asset.name for dag in bag.dags.values() for task in dag.tasks for asset in task.outlets}
    assert made == {*assets.PUBLISHED, assets.QUALITY_RESULTS, assets.QUEUES, assets.REBUILT}, (
        "name the assets of a DAG in manifold/contracts/assets.py and list them as outlets of a task"
    )


def test_each_table_is_an_asset_and_every_writer_declares_it(bag: DagBag) -> None:
    assert set(assets.PUBLISHED) == {table.name for table in EVERY_RUN_TABLE}
    assert QUALITY.name == assets.QUALITY_RESULTS
    assert assets.NAMESPACE == NAMESPACE
    outlets = {(dag_id, task.task_id): task.outlets for dag_id, dag in bag.dags.items() for task in dag.tasks}
    for writer in WRITERS:
        made = {asset.name: asset.uri for asset in outlets[writer]}
        assert made.items() >= {(table.name, f"manifold://lake/sdv/{table.name}") for table in EVERY_RUN_TABLE}
    assert [asset.uri for asset in outlets["process_signals", "process_signals"]] == [
        f"manifold://lake/sdv/{XRAY_PROCESSED.name}"
    ]


def test_the_lake_is_checked_against_its_archive_weekly(bag: DagBag) -> None:
    timetable = bag.dags["check_lake"].timetable
    assert isinstance(timetable, CronTriggerTimetable)
    _, _, day, month, weekday = timetable.expression.split()
    assert (day, month, len(weekday)) == ("*", "*", 1)
    assert bag.dags["check_lake"].is_paused_upon_creation is False


def test_dags_that_delete_data_start_paused_and_say_so(dag: DAG) -> None:
    if "destructive" in dag.tags:
        assert dag.is_paused_upon_creation
        assert "It is paused at first" in (dag.doc_md or "")
    assert ("destructive" in dag.tags) == (dag.dag_id == "collect_garbage")


def test_queues_are_verified_on_schedule_and_after_each_rebuild(bag: DagBag) -> None:
    timetable = bag.dags["verify_queues"].timetable
    assert isinstance(timetable, AssetOrTimeSchedule)
    assert isinstance(timetable.timetable, CronTriggerTimetable)
    assert timetable.asset_condition == REBUILT
    (rebuild,) = bag.dags["rebuild_queues"].tasks
    assert assets.REBUILT in {asset.name for asset in rebuild.outlets}


def test_every_param_has_a_default(dag: DAG) -> None:
    dag.params.validate()


@pytest.mark.parametrize("file", sorted([*FOLDER.glob("*.py"), *(ROOT / "plugins").glob("*.py")]), ids=lambda path: path.stem)
def test_no_private_name_of_airflow_or_a_provider_is_used(file: Path) -> None:
    """Private names may change in any release."""
    tree = ast.parse(file.read_text())
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    taken = [name for name in imported if name.startswith("_")]
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_private(node.attr)]
    of_others = [ast.unparse(node) for node in used if ast.unparse(node.value) not in {"self", "cls"}]
    assert (taken, of_others) == ([], [])


@pytest.mark.parametrize("operator", [SparkJob, SubprocessOperator, BranchingOperator])
def test_operators_define_no_private_name_of_their_base_class(operator: type) -> None:
    here, theirs = (private_names(c for c in operator.__mro__ if (c.__module__ in OURS) is ours) for ours in (True, False))
    assert here & theirs == set()


def private_names(classes: Iterable[type]) -> set[str]:
    """The private names that these classes define or use on themselves."""
    found: set[str] = set()
    for one in classes:
        if one.__module__ == "builtins":
            continue
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(one)))):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=name) | ast.FunctionDef(name=name) if is_private(name):
                    found.add(name)
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
