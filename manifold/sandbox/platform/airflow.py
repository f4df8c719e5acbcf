"""`python -m manifold.sandbox.platform.airflow`: runs Airflow's components as one program, configured for two cores.

Airflow's state is under <home>/airflow: the SQLite database, the configuration file with generated keys, and task logs. Airflow
listens on loopback only, and every user must log in (`airflow_users`).
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
API_SERVER = "api-server"
# The arguments of each component, the slowest to start first. There is no triggerer, which would take 150 MB, because no task
# defers. The scheduler does not serve logs over HTTP, because the API server reads them from the folder.
COMPONENTS = ((API_SERVER,), ("scheduler", "--skip-serve-logs"), ("dag-processor",))
REQUIRED_COMPONENTS = ("metadatabase", "scheduler", "dag_processor")  # by their names in the answer of HEALTH
STOP_S = 15
POLL_INTERVAL_S = 0.2
IDLE_SLEEP_S = 0.5  # between two iterations of an idle scheduler; a run needs several iterations
WORKERS = 2  # concurrent tasks; each idle worker takes 47 MB
POOL = "default_pool"  # this pool always exists; here `WORKERS` bounds the concurrent Spark jobs


def url(settings: Settings) -> str:
    """Return the URL of the embedded Airflow."""
    return f"{'https' if settings.tls else 'http'}://{settings.loopback}:{settings.airflow_port}"


def environment(settings: Settings, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Airflow and its tasks: the inherited variables without those of Airflow, and our own."""
    kept = {name: value for name, value in inherited.items() if not name.startswith("AIRFLOW")}
    tools = str(Path(sys.executable).parent)
    python_path = str(ROOT)
    if inherited_python_path := kept.get("PYTHONPATH"):
        python_path = os.pathsep.join([python_path, inherited_python_path])
    spark_kind = "spark_connect" if settings.spark_master.startswith("sc://") else "spark"
    spark_connection = {"conn_type": spark_kind, "host": settings.spark_master}
    variables = {
        "AIRFLOW_HOME": str(settings.home / "airflow"),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark_connection),
        **{f"AIRFLOW__{name}": value for name, value in _options(settings).items()},
        f"{PREFIX}SPARK_POOL": POOL,
        "PATH": os.pathsep.join([tools, kept.get("PATH", os.defpath)]),
        "PYTHONPATH": python_path,
        "PYSPARK_PYTHON": sys.executable,  # otherwise Spark's workers use the first python on the PATH
        "SPARK_PROPERTIES_FILE": str(_spark_folder(settings) / "spark-defaults.conf"),
        "SPARK_LOCAL_IP": settings.loopback,
        "GX_ANALYTICS_ENABLED": "false",
    }
    if token := api_tokens.token_of_airflow(settings):  # otherwise tasks use the API and the token of the settings, if any
        api_connection = {"conn_type": "http", "host": settings.api, "password": token}
        variables["AIRFLOW_CONN_MANIFOLD_API"] = json.dumps(api_connection)
    return kept | variables


def _options(settings: Settings) -> dict[str, str]:
    """Return Airflow's options, by SECTION__NAME."""
    address = url(settings)
    tls_options = {}
    if certificate := settings.http_tls_files.certificate:
        # The CA file is for tasks, which connect to the API server.
        tls_options = {
            "API__SSL_CERT": certificate,
            "API__SSL_KEY": certificate,
            "API__SSL_CA_FILE": settings.tls_files("").ca,
        }
    return {
        **tls_options,
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
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",  # seconds; a changed file is parsed without this wait
        "DAG_PROCESSOR__REFRESH_INTERVAL": "30",
        "LOGGING__COLORED_CONSOLE_LOG": "False",
        "METRICS__STATSD_ON": "False",
    }


def is_healthy(settings: Settings) -> bool:
    """Whether Airflow can accept triggers and run tasks: database, scheduler and DAG processor report healthy."""
    try:
        address = url(settings)
        answer = httpx.get(f"{address}{HEALTH}", timeout=2, verify=verified(settings, address))
        components = answer.json() if answer.status_code == httpx.codes.OK else {}
        return all(components[name]["status"] == "healthy" for name in REQUIRED_COMPONENTS)
    except (httpx.HTTPError, OSError, ValueError, KeyError, TypeError):  # the last three: another program may use the port
        return False


def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT, or until a component ends on its own; then end all processes.

    When the certificate is renewed, restart the API server, which reads its certificate only when it starts. Running tasks retry
    their requests until it answers again.

    Returns:
        The exit status: 0 after a signal, 1 if a component has ended on its own.

    Raises:
        Permanent: the database or Spark's defaults cannot be created; the log above has the reason.
    """
    env = environment(settings, os.environ)
    with _process_group() as stop_signals:
        _prepare(settings, env)
        processes = {arguments[0]: _start(arguments, env) for arguments in COMPONENTS}
        loaded_certificate_time = _certificate_time(settings)
        while not stop_signals:
            certificate_time = _certificate_time(settings)
            if certificate_time is not None and certificate_time != loaded_certificate_time:
                _stop(processes[API_SERVER])
                processes[API_SERVER] = _start((API_SERVER,), env)
                loaded_certificate_time = certificate_time
            for name, process in processes.items():
                if (status := process.poll()) is not None:
                    sys.stderr.write(f"airflow {name} ended with status {status}; see its log above\n")
                    return 1
            time.sleep(POLL_INTERVAL_S)
    return 0


def _prepare(settings: Settings, env: Mapping[str, str]) -> None:
    """Create missing files: passwords, Spark's defaults for spark-submit, the database, and the configuration file with its keys.

    `airflow db migrate` also writes the configuration file. It must end before the components start, because each of them would
    otherwise write a file with other keys.
    """
    airflow_users.create_missing(settings)
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
    """Send SIGTERM, and SIGKILL if the process still runs after STOP_S; wait until it has ended."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _certificate_time(settings: Settings) -> int | None:
    """Return the modification time of the HTTP certificate in ns; None if there is none, or it cannot be read."""
    try:
        certificate = settings.http_tls_files.certificate
        return written_at(certificate) if certificate else None
    except OSError:
        return None


@contextmanager
def _process_group() -> Iterator[list[int]]:
    """Make this process lead a process group while the block runs, and end all its descendants afterwards.

    Yields a list to which the number of each received SIGTERM or SIGINT is appended.
    """
    # The leader of a session also leads a process group, and may not call `setpgid`.
    is_leader = os.getpgrp() == os.getpid() or os.getsid(0) == os.getpid()
    if not is_leader:
        os.setpgid(0, 0)
    received: list[int] = []

    def handle(signal_number: int, _: FrameType | None) -> None:
        received.append(signal_number)

    former_handlers = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        # A signal to the group would not reach tasks and their Spark, which run in sessions of their own.
        others = [process for process in family(Record.of_this_process()) if process.pid != os.getpid()]
        end(others, STOP_S)
        for number, handler in former_handlers.items():
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
