"""Streaming ingest: micro-batches over the archive, into the same tables, with the same transformations and the same commit.

A micro-batch is a run of the batch ingest over named segments, and its run id derives from them. Whatever Spark repeats after
a crash, and whatever a batch ingest takes in the meantime, a segment is ingested once: `ingested_segments` decides, for both.
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
from manifold.runtime.expiry import export_expiry
from manifold.runtime.http import serve_metrics
from manifold.settings import Settings
from pipelines.catalog import await_catalog
from pipelines.ingest.chunks import ingest_audit_publish
from pipelines.ingest.run import Ingested, Run
from pipelines.ingest.trends import draw_trends
from pipelines.maintenance.ledger_pack import pack_ledger
from pipelines.maintenance.snapshots import expire_by_count
from pipelines.populate.load import populate
from pipelines.spark.connect import is_connect
from pipelines.spark.session import session
from pipelines.stream.source import FORMAT, segment_of, source_of

TRENDS = timedelta(minutes=5)  # between redraws of the trend charts
EXPIRE_INTERVAL = timedelta(hours=1)  # between expirations of old snapshots
LOOK_S = 0.2  # between checks whether to stop

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
    """The stream. `run` returns when it is stopped or, with `until_idle`, when nothing is left to ingest.

    The checkpoint is in `<home>/stream`. It may be lost: segments in the lake are not ingested again.
    """

    def __init__(self, spark: SparkSession, catalog: Catalog, settings: Settings) -> None:
        self._spark, self._catalog, self._settings = spark, catalog, settings
        self._at_work = threading.Lock()
        self._stopping = threading.Event()
        self._problem: Exception | None = None  # why the last micro-batch failed
        self._streamed = Streamed()
        self._tidied_at = self._drawn_at = datetime.min.replace(tzinfo=UTC)

    def run(self, stop: threading.Event, *, until_idle: bool = False) -> Streamed:
        """Ingest new segments until stopped.

        Raises:
            ManifoldError, redis.RedisError: a micro-batch failed, for example its audit; the next start retries it.
            Retryable: the stream failed otherwise.
        """
        ensure_tables(self._catalog)
        self._spark.dataSource.register(source_of(self._settings))
        if not until_idle:
            self._query(stop, processingTime=f"{self._settings.stream_seconds} seconds")
            return self._streamed
        before = -1
        while before < self._streamed.batches and not stop.is_set():
            before = self._streamed.batches
            self._query(stop, availableNow=True)  # of the segments at its start, at most one micro-batch
        return self._streamed

    def _query(self, stop: threading.Event, **trigger: Any) -> None:
        """Run one query until it ends by itself or `stop` is set."""
        writer = self._spark.readStream.format(FORMAT).load().writeStream.foreachBatch(self._take)
        query = writer.option("checkpointLocation", str(checkpoint_of(self._settings))).trigger(**trigger).start()
        while not stop.is_set() and query.isActive:
            stop.wait(LOOK_S)
        if stop.is_set():
            self._stopping.set()
            with self._at_work:  # let the current micro-batch finish; one that begins now does nothing
                pass
            query.stop()
        failure = query.exception()
        if isinstance(self._problem, ManifoldError | RedisError):
            raise self._problem
        if failure is not None:
            raise Retryable(f"the stream failed; the next start resumes it: {self._problem or failure}") from failure

    def _take(self, rows: DataFrame, batch: int) -> None:
        """Process one micro-batch."""
        segments = [segment_of(*row) for row in rows.collect()]
        if not segments:
            return
        began = datetime.now(UTC)
        with self._at_work, BATCH_SECONDS.time():
            if self._stopping.is_set():  # they are not in the lake, so they are offered again
                return
            try:
                written = self._ingest(segments, began)
            except Exception as exc:  # Spark reports it only in its own words
                self._problem = exc
                raise
            self._maintain(began)
            if began - self._drawn_at >= TRENDS:
                self._drawn_at = began
                draw_trends(self._settings, now=began)
        rows_written = sum(written.written.values())
        self._note(segments, written.written)
        lag_s = (datetime.now(UTC) - max(s.began_at or s.modified_at for s in segments)).total_seconds()
        LAG_SECONDS.set(lag_s)
        log.info("micro-batch published", batch=batch, segments=len(segments), rows=rows_written, lag_s=round(lag_s, 1))

    def _ingest(self, segments: list[Segment], now: datetime) -> Ingested:
        run_id, settings = run_id_of(segments), self._settings
        written, _, _ = ingest_audit_publish(Run(self._spark, self._catalog, settings, run_id, now, segments))
        populate(self._spark, self._catalog, settings, now=now)
        return written

    def _maintain(self, now: datetime) -> None:
        """Pack the ledger and expire snapshots, hourly: garbage is collected once a night, after a thousand micro-batches."""
        if now - self._tidied_at < EXPIRE_INTERVAL:
            return
        self._tidied_at = now
        try:
            pack_ledger(self._catalog, now=now)
            expire_by_count(self._catalog, self._settings, now=now)
        except Exception as exc:  # noqa: BLE001  # the batch is published; the next hour, or the night, retries
            log.warning("snapshot expiry failed; the next hour retries", reason=str(exc))

    def _note(self, segments: list[Segment], written: dict[str, int]) -> None:
        self._streamed.batches += 1
        self._streamed.segments += len(segments)
        self._streamed.rows += sum(written.values())
        SEGMENTS.inc(len(segments))
        for table, rows in written.items():
            ROWS.labels(table).inc(rows)


def checkpoint_of(settings: Settings) -> Path:
    """Folder of Spark's checkpoint."""
    return settings.home / "stream"


def run_id_of(segments: list[Segment]) -> str:
    """The id of the run over these segments: the same whenever they are offered again."""
    return f"stream_{hashlib.sha256(chr(10).join(s.path for s in segments).encode()).hexdigest()[:16]}"


@contextmanager
def stopping_on_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set during the block."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stream(settings: Settings, *, until_idle: bool = False, for_s: float | None = None) -> Streamed:
    """Stream until SIGTERM or SIGINT; `until_idle`: until nothing is new; `for_s`: at most that long.

    Raises:
        Retryable: a micro-batch failed; the next start retries it.
        Permanent: `stream_port` cannot be used, or Spark is a Spark Connect server.
    """
    if is_connect(settings):  # there, `foreachBatch` runs in a process of the server, without this one's catalog and metrics
        raise Permanent(f"the stream needs a Spark of its own, and spark_master is {settings.spark_master}: set it to local[2]")
    catalog, token = await_catalog(settings), settings.http_token.get_secret_value()
    export_expiry(settings)
    metrics = serve_metrics(settings.host, settings.stream_port, token=token, tls_files=settings.http_tls_files)
    with stopping_on_signals() as stop, metrics, session(settings, "stream") as spark:
        limit = threading.Timer(for_s, stop.set) if for_s is not None else None
        if limit is not None:
            limit.daemon = True
            limit.start()
        try:
            return Streaming(spark, catalog, settings).run(stop, until_idle=until_idle)
        finally:
            if limit is not None:
                limit.cancel()
