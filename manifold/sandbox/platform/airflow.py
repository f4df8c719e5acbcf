"""`python -m manifold.sandbox.platform.airflow`: the embedded Airflow in one process group, lean enough for two cores.

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
import psutil

from manifold.contracts.errors import ManifoldError, Permanent
from manifold.runtime.renewal import written_at
from manifold.runtime.tls import verified
from manifold.sandbox.platform import airflow_users, api_tokens
from manifold.sandbox.platform.airflow_commands import load, start, status_of
from manifold.sandbox.platform.processes import Record, end, family
from manifold.settings import Settings, load_settings

ROOT = Path(__file__).parents[3]
HEALTH = "/api/v2/monitor/health"
# No triggerer, which would cost 150 MB: no DAG here defers. Logs are read from the folder, not over HTTP.
API_SERVER = "api-server"
COMPONENTS = (("scheduler", "--skip-serve-logs"), ("dag-processor",), (API_SERVER,))
NEEDED = ("metadatabase", "scheduler", "dag_processor")
STOP_S = 15
LOOK_S = 0.2
IDLE_SLEEP_S = 0.5  # between two iterations of an idle scheduler; a run waits for several of them
WORKERS = 2  # concurrent tasks; each idle worker takes 47 MB


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
            "PATH": os.pathsep.join([tools, kept.get("PATH", os.defpath)]),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")])),
            "PYSPARK_PYTHON": sys.executable,  # otherwise Spark's workers use the first python on the PATH
            "SPARK_PROPERTIES_FILE": str(_spark_folder(settings) / "spark-defaults.conf"),
            "SPARK_LOCAL_IP": settings.loopback,
            "GX_ANALYTICS_ENABLED": "false",
        }
    )


def _options(settings: Settings) -> dict[str, str]:
    address, certificate = url(settings), settings.http_shows.certificate
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
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
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
        Permanent: the database or the pool cannot be created; the log above has the reason.
    """
    env = environment(settings, os.environ)
    with _group() as stopping:
        started = _start(settings, env)
        pool = start(("pools", "set", settings.spark_pool, str(WORKERS), "jobs on Spark"))  # without it, tasks would stay queued
        shown = _renewed_at(settings)
        while not stopping:
            if status_of(pool):
                raise Permanent(f"Airflow could not make the pool {settings.spark_pool}; the reason is above")
            if (now := _renewed_at(settings)) and now != shown:
                _begin_again(started)
                shown = now
            for name, process in started.items():
                if (status := status_of(process)) is not None:
                    sys.stderr.write(f"airflow {name} ended with status {status}; see its log above\n")
                    return 1
            time.sleep(LOOK_S)
    return 0


def _renewed_at(settings: Settings) -> int:
    """Return when the certificate was written; 0: there is none, or it cannot be read."""
    try:
        certificate = settings.http_shows.certificate
        return written_at(certificate) if certificate else 0
    except OSError:
        return 0


def _begin_again(started: dict[str, psutil.Process]) -> None:
    """Restart the API server, which reads its certificate at start only. Running tasks retry until it answers."""
    started[API_SERVER].terminate()
    try:
        started[API_SERVER].wait(STOP_S)
    except psutil.TimeoutExpired:
        started[API_SERVER].kill()
        started[API_SERVER].wait()
    started[API_SERVER] = start((API_SERVER,))


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


def _start(settings: Settings, env: Mapping[str, str]) -> dict[str, psutil.Process]:
    """Start all components; return them by name. Creates passwords, the database, and Spark's defaults for spark-submit.

    The API server starts first, because it takes longest, and needs the database only for the first request.
    """
    airflow_users.make_up(settings)
    (settings.home / "airflow").mkdir(parents=True, exist_ok=True)
    defaults = subprocess.Popen([sys.executable, "-m", "pipelines.spark.conf", str(_spark_folder(settings))], env=dict(env))
    load(env)
    server, migrate = start((API_SERVER,)), start(("db", "migrate"))
    if migrate.wait():
        raise Permanent(f"Airflow could not make its database in {settings.home / 'airflow'}; see its log above")
    if defaults.wait():
        raise Permanent(f"Spark's defaults could not be written to {_spark_folder(settings)}; the reason is above")
    return {API_SERVER: server} | {part[0]: start(part) for part in COMPONENTS if part[0] != API_SERVER}


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
