"""`manifold verify` on compacted queues: what differs is found and loaded again; what Redis knows better is no difference."""

from redis import Redis

from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import ECQ_INDEX, ECQ_STATE
from manifold.lake.catalog import ensure_tables
from manifold.queues import Policy
from manifold.queues._drivers import BlockingBatch
from manifold.queues.verbs.ecq import Acknowledge, Append, Rewind
from manifold.queues.verbs.ecq_reads import ReadReply
from manifold.queues.verbs.verb import Verb
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


def test_what_differs_is_found_and_repaired(spark_lake: SparkLake, redis: Redis, redis_server: Server) -> None:
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


def test_a_message_past_its_retention_is_not_missing_from_its_queue() -> None:
    """It has expired, or was acknowledged; the lake keeps it until garbage collection."""
    lake, empty = FoldedQueue("V", [(seq_at(1), "a")], ()), ReadReply(None, None, 0, None, ())
    found = [list(differences(lake, empty, now=at(ms), retention_ms=HOUR_MS)) for ms in (HOUR_MS, HOUR_MS + 5)]
    assert found == [[QueueDifference.MISSING], []]
