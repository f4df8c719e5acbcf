"""The session of a job on a Spark Connect server: its id, its end, and what the server must have."""

import hashlib
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from manifold.contracts.errors import Permanent, Retryable
from manifold.settings import Settings
from pipelines.spark.conf import EXTENSIONS, ICEBERG_EXTENSIONS, jars_for

# Retries of a call to a server that does not answer: about 20 seconds. A restarted server has lost the session anyway.
TRIES: dict[str, Any] = {"max_retries": 8, "initial_backoff": 50, "backoff_multiplier": 4.0, "max_backoff": 4000}
CONNECT = "sc://"
WITHOUT_JARS = ("Cannot find catalog plugin class", "CATALOG_NOT_FOUND", "No suitable driver")
AIRFLOW = "AIRFLOW_CTX_"  # prefix of the variables by which Airflow names a process its task
TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # the variable's name: PySpark reads it


def is_connect(settings: Settings) -> bool:
    """Whether Spark is a Spark Connect server."""
    return settings.spark_master.startswith(CONNECT)


@contextmanager
def connected(settings: Settings) -> Iterator[SparkSession]:
    """Open a session on the server that `spark_master` names; its work ends with the block.

    Sessions of earlier tries of the same task are ended first: without its client, a server keeps running, and commits.

    Raises:
        Permanent: the server refuses the token.
        Retryable: the server does not answer, or was restarted.
    """
    *earlier, own = session_ids(os.environ)
    with _raising_server_errors(settings.spark_master), _exiting_on_sigterm():
        for session_id in earlier:
            _end(settings.spark_master, session_id)
        spark = _open(settings.spark_master, own)
        try:
            yield spark
        except BaseException:
            spark.client.set_retry_policies([])  # a dead server has had its tries
            with suppress(Exception):
                spark.interruptAll()
            raise
        finally:
            spark.stop()


def require(spark: SparkSession, settings: Settings) -> None:
    """Check that the server has what jobs need and no client can provide.

    Raises:
        Permanent: it lacks something; the message names it, with the remedy.
        Retryable: it cannot open the catalog.
    """
    server = f"the Spark Connect server {settings.spark_master}"
    if ICEBERG_EXTENSIONS not in (spark.conf.get(EXTENSIONS, None) or ""):
        raise Permanent(f"{server} lacks Iceberg's extension: start it with --conf {EXTENSIONS}={ICEBERG_EXTENSIONS}")
    try:
        spark.sql(f"SHOW NAMESPACES IN {settings.catalog_name}").collect()
    except PySparkException as exc:
        _raise_if_away(exc, settings.spark_master)
        problem = f"{server} cannot open the catalog: {_shortened(exc)}"
        if any(sign in str(exc) for sign in WITHOUT_JARS):
            raise Permanent(f"{problem}; start it with these in --driver-class-path: {', '.join(jars_for(settings))}") from exc
        raise Retryable(problem) from exc
    try:
        spark.range(0, 1, 1, 1).mapInArrow(_imported, "id bigint").collect()
    except PySparkException as exc:
        _raise_if_away(exc, settings.spark_master)
        remedy = "set PYSPARK_PYTHON there to a Python of this version that has Manifold"
        raise Permanent(f"the Python workers of {server} cannot run Manifold: {remedy}. It says: {_shortened(exc)}") from exc


def session_ids(environment: Mapping[str, str]) -> list[str]:
    """The session ids of all tries of a task, the current one last; outside Airflow, one random id."""
    tries = int(environment.get(f"{AIRFLOW}TRY_NUMBER", "0"))
    if not tries:
        return [str(uuid4())]
    task = [environment.get(f"{AIRFLOW}{part}", "") for part in ("DAG_ID", "DAG_RUN_ID", "TASK_ID")]
    digests = (hashlib.sha256("\n".join([*task, str(number)]).encode()).digest() for number in range(1, tries + 1))
    return [str(UUID(bytes=digest[:16], version=4)) for digest in digests]


def _open(address: str, session_id: str) -> Any:  # PySpark's types lack the methods of Connect sessions
    from pyspark.sql.connect.client.retries import DefaultPolicy  # imports gRPC, which is slow

    if ";" not in address and not address.endswith("/"):
        address += "/"  # parameters follow a slash
    spark: Any = SparkSession.builder.remote(f"{address};session_id={session_id}").getOrCreate()
    spark.client.set_retry_policies([DefaultPolicy(**TRIES)])  # before the first call
    return spark


def _end(address: str, session_id: str) -> None:
    """End a session and all its work; it may have ended already."""
    spark = _open(address, session_id)
    try:
        spark.interruptAll()
    except PySparkException as exc:
        _raise_if_away(exc, address)
    finally:
        spark.stop()


def _imported(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pipelines.ingest.reading  # noqa: F401  # on the worker: whether it has these libraries

    yield from batches


@contextmanager
def _exiting_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that the session ends before the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _raising_server_errors(address: str) -> Iterator[None]:
    """Raise failures of the server itself as such."""
    try:
        yield
    except PySparkException as exc:
        _raise_if_away(exc, address)
        raise


def _raise_if_away(exc: PySparkException, address: str) -> None:
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException  # imports gRPC

    if not isinstance(exc, SparkConnectGrpcException):
        return
    server = f"the Spark Connect server {address}"
    match exc.getGrpcStatusCode().name:
        case "UNAVAILABLE":
            raise Retryable(f"{server} does not answer: see that it runs") from exc
        case "UNAUTHENTICATED":
            raise Permanent(f"{server} refuses the token: set the connection's password, or {TOKEN}") from exc
    if "INVALID_HANDLE.SESSION" in (exc.getCondition() or ""):
        raise Retryable(f"{server} has lost the session: it was restarted, or another try of this task has begun") from exc


def _shortened(exc: PySparkException) -> str:
    return " ".join(str(exc).partition("JVM stacktrace")[0].split())[:300]
