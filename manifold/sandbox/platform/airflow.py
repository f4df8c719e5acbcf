"""`python -m manifold.sandbox.platform.airflow`: Airflow's own commands as one program, lean enough for two cores.

Its state is under <home>/airflow: SQLite, its own configuration file with generated keys, task logs. It listens on loopback only,
and every user must log in (`airflow_users`).
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import httpx

from manifold.contracts.errors import ManifoldError, Permanent
from manifold.runtime.renewal import written_at
from manifold.runtime.tls import verified
from manifold.sandbox.platform import airflow_users, api_tokens
from manifold.sandbox.platform.processes import Record, end, family
from manifold.settings import PREFIX, Settings, load_settings

ROOT = Path(__file__).parents[3]
HEALTH = "/api/v2/monitor/health"
# No triggerer, which would cost 150 MB: no DAG here defers. Logs are read from the folder, not over HTTP.
API_SERVER = "api-server"
COMPONENTS = ((API_SERVER,), ("scheduler", "--skip-serve-logs"), ("dag-processor",))  # the one that takes longest first
NEEDED = ("metadatabase", "scheduler", "dag_processor")
STOP_S = 15
LOOK_S = 0.2
IDLE_SLEEP_S = 0.5  # between two iterations of an idle scheduler; a run waits for several of them
WORKERS = 2  # concurrent tasks; each idle worker takes 47 MB
POOL = "default_pool"  # which Airflow always has; `WORKERS` bounds the jobs on Spark here


def url(settings: Settings) -> str:
    """Return the URL of the embedded Airflow."""
    return f"{'https' if settings.tls else 'http'}://{settings.loopback}:{settings.airflow_port}"


def environment(settings: Settings, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Airflow and its tasks; the caller's other AIRFLOW variables are dropped."""
    kept = {name: value for name, value in inherited.items() if not name.startswith("AIRFLOW")}
    tools = str(Path(sys.executable).parent)
    kind = "spark_connect" if settings.spark_master.startswith("sc://") else "spark"
    spark = {"conn_type": kind, "host": settings.spark_master}
    token = api_tokens.token_of_airflow(settings)
    api = {"conn_type": "http", "host": settings.api, "password": token}
    return (
        kept
        | ({"AIRFLOW_CONN_MANIFOLD_API": json.dumps(api)} if token else {})
        | {
            "AIRFLOW_HOME": str(settings.home / "airflow"),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
            **{f"AIRFLOW__{name}": value for name, value in _options(settings).items()},
            f"{PREFIX}SPARK_POOL": POOL,
            "PATH": os.pathsep.join([tools, kept.get("PATH", os.defpath)]),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")])),
            "PYSPARK_PYTHON": sys.executable,  # otherwise Spark's workers use the first python on the PATH
            "SPARK_PROPERTIES_FILE": str(_spark_folder(settings) / "spark-defaults.conf"),
            "SPARK_LOCAL_IP": settings.loopback,
            "GX_ANALYTICS_ENABLED": "false",
        }
    )


def _options(settings: Settings) -> dict[str, str]:
    """Airflow's options, each as SECTION__NAME."""
    address, certificate = url(settings), settings.http_tls_files.certificate
    shown = {"CERT": certificate, "KEY": certificate, "CA_FILE": settings.tls_files("").ca} if certificate else {}
    return {
        **{f"API__SSL_{name}": file for name, file in shown.items()},  # also trusted by tasks, which connect to it
        "CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": str(WORKERS),
        "CORE__SIMPLE_AUTH_MANAGER_USERS": airflow_users.users(),
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(airflow_users.passwords_file(settings)),
        "CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
        "DATABASE__SQL_ALCHEMY_CONNECT_ARGS": "manifold.sandbox.platform.airflow_sqlite.CONNECT",
        "API__HOST": settings.loopback,
        "API__PORT": str(settings.airflow_port),
        "API__BASE_URL": address,
        "API__WORKERS": "1",
        "API__INSTANCE_NAME": "Manifold",
        "API__EXPOSE_CONFIG": "False",
        "SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": str(IDLE_SLEEP_S),
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",  # detects interrupted tasks soon after a restart
        "DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",  # a file that has changed is read at once
        "DAG_PROCESSOR__REFRESH_INTERVAL": "30",
        "LOGGING__COLORED_CONSOLE_LOG": "False",
        "METRICS__STATSD_ON": "False",
    }


def is_healthy(settings: Settings) -> bool:
    """Whether it can accept triggers and run tasks: database, scheduler and DAG processor report healthy."""
    try:
        address = url(settings)
        answer = httpx.get(f"{address}{HEALTH}", timeout=2, verify=verified(settings, address))
        parts = answer.json() if answer.status_code == httpx.codes.OK else {}
    except (httpx.HTTPError, OSError, ValueError):
        return False
    return all(parts.get(part, {}).get("status") == "healthy" for part in NEEDED)


def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT, or until a process ends on its own; end all processes, and return the exit status.

    Raises:
        Permanent: the database or Spark's defaults cannot be created; the log above has the reason.
    """
    env = environment(settings, os.environ)
    with _group() as stopping:
        _prepare(settings, env)
        started = {part[0]: _start(part, env) for part in COMPONENTS}
        shown = _renewed_at(settings)
        while not stopping:
            if (now := _renewed_at(settings)) and now != shown:
                _stop(started[API_SERVER])  # it reads its certificate at start only; running tasks retry until it answers
                started[API_SERVER] = _start((API_SERVER,), env)
                shown = now
            for name, process in started.items():
                if (status := process.poll()) is not None:
                    sys.stderr.write(f"airflow {name} ended with status {status}; see its log above\n")
                    return 1
            time.sleep(LOOK_S)
    return 0


def _prepare(settings: Settings, env: Mapping[str, str]) -> None:
    """Create what is missing: passwords, Spark's defaults for spark-submit, the database, the configuration file with its keys.

    The file is written before the other commands start, because each of them would write one with keys of its own.
    """
    airflow_users.make_up(settings)
    (settings.home / "airflow").mkdir(parents=True, exist_ok=True)
    defaults = subprocess.Popen([sys.executable, "-m", "pipelines.spark.conf", str(_spark_folder(settings))], env=dict(env))
    if _start(("db", "migrate"), env).wait():
        raise Permanent(f"Airflow could not make its database in {settings.home / 'airflow'}; see its log above")
    if defaults.wait():
        raise Permanent(f"Spark's defaults could not be written to {_spark_folder(settings)}; the reason is above")


def _start(arguments: tuple[str, ...], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `airflow` with these arguments; its output goes to the log of this program."""
    return subprocess.Popen([sys.executable, "-m", "airflow", *arguments], env=dict(env), stdin=subprocess.DEVNULL)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _renewed_at(settings: Settings) -> int:
    """Return when the certificate was written; 0: there is none, or it cannot be read."""
    try:
        certificate = settings.http_tls_files.certificate
        return written_at(certificate) if certificate else 0
    except OSError:
        return 0


@contextmanager
def _group() -> Iterator[list[int]]:
    """Lead a process group that ends with the block; yields a list that receives the number of a stop signal."""
    if os.getpgrp() != os.getpid() and os.getsid(0) != os.getpid():
        os.setpgid(0, 0)
    asked: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        # Tasks and their Spark run in sessions of their own, so signalling the group alone would leave them behind.
        end([process for process in family(Record.of_this_process()) if process.pid != os.getpid()], STOP_S)
        for number, handler in before.items():
            signal.signal(number, handler)


def _spark_folder(settings: Settings) -> Path:
    return settings.home / "airflow" / "spark"


def main() -> int:
    """Run with the settings of the environment."""
    try:
        return run(load_settings())
    except ManifoldError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
