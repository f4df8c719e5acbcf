"""How Airflow handles a failed job: Spark next to the task, and a cluster that reports no exit status.

The application is real. Only `spark-submit` is replaced by a script that starts the driver without Spark: either as a child of
the task, or like a cluster that reports success or failure only.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from dags._jobs import JOBS, PIPELINES, SparkJob, SubprocessOperator
from manifold.contracts.lineage import RunName, task_run
from tests.support.lineage import told_in
from tests.support.servers import free_port

SUBMIT = """#!{python}
import json, os, pathlib, shutil, subprocess, sys
pathlib.Path("{seen}").write_text(json.dumps({{"argv": sys.argv, "env": dict(os.environ)}}))
application = next(place for place, word in enumerate(sys.argv) if word.endswith(".py"))
cluster = "cluster" in sys.argv[:application]
node, env = None, None
if cluster and "--files" in sys.argv:
    node = pathlib.Path("{node}")
    node.mkdir(exist_ok=True)
    for file in sys.argv[sys.argv.index("--files") + 1].split(","):
        shutil.copy2(file, node)
    env = {{name: value for name, value in os.environ.items() if not name.startswith("MANIFOLD_")}}
driver = subprocess.run([sys.executable, *sys.argv[application:]], capture_output=cluster, cwd=node, env=env)
sys.exit(min(driver.returncode, 1) if cluster else driver.returncode)
"""
MODES: dict[str, dict[str, Any]] = {
    "beside the task": {"host": "local[1]"},
    "on a cluster": {"host": "yarn", "extra": {"deploy-mode": "cluster"}},
}
DISCOVER = ["discover", "--no-flush"]


@pytest.fixture(autouse=True)
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The replacement of `spark-submit`, first on the path; Spark runs beside the task."""
    binary = tmp_path / "bin" / "spark-submit"
    binary.parent.mkdir()
    binary.write_text(SUBMIT.format(python=sys.executable, seen=tmp_path / "seen.json", node=tmp_path / "node"))
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(binary.parent), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(PIPELINES.parents[1]), prepend=":")
    monkeypatch.setenv("MANIFOLD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MANIFOLD_REDIS_PORT", str(free_port()))
    on(monkeypatch, host="local[1]")
    return binary


@pytest.fixture(params=MODES.values(), ids=[*MODES])
def each_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark beside the task, and on a cluster."""
    on(monkeypatch, **request.param)


def job(*arguments: str, **more: Any) -> SparkJob:
    return SparkJob(task_id="job", conn_id="spark_default", application=str(PIPELINES), application_args=[*arguments], **more)


def left(home: Path) -> list[Path]:
    return [*(home / "home" / "reports" / JOBS).glob("*")]


def on(monkeypatch: pytest.MonkeyPatch, **connection: Any) -> None:
    """Set the connection."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", **connection}))


def connect_redis(monkeypatch: pytest.MonkeyPatch) -> int:
    """Set a connection to a Redis with a password; return its port, at which nothing listens."""
    monkeypatch.setenv("MANIFOLD_REDIS_URL", "")  # undone after the test
    port = free_port()
    redis = {"conn_type": "redis", "host": "127.0.0.1", "port": port, "password": "s:cret"}
    monkeypatch.setenv("AIRFLOW_CONN_MANIFOLD_REDIS", json.dumps(redis))
    return port


@pytest.mark.usefixtures("each_mode")
def test_the_task_returns_the_result_of_its_job(tmp_path: Path) -> None:
    result = job(*DISCOVER).execute({})

    assert (result["segments"], result["next"]) == (0, ["populate"])
    assert left(tmp_path) == []


@pytest.mark.usefixtures("each_mode")
def test_a_permanent_error_fails_the_task_without_retry_and_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(AirflowFailException, match="--from and --to belong together"):
        job("discover", "--from", "2026-01-01").execute({})
    assert left(tmp_path) == []


def test_a_malformed_param_fails_the_task_without_retry_and_names_the_format() -> None:
    with pytest.raises(
        AirflowFailException, match=r"'25\.10\.2026' is not an instant; write ISO 8601, such as 2026-10-25T00:00:00Z"
    ):
        SubprocessOperator(task_id="job", arguments=["discover", "--from", "25.10.2026", "--no-flush"]).execute({})


def test_an_unknown_param_is_refused() -> None:
    context: Any = {"dag_run": SimpleNamespace(conf={"form": "2026-10-25T00:00:00Z"}), "params": {"from": None, "to": None}}

    for operator in (SubprocessOperator(task_id="job", arguments=DISCOVER), job(*DISCOVER)):
        with pytest.raises(AirflowFailException, match="no parameter form; it has from, to"):
            operator.execute(context)


@pytest.mark.parametrize("where", [*MODES, "in a subprocess"])
def test_an_unexpected_error_is_retried(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "lake").write_text("a file where the lake's folder should be")
    on(monkeypatch, **MODES.get(where, {}))
    attempt = job(*DISCOVER) if where in MODES else SubprocessOperator(task_id="job", arguments=DISCOVER)

    with pytest.raises(AirflowException, match="may help") as caught:
        attempt.execute({})
    assert not isinstance(caught.value, AirflowFailException)
    assert left(tmp_path) == []


def test_a_killed_job_is_retried(submit: Path) -> None:
    """Like the kernel's OOM killer: no result is left and the status says nothing."""
    submit.write_text(f"#!{sys.executable}\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")

    with pytest.raises(AirflowException) as caught:
        job(*DISCOVER).execute({})
    assert not isinstance(caught.value, AirflowFailException)


TORN_RESULT = """#!{python}
import pathlib, sys
from urllib.parse import urlsplit
file = pathlib.Path(urlsplit(sys.argv[sys.argv.index("--result") + 1]).path)
file.parent.mkdir(parents=True, exist_ok=True)
file.write_text('{{"segments": ')
sys.exit({status})
"""


def test_a_torn_result_does_not_hide_that_its_job_failed(submit: Path, tmp_path: Path) -> None:
    submit.write_text(TORN_RESULT.format(python=sys.executable, status=7))

    with pytest.raises(AirflowException, match=r"job: .*Error code is: 7.*may help"):
        job(*DISCOVER).execute({})
    assert left(tmp_path) == []


def test_a_torn_result_of_a_job_that_succeeded_is_no_result(submit: Path, tmp_path: Path) -> None:
    submit.write_text(TORN_RESULT.format(python=sys.executable, status=0))

    assert job(*DISCOVER).execute({}) is None
    assert left(tmp_path) == []


def test_a_torn_result_does_not_hide_that_a_subprocess_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = tmp_path / "bin" / "python"
    interpreter.write_text(TORN_RESULT.format(python=sys.executable, status=7))
    interpreter.chmod(0o755)
    monkeypatch.setattr("dags._jobs.sys.executable", str(interpreter))

    with pytest.raises(AirflowException, match="may help"):
        SubprocessOperator(task_id="job", arguments=DISCOVER).execute({})


def test_a_job_names_its_task_as_lineage_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, due = tmp_path / "home" / "events.jsonl", datetime(2026, 3, 1, tzinfo=UTC)
    task = SimpleNamespace(dag_id="housekeeping", task_id="job", try_number=2, map_index=-1)
    run = SimpleNamespace(logical_date=None, run_after=due)  # a manually triggered run in Airflow's terms
    context: Any = {"ti": task, "dag_run": run}
    monkeypatch.setenv("MANIFOLD_LINEAGE_URL", f"file://{file}")
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "airflow-here")

    job("migrate").execute(context)
    SubprocessOperator(task_id="job", arguments=["migrate"]).execute(context)

    parents = [event["run"]["facets"]["parent"] for event in told_in(file)]
    named = task_run("airflow-here", "housekeeping", "job", attempt=2, mapped=-1, due=due)
    assert [RunName(p["job"]["namespace"], p["job"]["name"], p["run"]["runId"]) for p in parents] == [named] * 4


def test_a_driver_gets_the_options_of_its_site_and_connections_on_no_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Dsite=own")
    on(monkeypatch, host="spark://a.example:7077", extra={"properties-file": "/srv/spark.conf"})
    monkeypatch.setenv("MANIFOLD_RECORDER_URLS", "")  # undone after the test
    monkeypatch.setenv("AIRFLOW_CONN_MANIFOLD_RECORDER", "http://a.example:9101")
    port = connect_redis(monkeypatch)

    job(*DISCOVER, java_options="-XX:TieredStopAtLevel=1", properties_file="/of/the/embedded.conf").execute({})

    seen = json.loads((tmp_path / "seen.json").read_text())
    argv, env = seen["argv"], seen["env"]
    assert env["JDK_JAVA_OPTIONS"] == "-Dsite=own -XX:TieredStopAtLevel=1"
    assert "--conf" not in argv
    assert argv[argv.index("--properties-file") + 1] == "/srv/spark.conf"
    assert env["MANIFOLD_REDIS_URL"] == f"redis://:s%3Acret@127.0.0.1:{port}/0"
    assert env["MANIFOLD_RECORDER_URLS"] == "http://a.example:9101"
    assert "s%3Acret" not in " ".join(argv)


def test_connections_reach_a_yarn_driver_in_a_file_that_only_its_user_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script gives the driver what YARN would: the files in its working folder, and no variable of the task."""
    on(monkeypatch, host="yarn", extra={"deploy-mode": "cluster"})
    connect_redis(monkeypatch)
    store = {
        "conn_type": "aws",
        "extra": {"archive": (tmp_path / "archive").as_uri(), "reports": (tmp_path / "home/reports").as_uri()},
    }
    monkeypatch.setenv("AIRFLOW_CONN_MANIFOLD_STORE", json.dumps(store))
    for name in ("ARCHIVE_URL", "REPORTS"):
        monkeypatch.setenv(f"MANIFOLD_{name}", "")

    with pytest.raises(AirflowException, match="--from and --to belong together"):
        job("discover", "--no-flush", "--from", "2026-01-01").execute({})

    seen = json.loads((tmp_path / "seen.json").read_text())
    assert "s%3Acret" not in " ".join(seen["argv"])
    file = tmp_path / "node" / "manifold.toml"
    assert file.stat().st_mode & 0o077 == 0
    assert "s%3Acret" in file.read_text()
    assert not Path(seen["argv"][seen["argv"].index("--files") + 1]).exists()  # the task's own copy


def test_a_driver_that_cannot_receive_connections_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its settings the driver would use an empty lake of its own and report success."""
    on(monkeypatch, host="k8s://https://a.example", extra={"deploy-mode": "cluster", "namespace": "jobs"})
    connect_redis(monkeypatch)

    with pytest.raises(AirflowFailException, match=r"do not reach it: MANIFOLD_REDIS_URL; .*secretKeyRef.*driver-has-settings"):
        job(*DISCOVER).execute({})
    assert not (tmp_path / "seen.json").exists()
