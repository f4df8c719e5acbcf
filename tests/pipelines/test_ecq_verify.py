"""`manifold verify` on compacted queues: differences are found and reloaded; newer knowledge in Redis is no difference."""

from dataclasses import replace

import pytest
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.ecq_rows import StateRow
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import ECQ_INDEX, ECQ_STATE, StateKind
from manifold.lake.catalog import ensure_tables
from manifold.queues import Policy
from manifold.queues._drivers import BlockingBatch
from manifold.queues.verbs.ecq import Acknowledge, Append, Rewind
from manifold.queues.verbs.ecq_reads import QueuedMessage, ReadReply
from manifold.queues.verbs.verb import Verb
from manifold.settings import Settings
from pipelines.maintenance.verify import verify
from pipelines.maintenance.verify_ecq import QueueDifference, differences
from pipelines.populate.ecq_fold import FoldedQueue
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import NOON_MS, at, seq_at
from tests.support.servers import Server

HOUR_MS = 3_600_000


def add(lake: SparkLake, client_id: str, *messages: tuple[int, str]) -> None:
    rows = [
        {"client_id": client_id, "seq": seq_at(ms), "key": key, "ts": datetime_of(seq_at(ms)), "applied": True}
        for ms, key in messages
    ]
    lake.append(ECQ_INDEX, rows)


def acked(lake: SparkLake, client_id: str, ms: int) -> None:
    lake.append(
        ECQ_STATE,
        [{"client_id": client_id, "acked_seq": seq_at(ms), "acked_at": at(ms + 1), "epoch": 0, "kind": "acknowledged"}],
    )


def test_differences_are_found_and_repaired(spark_lake: SparkLake, redis: Redis, redis_server: Server) -> None:
    lake = spark_lake
    lake.settings = lake.settings.model_copy(update={"redis_port": redis_server.port})
    ensure_tables(lake.catalog)
    redis.set(keys.LOADED, 1)
    batch = BlockingBatch(redis, Policy.of(lake.settings))

    def do(client_id: str, *verbs: Verb) -> None:
        for verb in verbs:
            batch.add(f"ecq/{client_id}", verb, NOON_MS)
        batch.run()

    add(lake, "missing", (1, "a"), (2, "b"))
    do("missing", Append(seq_at(1), "a", b""))
    add(lake, "behind", (1, "a"))
    acked(lake, "behind", 1)
    do("behind", Append(seq_at(1), "a", b""))
    add(lake, "same", (1, "a"))
    do("same", Append(seq_at(1), "a", b""))
    add(lake, "newer", (1, "a"))
    do("newer", Append(seq_at(5), "a", b""))
    add(lake, "rewound", (1, "a"))
    acked(lake, "rewound", 1)
    do("rewound", Append(seq_at(1), "a", b""), Rewind(seq_at(9), 0))
    add(lake, "on its way", (1, "a"))
    record = EcqAck("on its way", seq_at(1), NOON_MS + HOUR_MS)
    do("on its way", Append(seq_at(1), "a", b""), Acknowledge(record, claim=False))

    found = verify(lake.spark, lake.catalog, lake.settings, now=at(HOUR_MS + 5))
    assert {kind: count for kind, count in found.compacted.items() if count} == {"missing": 1, "acknowledged": 1, "position": 1}
    assert not found.agree

    repaired = verify(lake.spark, lake.catalog, lake.settings, now=at(HOUR_MS + 5), repair=True)
    assert repaired.agree
    again = verify(lake.spark, lake.catalog, lake.settings, now=at(HOUR_MS + 5))
    assert (again.agree, any(again.compacted.values())) == (True, False)
    late = verify(lake.spark, lake.catalog, lake.settings, now=at(3 * HOUR_MS))
    assert {kind: count for kind, count in late.compacted.items() if count} == {"unrecorded": 1}


def test_a_queue_that_could_not_be_loaded_is_not_counted_as_repaired(
    spark_lake: SparkLake, redis: Redis, redis_server: Server
) -> None:
    lake = spark_lake
    lake.settings = lake.settings.model_copy(update={"redis_port": redis_server.port})
    ensure_tables(lake.catalog)
    redis.set(keys.LOADED, 1)
    add(lake, "lost", (1, "a"))
    acked(lake, "lost", 1)
    add(lake, "broken", (1, "a"))
    redis.set(keys.ecq_keys("broken")[0], "a string")  # the pending messages; only the load notices it

    result = verify(lake.spark, lake.catalog, lake.settings, now=at(HOUR_MS + 5), repair=True)

    assert {kind: count for kind, count in result.compacted.items() if count} == {"missing": 2}
    assert result.compacted_repaired == {"missing": 1, "acknowledged": 0, "position": 0}
    assert not result.agree


DAY_MS = 24 * HOUR_MS
POLICY = Policy.of(Settings(ecq_retention_days=10, ecq_pending_retention_days=20))
ACKED, EXPIRED = (StateRow(seq_at(1), at(2), 0, kind.value) for kind in (StateKind.ACKNOWLEDGED, StateKind.EXPIRED))
EMPTY = ReadReply(None, None, 0, None, ())


def held(*, delivered: bool = False, in_flight: bool = False) -> ReadReply:
    return ReadReply(None, None, 0, seq_at(1) if in_flight else None, (QueuedMessage("a", seq_at(1), 1, delivered),))


@pytest.mark.parametrize(
    ("row", "queue", "days", "expected"),
    [
        pytest.param(None, EMPTY, 20, {QueueDifference.MISSING}, id="pending and missing"),
        pytest.param(None, EMPTY, 20.5, set(), id="pending, its retention has just passed"),
        pytest.param(None, EMPTY, 22, {QueueDifference.OVERDUE}, id="pending, and not ended by garbage collection"),
        pytest.param(None, held(), 20, set(), id="pending in both"),
        pytest.param(None, held(), 20.01, set(), id="pending in both, a dispatcher is about to end it"),
        pytest.param(None, held(), 20.5, {QueueDifference.OVERDUE}, id="pending in both past its retention"),
        pytest.param(None, held(in_flight=True), 22, set(), id="in flight past its retention"),
        pytest.param(ACKED, EMPTY, 10, {QueueDifference.MISSING}, id="acknowledged and missing"),
        pytest.param(ACKED, EMPTY, 10.5, set(), id="acknowledged, past its retention"),
        pytest.param(ACKED, held(), 5, {QueueDifference.ACKNOWLEDGED, QueueDifference.POSITION}, id="acknowledged, pending"),
        pytest.param(EXPIRED, EMPTY, 5, set(), id="expired under a shorter retention, and gone"),
        pytest.param(EXPIRED, held(), 5, {QueueDifference.OVERDUE, QueueDifference.POSITION}, id="expired, pending in the queue"),
        pytest.param(EXPIRED, EMPTY, 22, set(), id="expired, not collected yet"),
    ],
)
def test_an_expired_message_is_not_missing_and_an_unended_one_is_overdue(
    row: StateRow | None, queue: ReadReply, days: float, expected: set[QueueDifference]
) -> None:
    lake = FoldedQueue("V", [(seq_at(1), "a")], () if row is None else (row,))
    assert set(differences(lake, queue, now=at(round(days * DAY_MS)), policy=POLICY)) == expected


def test_an_unfetched_message_without_retention_is_never_overdue() -> None:
    policy = replace(POLICY, ecq_pending_retention_ms=0)
    lake, now = FoldedQueue("V", [(seq_at(1), "a")], ()), at(400 * DAY_MS)
    assert set(differences(lake, held(), now=now, policy=policy)) == set()
    assert set(differences(lake, EMPTY, now=now, policy=policy)) == {QueueDifference.MISSING}


def test_a_message_pending_past_its_retention_is_reported_but_no_difference(
    spark_lake: SparkLake, redis: Redis, redis_server: Server
) -> None:
    lake, now_ms = spark_lake, 31 * DAY_MS
    lake.settings = lake.settings.model_copy(update={"redis_port": redis_server.port})
    ensure_tables(lake.catalog)
    redis.set(keys.LOADED, 1)
    add(lake, "late", (1, "a"))
    batch = BlockingBatch(redis, Policy.of(lake.settings))
    batch.add("ecq/late", Append(seq_at(1), "a", b""), NOON_MS)
    batch.run()

    found = verify(lake.spark, lake.catalog, lake.settings, now=at(now_ms), repair=True)

    assert {kind: count for kind, count in found.compacted.items() if count} == {"overdue": 1}
    assert found.agree
