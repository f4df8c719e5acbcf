"""`manifold vin erase` removes a client's compacted queue everywhere and keeps those of others."""

from redis import Redis

from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.envelope import Stream
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.tables import ECQ_INDEX, ECQ_PAYLOAD, ECQ_SEQNO, ECQ_STATE
from manifold.lake.catalog import open_catalog
from manifold.queues import Policy
from manifold.queues._drivers import BlockingBatch
from manifold.queues.verbs.ecq import Acknowledge, Append
from pipelines.erasure.names import ErasedVehicle
from pipelines.erasure.queues import find_in_redis
from pipelines.erasure.run import erase, search_all
from pipelines.maintenance.check import check
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import NOON_MS, at, ecq_ack, ecq_rewind, ecq_write, seq_at
from tests.pipelines.plain import ingest, read
from tests.pipelines.test_erasure import GONE, STAYS, place_of

__all__ = ["place_of"]  # a fixture
NOW_MS = 60_000


def test_everything_of_the_client_is_erased_and_other_and_later_messages_stay(place_of: Lake, redis: Redis) -> None:
    lake = place_of
    lake.archive(
        Stream.ECQ,
        [
            ecq_write(1, GONE, "a", b"x"),
            ecq_write(2, STAYS, "a", b"x"),
            ecq_write(3, STAYS, f"pair/{GONE}", b"x"),  # contains its name
            ecq_write(4, STAYS, "b", GONE.encode()),
            ecq_ack(5, GONE, 1),
            ecq_ack(6, STAYS, 2),
            ecq_rewind(7, GONE),
            ecq_rewind(8, STAYS),
        ],
    )
    lake.archive(
        Stream.ECQ,
        [ecq_write(NOW_MS + 1, GONE, "a", b"later"), ecq_ack(NOW_MS + 2, GONE, NOW_MS + 1), ecq_ack(NOW_MS + 3, GONE, 1)],
        node=1,
    )
    catalog = open_catalog(lake.settings)
    ingest(catalog, lake.settings, run_id="run", now=at(0))
    batch = BlockingBatch(redis, Policy.of(lake.settings))
    for ms in (1, NOW_MS + 1):
        batch.add(ecq_queue(GONE), Append(seq_at(ms), f"k{ms}", b"x"), NOON_MS)
    batch.add(ecq_queue(STAYS), Append(seq_at(2), "a", b"x"), NOON_MS)
    batch.add(ecq_queue(GONE), Acknowledge(EcqAck(GONE, seq_at(1), NOON_MS), claim=False), NOON_MS)
    batch.run()
    vehicle = ErasedVehicle(GONE, seq_at(NOW_MS))
    assert find_in_redis(redis, vehicle)

    done = erase(catalog, lake.settings, GONE, why="asked for", now=at(NOW_MS), wait_s=0, seal=lambda _: True)

    assert done.found == []
    assert search_all(catalog, lake.settings, redis, vehicle)[0] == []
    rows = {table.name: read(catalog, table) for table in (ECQ_PAYLOAD, ECQ_INDEX, ECQ_STATE, ECQ_SEQNO)}
    assert sorted((row["client_id"], row["seq"]) for row in rows["ecq_index"]) == [(GONE, seq_at(NOW_MS + 1)), (STAYS, seq_at(2))]
    assert sorted(row["seq"] for row in rows["ecq_payload"]) == [seq_at(2), seq_at(NOW_MS + 1)]
    assert sorted((row["client_id"], row["acked_seq"]) for row in rows["ecq_state"]) == [
        (GONE, seq_at(NOW_MS + 1)),
        (STAYS, -1),
        (STAYS, seq_at(2)),
    ]
    assert sorted(row["client_id"] for row in rows["ecq_seqno"] if row["client_id"] == GONE) == [GONE]
    assert redis.zrange(keys.ecq_keys(GONE)[0], 0, -1) == [str(seq_at(NOW_MS + 1)).encode()]
    assert redis.zrange(keys.ecq_keys(STAYS)[0], 0, -1) == [str(seq_at(2)).encode()]
    assert redis.xlen(keys.OUTCOMES) == 0
    assert check(catalog, lake.settings, now=at(NOW_MS)).agree
