"""Compaction of compacted queues removes unneeded rows only, with concurrent runs too."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import ECQ_INDEX, ECQ_PAYLOAD, ECQ_SEQNO, ECQ_STATE, SEGMENTS
from manifold.lake.catalog import ensure_tables
from manifold.queues import EcqLoader, Policy
from manifold.queues._drivers import BlockingBatch
from manifold.queues.verbs.ecq import Acknowledge, Append
from pipelines.ingest import publish as publication
from pipelines.ingest.publish import finish_committed_runs, main_snapshots
from pipelines.maintenance import ecq_compact
from pipelines.maintenance.compact import compact, has_work
from pipelines.maintenance.ecq_compact import QueuesCompacted, compact_queues
from pipelines.maintenance.ecq_garbage import drop_messages
from pipelines.populate.ecq_fold import UNITED, FoldedQueue, folded, united
from tests.pipelines.conftest import Kept, SparkLake, cached_frames, kept
from tests.pipelines.makers import NOON_MS, at, seq_at
from tests.pipelines.plain import compact as rewritten
from tests.support.servers import Server

DAY_MS = 86_400_000
NOW_MS = 40 * DAY_MS


@pytest.fixture(scope="module")
def made(new_spark_lake: Callable[[Path], SparkLake], tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """c1 wrote two keys, one of them twice, and acknowledged one; c2 rewound its acknowledged message."""
    lake = new_spark_lake(tmp_path_factory.mktemp("queues") / "home")
    ensure_tables(lake.catalog)
    write(lake, (1, "c1", "a"), (2, "c1", "b"), (4, "c2", "a"), (39 * DAY_MS, "c3", "a"))
    write(lake, (3, "c1", "a"))
    state(lake, (5, "c1", seq_at(1), "acknowledged", 0), (6, "c1", seq_at(2), "acknowledged", 0))
    state(lake, (7, "c2", seq_at(4), "acknowledged", 0), (8, "c2", seq_at(4) - 1, "rewound", seq_at(8)))
    state(lake, (39 * DAY_MS + 1, "c3", seq_at(39 * DAY_MS), "acknowledged", 0), (6, "c1", seq_at(2), "acknowledged", 0))
    return kept(lake)


@pytest.fixture
def lake(made: Kept, redis: Redis, redis_server: Server) -> SparkLake:
    del redis
    lake = made.renewed()
    return replace(lake, settings=lake.settings.model_copy(update={"redis_port": redis_server.port}))


def write(lake: SparkLake, *messages: tuple[int, str, str]) -> None:
    rows = [
        {"client_id": c, "seq": seq_at(ms), "key": key, "ts": datetime_of(seq_at(ms)), "payload": b"x", "applied": True}
        for ms, c, key in messages
    ]
    for table in (ECQ_PAYLOAD, ECQ_INDEX):
        lake.append(table, rows)
    lake.append(ECQ_SEQNO, [{"client_id": row["client_id"], "last_seq": row["seq"]} for row in rows])


def state(lake: SparkLake, *rows: tuple[int, str, int, str, int]) -> None:
    names = ("acked_at", "client_id", "acked_seq", "kind", "epoch")
    lake.append(ECQ_STATE, [dict(zip(names, (at(ms), *rest), strict=True)) for ms, *rest in rows])


def queues(lake: SparkLake) -> dict[str, tuple[object, ...]]:
    """The fold of the lake's rows, by client."""

    def what(queue: FoldedQueue) -> tuple[object, ...]:
        stands = queue.state()
        acked = [seq for seq, _ in queue.live if stands.is_acknowledged(seq)]
        return queue.live, stands.epoch, stands.acked_seq, stands.acked_at, acked

    index, states = (lake.spark.table(f"{lake.settings.catalog_name}.{t.identifier}") for t in (ECQ_INDEX, ECQ_STATE))
    return {queue.client_id: what(queue) for queue in folded(united(index, states).toArrow().cast(UNITED))}


def test_compaction_removes_superseded_messages_and_folds_the_state(lake: SparkLake) -> None:
    before = queues(lake)
    done = compact_queues(lake.spark, lake.catalog, lake.settings, now=at(NOW_MS))
    assert queues(lake) == before
    assert lake.rows(ECQ_INDEX, "seq") == lake.rows(ECQ_PAYLOAD, "seq")
    assert sorted(lake.rows(ECQ_INDEX, "seq")) == [seq_at(ms) for ms in (2, 3, 4, 39 * DAY_MS)]
    assert done == QueuesCompacted(messages=1, states=2, positions=1, seqnos=2)
    assert lake.rows(ECQ_SEQNO) == [("c1", seq_at(3)), ("c2", seq_at(4)), ("c3", seq_at(39 * DAY_MS))]
    assert sorted(set(lake.rows(ECQ_STATE, "client_id", "kind"))) == [
        ("c1", "acknowledged"),
        ("c2", "position"),
        ("c2", "rewound"),
        ("c3", "acknowledged"),
    ]
    assert compact_queues(lake.spark, lake.catalog, lake.settings, now=at(NOW_MS)) == QueuesCompacted()


def test_the_stage_compacts_only_changed_queues(lake: SparkLake) -> None:
    done = compact(lake.spark, lake.catalog, lake.settings, now=at(NOW_MS))
    assert done.queues.messages == 1
    assert not has_work(lake.catalog, lake.settings, now=at(NOW_MS))
    write(lake, (50, "c1", "a"))
    assert has_work(lake.catalog, lake.settings, now=at(NOW_MS))


def test_files_rewritten_meanwhile_revive_nothing(lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Main's files are rewritten between the compaction's read and its publication; its result still holds."""
    moved = publication._move_main
    seen: list[str] = []

    def move(*args: object, **more: object) -> bool:
        if not seen:
            seen.append("once")
            assert rewritten(lake.catalog, ECQ_INDEX)
            assert rewritten(lake.catalog, ECQ_STATE)
        return moved(*args, **more)  # type: ignore[arg-type]

    before = queues(lake)
    monkeypatch.setattr(publication, "_move_main", move)
    compact_queues(lake.spark, lake.catalog, lake.settings, now=at(NOW_MS))
    finish_committed_runs(lake.catalog)
    assert queues(lake) == before
    assert sorted(lake.rows(ECQ_INDEX, "seq")) == [seq_at(ms) for ms in (2, 3, 4, 39 * DAY_MS)]
    assert compact_queues(lake.spark, lake.catalog, lake.settings, now=at(NOW_MS)) == QueuesCompacted()


def test_an_overtaken_compaction_is_repeated(lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = queues(lake), ecq_compact._write
    times: list[int] = []

    def overtaken(*args: object) -> None:
        if not times:
            times.append(1)
            lake.ingest("nothing")
            compact_queues(lake.spark, lake.catalog, lake.settings, now=at(NOW_MS))
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(ecq_compact, "_write", overtaken)
    assert compact_queues(lake.spark, lake.catalog, lake.settings, now=at(NOW_MS)) == QueuesCompacted()
    assert queues(lake) == before
    refs = {name for table in (ECQ_INDEX, ECQ_STATE, SEGMENTS) for name in lake.catalog.load_table(table.identifier).refs()}
    assert refs == {"main"}


def test_messages_past_their_retention_are_removed_acknowledged_or_not(lake: SparkLake, redis: Redis) -> None:
    """c1 acknowledged b, and a is pending, with an older message of it; c2's rewound message is in flight and stays."""
    batch = BlockingBatch(redis, Policy.of(lake.settings))
    for ms, client_id, key in ((2, "c1", "b"), (3, "c1", "a"), (4, "c2", "a")):
        batch.add(f"ecq/{client_id}", Append(seq_at(ms), key, b"x"), NOON_MS + ms)
    batch.add("ecq/c1", Acknowledge(EcqAck("c1", seq_at(2), NOON_MS + 6), claim=False), NOON_MS + 6)
    batch.run()
    in_flight = keys.ecq_keys("c2")[1]
    redis.hset(in_flight, "seq", seq_at(4))
    run = lake.run("gc", NOW_MS)
    cached = cached_frames(lake.spark)
    assert drop_messages(run, dry_run=True).sample == [f"c1 {seq_at(ms)}" for ms in (1, 2, 3)] + [f"c2 {seq_at(4)}"]
    assert cached_frames(lake.spark) == cached, "the dry run keeps none"
    assert drop_messages(run, dry_run=False).sample == [f"c1 {seq_at(ms)}" for ms in (1, 2, 3)]
    assert sorted(lake.rows(ECQ_INDEX, "seq")) == [seq_at(ms) for ms in (4, 39 * DAY_MS)]
    assert sorted(lake.rows(ECQ_PAYLOAD, "seq")) == [seq_at(ms) for ms in (4, 39 * DAY_MS)]
    assert ("c1", seq_at(3), at(NOW_MS), 0, "expired") in lake.rows(ECQ_STATE)
    ((_, reply), (_, other)) = EcqLoader(redis, Policy.of(lake.settings)).read(["c1", "c2"])
    assert reply is not None
    assert other is not None
    assert (reply.messages, [m.seq for m in other.messages]) == ((), [seq_at(4)])
    redis.delete(in_flight)
    assert drop_messages(lake.run("gc2", NOW_MS), dry_run=False).sample == [f"c2 {seq_at(4)}"]
    # A removed message leaves its position behind.
    assert queues(lake)["c1"][2] == seq_at(3)
    compact_queues(lake.spark, lake.catalog, lake.settings, now=at(NOW_MS) + timedelta(days=2))
    assert queues(lake)["c1"][2] == seq_at(3)
    main_snapshots(lake.catalog, lake.catalog.load_table(SEGMENTS.identifier))
