"""Opens and ends the session of a job on a Spark Connect server, and checks that the server has what jobs need."""

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

# Calls to a server that does not answer are retried for about 20 seconds (backoffs in ms). To wait longer is useless: a server
# that was restarted has lost the session.
RETRY_POLICY: dict[str, Any] = {"max_retries": 8, "initial_backoff": 50, "backoff_multiplier": 4.0, "max_backoff": 4000}
CONNECT = "sc://"  # beginning of the address of a Spark Connect server
LOST_SESSION = "INVALID_HANDLE.SESSION"  # in the error condition if the server has closed the session, or never had it
MISSING_JAR_ERRORS = ("Cannot find catalog plugin class", "CATALOG_NOT_FOUND", "No suitable driver")
AIRFLOW = "AIRFLOW_CTX_"  # prefix of the environment variables in which Airflow passes the ids of the task
TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # the name of the environment variable from which PySpark reads the token


def is_connect(settings: Settings) -> bool:
    """Whether Spark is a Spark Connect server."""
    return settings.spark_master.startswith(CONNECT)


@contextmanager
def connected(settings: Settings) -> Iterator[SparkSession]:
    """Open a session on the server that `spark_master` names, and end the session with the block.

    Sessions of earlier tries of the same Airflow task are ended first. Otherwise their work would continue on the server, and be
    committed, although their client is gone.

    Raises:
        Permanent: the server refuses the token.
        Retryable: the server does not answer, or was restarted.
    """
    *earlier_ids, current_id = session_ids(os.environ)
    with _raising_server_errors(settings.spark_master), _exiting_on_sigterm():
        for session_id in earlier_ids:
            _end_session(settings.spark_master, session_id)
        spark = _open_session(settings.spark_master, current_id)
        try:
            yield spark
        except BaseException:
            spark.client.set_retry_policies([])  # if the server does not answer, the failed call has already been retried
            with suppress(Exception):  # the error of the block matters more, and `stop` ends the session's work, too
                spark.interruptAll()
            raise
        finally:
            spark.stop()


def require_capabilities(spark: SparkSession, settings: Settings) -> None:
    """Check that the server has everything that jobs need and a client cannot provide.

    Raises:
        Permanent: the server lacks Iceberg's extension, jars, or Manifold's Python libraries; the message names the remedy.
        Retryable: the server cannot open the catalog.
    """
    server = f"the Spark Connect server {settings.spark_master}"
    if ICEBERG_EXTENSIONS not in (spark.conf.get(EXTENSIONS, None) or ""):
        raise Permanent(f"{server} lacks Iceberg's extension: start it with --conf {EXTENSIONS}={ICEBERG_EXTENSIONS}")
    try:
        spark.sql(f"SHOW NAMESPACES IN {settings.catalog_name}").collect()
    except PySparkException as exc:
        _raise_if_server_failed(exc, settings.spark_master)
        problem = f"{server} cannot open the catalog: {_short_message(exc)}"
        if any(error in str(exc) for error in MISSING_JAR_ERRORS):
            raise Permanent(f"{problem}; start it with these in --driver-class-path: {', '.join(jars_for(settings))}") from exc
        raise Retryable(problem) from exc
    try:
        spark.range(0, 1, step=1, numPartitions=1).mapInArrow(_import_on_worker, "id bigint").collect()
    except PySparkException as exc:
        _raise_if_server_failed(exc, settings.spark_master)
        remedy = "set PYSPARK_PYTHON there to a Python of this version that has Manifold"
        raise Permanent(f"the Python workers of {server} cannot run Manifold: {remedy}. It says: {_short_message(exc)}") from exc


def session_ids(environment: Mapping[str, str]) -> list[str]:
    """The session ids of all tries of this Airflow task, the current try last; outside Airflow, a single random id.

    The ids derive from the task and the number of the try, so that a later try can end the sessions of earlier ones.
    """
    try_number = int(environment.get(f"{AIRFLOW}TRY_NUMBER", "0"))
    if not try_number:
        return [str(uuid4())]
    task = [environment.get(f"{AIRFLOW}{name}", "") for name in ("DAG_ID", "DAG_RUN_ID", "TASK_ID")]
    texts = ["\n".join([*task, str(number)]) for number in range(1, try_number + 1)]
    return [str(UUID(bytes=hashlib.sha256(text.encode()).digest()[:16], version=4)) for text in texts]


def _open_session(address: str, session_id: str) -> Any:  # PySpark's types lack the methods of Connect sessions
    """Connect to the session with this id; the server creates the session if it does not exist."""
    from pyspark.sql.connect.client.retries import DefaultPolicy  # imports gRPC, which is slow

    if ";" not in address and not address.endswith("/"):
        address += "/"  # the parameters must follow a slash
    spark: Any = SparkSession.builder.remote(f"{address};session_id={session_id}").getOrCreate()
    spark.client.set_retry_policies([DefaultPolicy(**RETRY_POLICY)])  # before the first call
    return spark


def _end_session(address: str, session_id: str) -> None:
    """End the session with this id, if it exists, and all its work.

    Raises:
        Permanent, Retryable: the server failed; see `_raise_if_server_failed`. Other errors of the interruption are ignored,
            because the server also ends the work of a session when `stop` releases the session.
    """
    spark = _open_session(address, session_id)
    try:
        spark.interruptAll()
    except PySparkException as exc:
        if LOST_SESSION not in (exc.getCondition() or ""):  # a try that ended in order has closed its session, which is no error
            _raise_if_server_failed(exc, address)
    finally:
        spark.stop()


def _import_on_worker(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Import on the Python worker what an ingest imports there; the import fails if the worker lacks a library.

    `batches` has a single row, whose only purpose is that Spark starts a worker.
    """
    import pipelines.ingest.reading  # noqa: F401

    yield from batches


@contextmanager
def _exiting_on_sigterm() -> Iterator[None]:
    """Raise SystemExit in the block on SIGTERM, so that the session is ended before the process exits.

    In a thread other than the main thread, nothing changes, because only the main thread may set signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def exit_process(number: int, frame: FrameType | None) -> None:
        del frame
        raise SystemExit(128 + number)

    previous_handler = signal.signal(signal.SIGTERM, exit_process)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


@contextmanager
def _raising_server_errors(address: str) -> Iterator[None]:
    """Raise `Retryable` or `Permanent` instead of PySpark's error if the server itself failed."""
    try:
        yield
    except PySparkException as exc:
        _raise_if_server_failed(exc, address)
        raise


def _raise_if_server_failed(exc: PySparkException, address: str) -> None:
    """Raise `Retryable` or `Permanent` if `exc` says that the server did not answer, refused the token, or lost the session.

    Any other error, such as that of a query, is left to the caller.
    """
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException  # imports gRPC

    if not isinstance(exc, SparkConnectGrpcException):
        return  # the client itself raised it
    server = f"the Spark Connect server {address}"
    match exc.getGrpcStatusCode().name:
        case "UNAVAILABLE":
            raise Retryable(f"{server} does not answer: see that it runs") from exc
        case "UNAUTHENTICATED":
            raise Permanent(f"{server} refuses the token: set the connection's password, or {TOKEN}") from exc
    if LOST_SESSION in (exc.getCondition() or ""):
        raise Retryable(f"{server} has lost the session: it was restarted, or another try of this task has begun") from exc


def _short_message(exc: PySparkException) -> str:
    """The beginning of the error's message, in one line, without the JVM's stack trace."""
    return " ".join(str(exc).partition("JVM stacktrace")[0].split())[:300]
