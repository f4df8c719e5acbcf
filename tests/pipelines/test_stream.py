"""Streaming ingests segments as they arrive, next to the batch ingest, each once."""

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import ECQ_INDEX, ECQ_PAYLOAD, IDS, SEGMENTS, XRAY_PROCESSED, XRAY_RAW
from manifold.queues import Policy
from manifold.queues._ecq_loader import EcqLoader
from pipelines.ingest.backlog import ingest_audit_publish
from pipelines.maintenance import ledger_pack
from pipelines.maintenance.compact import compact
from pipelines.stream.query import Streamed, Streaming, checkpoint_of
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import NOON_MS, at, ecq_ack, ecq_write, seq_at, trigger
from tests.pipelines.signal_makers import Door, readings
from tests.support.servers import Server, free_port

pytestmark = pytest.mark.slow
CLIENT = "STREAM-C"
FEW = 3  # files of the ledger that are packed


@pytest.fixture
def spark_lake(spark_lake: SparkLake, redis_server: Server) -> SparkLake:
    """A lake with Redis and short micro-batch intervals; messages stay pending however old, as the makers' are."""
    update = {"redis_port": redis_server.port, "stream_seconds": 0.2, "stream_max_segments": 2, "ecq_pending_retention_days": 0}
    spark_lake.settings = spark_lake.settings.model_copy(update=update)
    return spark_lake


def stream(spark_lake: SparkLake) -> Streamed:
    """Stream until nothing is new."""
    return Streaming(spark_lake.spark, spark_lake.catalog, spark_lake.settings).run(threading.Event(), until_idle=True)


def write_triggers(spark_lake: SparkLake, *moments: int) -> None:
    """A segment per instant, with one trigger for one vehicle."""
    for ms in moments:
        spark_lake.write(Stream.TRIGGER, [trigger(ms, [f"STREAM-{ms}"])])


@pytest.mark.usefixtures("unaudited")
def test_segments_of_the_batch_ingest_are_skipped_and_a_restart_continues(spark_lake: SparkLake) -> None:
    write_triggers(spark_lake, 1)
    spark_lake.ingest("batch")
    write_triggers(spark_lake, 2, 3, 4)

    first = stream(spark_lake)
    write_triggers(spark_lake, 5)
    spark_lake.write(
        Stream.ECQ, [*(ecq_write(n, CLIENT, "k", b"x") for n in (6, 7)), ecq_write(8, CLIENT, "j"), ecq_ack(9, CLIENT, 7)]
    )
    with Redis(port=spark_lake.settings.redis_port) as redis:
        redis.flushall()
        redis.set(keys.LOADED, 1)  # otherwise populate waits for a rebuild
    second = stream(spark_lake)
    shutil.rmtree(checkpoint_of(spark_lake.settings))
    third = stream(spark_lake)

    assert (first.segments, first.batches) == (3, 2)
    assert (second.segments, second.rows) == (
        2,
        1 + 2 + 3 + 3 + 2,
    )  # id, segments, messages (twice), their state and last seq
    assert third == Streamed()
    assert spark_lake.rows(IDS, "seq") == [seq_at(ms) for ms in (1, 2, 3, 4, 5)]
    assert [spark_lake.rows(table, "seq") for table in (ECQ_INDEX, ECQ_PAYLOAD)] == [[seq_at(ms) for ms in (6, 7, 8)]] * 2
    with Redis(port=spark_lake.settings.redis_port) as redis:
        queue = EcqLoader(redis, Policy.of(spark_lake.settings)).read_one(CLIENT)
    assert [(message.key, message.is_delivered) for message in queue.messages] == [("k", True), ("j", False)]


def test_a_concurrent_stream_and_batch_ingest_take_each_segment_once(spark_lake: SparkLake) -> None:
    write_triggers(spark_lake, *range(1, 6))

    def batch() -> None:
        ingest_audit_publish(spark_lake.run("batch", 10))

    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(batch)
        stream(spark_lake)
        beside.result()

    assert spark_lake.rows(IDS, "seq") == [seq_at(ms) for ms in range(1, 6)]
    assert len(spark_lake.rows(SEGMENTS, "path")) == 5


@pytest.mark.usefixtures("unaudited")
def test_a_stream_expires_snapshots_and_packs_the_ledger_once_at_its_start(
    spark_lake: SparkLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files() -> int:
        return sum(1 for _ in spark_lake.catalog.load_table(SEGMENTS.identifier).scan().plan_files())

    def snapshots() -> int:
        return len(spark_lake.catalog.load_table(IDS.identifier).snapshots())

    monkeypatch.setattr("pipelines.maintenance.snapshots.READ_GRACE", timedelta(0))  # no reader here
    monkeypatch.setattr(ledger_pack, "MIN_FILES", FEW)
    spark_lake.settings = spark_lake.settings.model_copy(update={"snapshot_max": 2, "stream_max_segments": 1})
    lately = int(time.time()) // 3600 * 3_600_000 - NOON_MS - 3_600_000  # recent: the ledger of the last days is packed
    for ms in range(FEW):
        write_triggers(spark_lake, lately + ms)
        spark_lake.ingest_plainly(f"run_{ms}")
    assert (files(), snapshots()) == (FEW, FEW + 1)
    write_triggers(spark_lake, *range(lately + 20, lately + 20 + FEW))

    streamed = stream(spark_lake)

    assert streamed.batches == FEW
    assert files() == FEW, "files of earlier runs and of the first micro-batch are merged"
    assert snapshots() <= 2 + 1 + FEW - 1, "plus the previous newest, and those of later micro-batches"
    write_triggers(spark_lake, lately + 50)
    stream(spark_lake)
    assert files() == 1, "the next start cleans up too"
    assert snapshots() <= 2 + 1
    assert len(spark_lake.rows(SEGMENTS)) == len(spark_lake.rows(IDS)) == 2 * FEW + 1


def test_a_failed_micro_batch_ends_the_stream_and_the_next_start_continues(spark_lake: SparkLake) -> None:
    with_redis = spark_lake.settings
    spark_lake.settings = with_redis.model_copy(update={"redis_port": free_port()})
    write_triggers(spark_lake, 1)

    with pytest.raises(RedisError):
        stream(spark_lake)
    spark_lake.settings = with_redis
    stream(spark_lake)

    assert spark_lake.rows(IDS, "seq") == [seq_at(1)]


@pytest.mark.usefixtures("unaudited")
def test_a_stream_ingests_signals_and_sorts_settled_days_by_device(spark_lake: SparkLake, tmp_path: Path) -> None:
    door = Door(spark_lake, tmp_path / "ring")
    hot = readings(("temperature", 99, "celsius"))
    for ms in (1, 2, 3):
        spark_lake.write(Stream.XRAY_RAW, [door.raw(ms, f"d-{ms}", hot), door.raw(10 + ms, "d-1", hot, captured=1)], node=ms)
    assert stream(spark_lake).segments == 3
    assert spark_lake.rows(XRAY_RAW, "seq") == [seq_at(ms) for ms in (1, 2, 3)]
    before = spark_lake.rows(XRAY_PROCESSED)

    policy = {"compact_min_files": 2, "compact_settled_days": 1}
    settings = spark_lake.settings.model_copy(update=policy)
    done = compact(spark_lake.spark, spark_lake.catalog, settings, now=at(0) + timedelta(days=9)).tables
    assert done[XRAY_PROCESSED.name].sorted_days == done[XRAY_RAW.name].sorted_days == 1
    assert spark_lake.rows(XRAY_PROCESSED) == before
    spark_lake.write(Stream.XRAY_RAW, [door.raw(20, "d-1", hot, captured=1), door.raw(21, "d-4", hot)], node=4)
    spark_lake.ingest("small")
    assert spark_lake.rows(XRAY_RAW, "seq") == [seq_at(ms) for ms in (1, 2, 3, 21)]
