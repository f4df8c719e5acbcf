"""Compacted queues filled from the lake, the record of pending messages and positions."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.tables import ECQ_INDEX, ECQ_STATE
from manifold.lake.catalog import ensure_tables
from manifold.queues import EcqLoader, Policy
from manifold.queues._drivers import BlockingBatch
from manifold.queues.verbs.ecq import Acknowledge, Append, Rewind
from manifold.queues.verbs.ecq_reads import ReadReply
from manifold.queues.verbs.verb import Verb
from manifold.settings import Settings
from pipelines.maintenance.ecq_garbage import drop_messages
from pipelines.populate import ecq_news
from pipelines.populate.ids_news import is_behind
from pipelines.populate.load import Populated, populate
from tests.pipelines.conftest import SparkLake, cached_frames
from tests.pipelines.makers import NOON_MS, at, ecq_rewind, ecq_write, envelope, seq_at
from tests.support.servers import Server

LONG_AFTER = at(0) + timedelta(days=36500)


@pytest.fixture
def lake(spark_lake: SparkLake, redis: Redis, redis_server: Server) -> SparkLake:
    """Empty tables and loaded queues."""
    ensure_tables(spark_lake.catalog)
    redis.set(keys.LOADED, 1)
    settings = Settings(home=spark_lake.settings.home, redis_port=redis_server.port)
    return replace(spark_lake, settings=settings)


def run(lake: SparkLake, *, everything: bool = False, ms: int = 100) -> Populated:
    return populate(lake.spark, lake.catalog, lake.settings, now=at(ms), everything=everything)


def do(lake: SparkLake, redis: Redis, client_id: str, verb: Verb, ms: int = 50) -> Any:
    batch = BlockingBatch(redis, Policy.of(lake.settings))
    batch.add(ecq_queue(client_id), verb, NOON_MS + ms)
    return batch.run()[0]


def read(lake: SparkLake, redis: Redis, *clients: str) -> dict[str, ReadReply]:
    """The queues in Redis, without payloads."""
    found = EcqLoader(redis, Policy.of(lake.settings)).read(clients)
    return {
        client_id: reply._replace(messages=tuple(m._replace(size_bytes=None) for m in reply.messages))
        for client_id, reply in found
        if reply is not None
    }


def pending(lake: SparkLake, redis: Redis, client_id: str) -> list[int]:
    return [m.seq for m in read(lake, redis, client_id)[client_id].messages if not m.is_delivered]


def add_message(lake: SparkLake, ms: int, client_id: str, key: str, *, applied: bool = False) -> None:
    lake.append(ECQ_INDEX, [{"client_id": client_id, "seq": seq_at(ms), "key": key, "ts": at(ms), "applied": applied}])


def add_state(lake: SparkLake, ms: int, client_id: str, acked_seq: int, kind: str = "acknowledged", epoch: int = 0) -> None:
    lake.append(ECQ_STATE, [{"client_id": client_id, "acked_seq": acked_seq, "acked_at": at(ms), "epoch": epoch, "kind": kind}])


class Story:
    """The same events in Redis and in the archive."""

    def __init__(self, lake: SparkLake, redis: Redis) -> None:
        self._lake, self._redis = lake, redis
        self.archive: list[Envelope] = []

    def write(self, ms: int, client_id: str, key: str) -> None:
        self.archive.append(ecq_write(ms, client_id, key, b"x", applied=True))
        do(self._lake, self._redis, client_id, Append(seq_at(ms), key, b"x"))

    def rewind(self, ms: int, client_id: str, to: int) -> None:
        self.archive.append(ecq_rewind(ms, client_id, to))
        do(self._lake, self._redis, client_id, Rewind(seq_at(ms), to))

    def acknowledge(self, ms: int, client_id: str, of_ms: int) -> None:
        """Acknowledge; the record that Redis emits goes to the archive."""
        record = EcqAck(client_id, seq_at(of_ms), NOON_MS + ms)
        do(self._lake, self._redis, client_id, Acknowledge(record, claim=False), ms)
        found: Any = self._redis.xrange(keys.OUTCOMES)
        ((_, fields),) = found
        self._redis.delete(keys.OUTCOMES)
        self.archive.append(envelope(ms, Stream.ECQ, f"outcomes/{ecq_queue(client_id)}", fields[b"o"]))


def test_a_flush_and_rebuild_restore_positions_and_pending_keys(lake: SparkLake, redis: Redis) -> None:
    story = Story(lake, redis)
    story.write(1, "c1", "a")
    story.write(2, "c1", "a/b")
    story.write(3, "c1", "a")  # supersedes the first
    story.acknowledge(4, "c1", 3)
    story.acknowledge(5, "c1", 2)  # later, and of an older message
    story.write(6, "c1", "ü")
    story.write(11, "c2", "a")
    story.write(12, "c2", "b")
    story.acknowledge(13, "c2", 11)
    story.acknowledge(14, "c2", 12)
    story.rewind(15, "c2", seq_at(12))
    story.write(21, "c3", "a")
    story.acknowledge(22, "c3", 21)
    story.rewind(23, "c3", 0)
    story.acknowledge(24, "c3", 21)  # again, in the new epoch
    lake.write(Stream.ECQ, story.archive)
    lake.ingest()
    clients = ("c1", "c2", "c3")
    before = read(lake, redis, *clients)
    assert [pending(lake, redis, client_id) for client_id in clients] == [[seq_at(6)], [seq_at(12)], []]

    assert run(lake).compacted == 3  # reads rewinds and writes around the time of loading
    assert read(lake, redis, *clients) == before  # nothing changes in a complete Redis
    redis.flushall()
    done = run(lake, everything=True)

    assert read(lake, redis, *clients) == before
    assert (done.compacted, done.compacted_queued) == (3, 2)
    assert run(lake, everything=True).compacted_queued == 0
    assert read(lake, redis, *clients) == before


def test_messages_left_over_by_direct_enqueue_are_merged(lake: SparkLake, redis: Redis) -> None:
    ecq_news.record_populated(redis, lake.catalog, up_to=LONG_AFTER)
    do(lake, redis, "c1", Append(seq_at(1), "a", b"x"))
    add_message(lake, 1, "c1", "a", applied=True)
    add_message(lake, 2, "c1", "a")
    add_message(lake, 3, "c1", "b")
    add_message(lake, 4, "c2", "a", applied=True)
    assert is_behind(redis, lake.catalog, lake.settings, at(100))
    assert run(lake).compacted_queued == 2
    assert pending(lake, redis, "c1") == [seq_at(2), seq_at(3)]


def test_expired_messages_are_not_loaded_and_are_recorded_once(lake: SparkLake, redis: Redis) -> None:
    """c1 has a recorded expired message, an unrecorded one and a new one; c2 keeps unfetched messages."""
    day = 86_400_000
    add_message(lake, 1, "c1", "recorded")
    add_state(lake, 31 * day, "c1", seq_at(1), "expired")
    add_message(lake, 2, "c1", "old")
    add_message(lake, 20 * day, "c1", "young")
    add_message(lake, 3, "c2", "acknowledged")
    add_state(lake, 4, "c2", seq_at(3))

    assert run(lake, everything=True, ms=32 * day).compacted_queued == 1
    assert pending(lake, redis, "c1") == [seq_at(20 * day)]
    assert run(lake, everything=True, ms=32 * day).compacted_queued == 0

    assert drop_messages(lake.run("gc", 32 * day), dry_run=False).sample == [
        f"c1 {seq_at(1)}",
        f"c1 {seq_at(2)}",
        f"c2 {seq_at(3)}",
    ]
    assert drop_messages(lake.run("gc2", 32 * day), dry_run=False).count == 0
    assert lake.rows(ECQ_INDEX, "seq") == [seq_at(20 * day)]
    assert [row for row in lake.rows(ECQ_STATE, "client_id", "acked_seq", "acked_at", "kind") if row[3] == "expired"] == [
        ("c1", seq_at(1), at(31 * day), "expired"),
        ("c1", seq_at(2), at(32 * day), "expired"),
    ]

    redis.flushall()
    keeping = replace(lake, settings=lake.settings.model_copy(update={"ecq_pending_retention_days": 0}))
    assert run(keeping, everything=True, ms=32 * day).compacted_queued == 1, "an expired message never returns"
    add_message(lake, 5, "c3", "kept")
    assert run(keeping, everything=True, ms=32 * day).compacted_queued == 1
    assert drop_messages(keeping.run("gc3", 32 * day), dry_run=False).count == 0


def test_only_new_rows_are_read(lake: SparkLake, redis: Redis) -> None:
    add_message(lake, 1, "c1", "a")
    add_state(lake, 2, "c1", seq_at(1))
    ecq_news.record_populated(redis, lake.catalog, up_to=LONG_AFTER)
    redis.set(keys.LOADED, 1)
    assert not is_behind(redis, lake.catalog, lake.settings, at(100))
    assert run(lake).compacted == 0

    add_message(lake, 3, "c2", "a", applied=True)
    assert run(lake).compacted == 0
    add_message(lake, 4, "c3", "a")
    cached = cached_frames(lake.spark)
    assert run(lake).compacted == 1
    assert cached_frames(lake.spark) == cached
    assert (pending(lake, redis, "c3"), pending(lake, redis, "c2")) == ([seq_at(4)], [])

    do(lake, redis, "c2", Append(seq_at(3), "a", b"x"))
    do(lake, redis, "c2", Acknowledge(EcqAck("c2", seq_at(3), NOON_MS + 5), claim=False))
    add_state(lake, 5, "c2", seq_at(3))
    add_state(lake, 6, "c2", -1, "rewound", seq_at(6))
    assert run(lake).compacted == 2  # the third one's message is not settled yet and is offered again
    assert pending(lake, redis, "c2") == [seq_at(3)]


def test_a_message_ingested_after_loading_is_offered(lake: SparkLake, redis: Redis) -> None:
    """Direct enqueue had put it into a Redis that was wiped since; its segment is ingested after the rebuild."""
    ecq_news.record_populated(redis, lake.catalog, up_to=LONG_AFTER)
    redis.set(keys.LOADED, NOON_MS + 10)
    add_message(lake, 5, "c1", "a", applied=True)
    run(lake)
    assert pending(lake, redis, "c1") == [seq_at(5)]


def test_a_queue_with_corrupt_keys_is_named_and_the_others_are_filled(lake: SparkLake, redis: Redis) -> None:
    redis.set(keys.ecq_keys("c1")[0], "text")
    redis.set(keys.ecq_keys("c1")[3], "text")
    add_message(lake, 1, "c1", "a")
    add_message(lake, 2, "c2", "a")
    done = run(lake)
    assert done.spoilt == 1
    assert "ecq/c1" in (done.problem or "")
    assert pending(lake, redis, "c2") == [seq_at(2)]
