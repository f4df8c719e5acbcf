"""Streaming ingest: micro-batches over the archive, into the same tables, with the same transformations and the same commit.

A micro-batch is a run of the batch ingest over a list of segments, and its run id derives from the list. Spark may repeat a
micro-batch after a crash, and a batch ingest may run at the same time; still, each segment is ingested once, because both look it
up in `ingested_segments`.
"""

import hashlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import structlog
from prometheus_client import Counter, Gauge, Histogram
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession
from redis.exceptions import RedisError

from manifold.archive.segment import Segment
from manifold.contracts.errors import ManifoldError, Permanent, Retryable
from manifold.lake.catalog import ensure_tables
from manifold.runtime.expiry import export_certificate_expiry
from manifold.runtime.http import serve_metrics
from manifold.settings import Settings
from pipelines.catalog import await_catalog
from pipelines.ingest.backlog import ingest_audit_publish
from pipelines.ingest.run import Run
from pipelines.ingest.trends import draw_trends
from pipelines.maintenance.ledger_pack import pack_ledger
from pipelines.maintenance.snapshots import expire_by_count
from pipelines.populate.load import populate
from pipelines.spark.connect import is_connect
from pipelines.spark.session import session
from pipelines.stream.source import FORMAT, segment_of, source_of

TRENDS_INTERVAL = timedelta(minutes=5)  # between redraws of the trend charts
EXPIRE_INTERVAL = timedelta(hours=1)  # between expirations of old snapshots
STOP_CHECK_INTERVAL_S = 0.2

SEGMENTS = Counter("manifold_stream_segments_total", "segments ingested")
ROWS = Counter("manifold_stream_rows_total", "rows written, by table", ["table"])
BATCH_SECONDS = Histogram(
    "manifold_stream_batch_seconds", "duration of a micro-batch", buckets=(1, 2, 5, 10, 20, 30, 60, 120, 300)
)
LAG_SECONDS = Gauge("manifold_stream_lag_seconds", "age of the newest segment ingested, when its micro-batch was published")

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Streamed:
    """Totals of a stream."""

    batches: int = 0
    segments: int = 0
    rows: int = 0

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return orjson.dumps(asdict(self)).decode()


class Streaming:
    """The streaming query and its counts.

    Spark's checkpoint is in `<home>/stream`. Losing the checkpoint does no harm: segments in the lake are not ingested again.
    """

    def __init__(self, spark: SparkSession, catalog: Catalog, settings: Settings) -> None:
        self._spark = spark
        self._catalog = catalog
        self._settings = settings
        self._batch_lock = threading.Lock()  # held while a micro-batch is processed
        self._stopping = threading.Event()
        self._batch_error: Exception | None = None  # why a micro-batch failed, which ends the query
        self._totals = Streamed()
        self._maintained_at = datetime.min.replace(tzinfo=UTC)
        self._trends_drawn_at = datetime.min.replace(tzinfo=UTC)

    def run(self, stop: threading.Event, *, until_idle: bool = False) -> Streamed:
        """Ingest new segments until `stop` is set or, with `until_idle`, until the archive has no new segment. Return the totals.

        Raises:
            ManifoldError, redis.RedisError: a micro-batch failed, for example its audit. The next start retries the micro-batch.
            Retryable: the stream failed for another reason.
        """
        ensure_tables(self._catalog)
        self._spark.dataSource.register(source_of(self._settings))
        if not until_idle:
            self._run_query(stop, processingTime=f"{self._settings.stream_seconds} seconds")
            return self._totals
        is_idle = False
        while not is_idle and not stop.is_set():
            batches_before = self._totals.batches
            self._run_query(stop, availableNow=True)  # ingests at most one micro-batch of the segments that are new at its start
            is_idle = self._totals.batches == batches_before  # the query found no new segment
        return self._totals

    def _run_query(self, stop: threading.Event, **trigger: Any) -> None:
        """Run one query until it ends by itself or `stop` is set. `trigger` is passed to Spark's `DataStreamWriter.trigger`."""
        writer = self._spark.readStream.format(FORMAT).load().writeStream.foreachBatch(self._process_batch)
        query = writer.option("checkpointLocation", str(checkpoint_of(self._settings))).trigger(**trigger).start()
        while not stop.is_set() and query.isActive:
            stop.wait(STOP_CHECK_INTERVAL_S)
        if stop.is_set():
            self._stopping.set()
            with self._batch_lock:  # wait for the current micro-batch; `_process_batch` skips the next, because of `_stopping`
                pass
            query.stop()
        query_error = query.exception()
        if isinstance(self._batch_error, ManifoldError | RedisError):
            raise self._batch_error
        if query_error is not None:
            raise Retryable(f"the stream failed; the next start resumes it: {self._batch_error or query_error}") from query_error

    def _process_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Ingest one micro-batch, whose segments are the rows of `rows`, and do the maintenance that is due. Spark calls this."""
        segments = [segment_of(*row) for row in rows.collect()]
        if not segments:
            return
        began = datetime.now(UTC)
        with self._batch_lock, BATCH_SECONDS.time():
            if self._stopping.is_set():  # the segments stay out of the lake, so the next start offers them again
                return
            try:
                rows_by_table = self._ingest(segments, began)
            except Exception as exc:  # kept for `_run_query`, because Spark wraps it in a StreamingQueryException
                self._batch_error = exc
                raise
            self._maintain(began)
            if began - self._trends_drawn_at >= TRENDS_INTERVAL:
                self._trends_drawn_at = began
                draw_trends(self._settings, now=began)
        self._count(segments, rows_by_table)
        newest_segment_began = max(segment.began_at or segment.modified_at for segment in segments)
        lag_s = (datetime.now(UTC) - newest_segment_began).total_seconds()
        LAG_SECONDS.set(lag_s)
        rows_written = sum(rows_by_table.values())
        log.info("micro-batch published", batch_id=batch_id, segments=len(segments), rows=rows_written, lag_s=round(lag_s, 1))

    def _ingest(self, segments: list[Segment], now: datetime) -> dict[str, int]:
        """Ingest the segments and populate the queues; return the number of rows written, by table."""
        run = Run(self._spark, self._catalog, self._settings, run_id_of(segments), now, segments)
        ingested, _, _ = ingest_audit_publish(run)
        populate(self._spark, self._catalog, self._settings, now=now)
        return ingested.written

    def _maintain(self, now: datetime) -> None:
        """Pack the ledger and expire snapshots, once an hour.

        The nightly garbage collection alone would be too rare: a stream makes a thousand micro-batches, and snapshots, a day.
        """
        if now - self._maintained_at < EXPIRE_INTERVAL:
            return
        self._maintained_at = now
        try:
            pack_ledger(self._catalog, now=now)
            expire_by_count(self._catalog, self._settings, now=now)
        except Exception as exc:  # noqa: BLE001  # must not fail the published micro-batch; the next hour or garbage collection retries
            log.warning("stream could not pack the ledger or expire snapshots; retried in an hour", reason=str(exc))

    def _count(self, segments: list[Segment], rows_by_table: dict[str, int]) -> None:
        """Add a micro-batch to the totals and the metrics."""
        self._totals.batches += 1
        self._totals.segments += len(segments)
        self._totals.rows += sum(rows_by_table.values())
        SEGMENTS.inc(len(segments))
        for table, rows in rows_by_table.items():
            ROWS.labels(table).inc(rows)


def checkpoint_of(settings: Settings) -> Path:
    """Folder of Spark's checkpoint."""
    return settings.home / "stream"


def run_id_of(segments: list[Segment]) -> str:
    """The id of the run over these segments. It derives from their paths, so a repeated micro-batch has the same id."""
    paths = "\n".join(segment.path for segment in segments)
    return f"stream_{hashlib.sha256(paths.encode()).hexdigest()[:16]}"


@contextmanager
def stopping_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set during the block. The previous handlers are restored after it."""
    stop = threading.Event()
    previous_handlers = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def stream(settings: Settings, *, until_idle: bool = False, for_s: float | None = None) -> Streamed:
    """Run the stream until SIGTERM or SIGINT, and return its totals.

    With `until_idle`, the stream also ends when the archive has no new segment; with `for_s`, after that many seconds.

    Raises:
        Retryable: a micro-batch failed. The next start retries the micro-batch.
        Permanent: `stream_port` cannot be used, or `spark_master` names a Spark Connect server.
    """
    # Spark Connect would run `foreachBatch` in a process of the server, which lacks this process's catalog and metrics.
    if is_connect(settings):
        raise Permanent(f"the stream needs a Spark of its own, and spark_master is {settings.spark_master}: set it to local[2]")
    catalog = await_catalog(settings)
    export_certificate_expiry(settings)
    token = settings.http_token.get_secret_value()
    metrics = serve_metrics(settings.host, settings.stream_port, token=token, tls_files=settings.http_tls_files)
    with stopping_on_signals() as stop, metrics, session(settings, "stream") as spark:
        timer = threading.Timer(for_s, stop.set) if for_s is not None else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            return Streaming(spark, catalog, settings).run(stop, until_idle=until_idle)
        finally:
            if timer is not None:
                timer.cancel()
