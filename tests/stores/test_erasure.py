"""`manifold vin erase` on object storage, a REST catalog and a Redis Cluster leaves nothing of the vehicle."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.tables import DATA, IDS, OUTCOMES, QUARANTINE, SEGMENTS
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.queues import Loader, Policy
from manifold.runtime.redis import connect
from pipelines.erasure.run import Erased, erase
from pipelines.maintenance.check import check
from tests.pipelines.makers import NOON_MS, at, data, outcome, seq_at, trigger
from tests.pipelines.plain import ingest, read
from tests.pipelines.test_erasure import GONE, NOW, STAYS, named_in
from tests.replicas.cluster import LocalCluster, a_cluster
from tests.stores.places import Deployed, on_object_storage
from tests.support.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LATE = seq_at(90_000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with a_cluster(tmp_path_factory.mktemp("cluster")) as three_masters:
        yield three_masters


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, redis_server: Server, cluster: LocalCluster) -> Iterator[Deployed]:
    """A vehicle and its neighbour in archive, tables and queues, and one more segment not ingested yet."""
    with on_object_storage(tmp_path_factory.mktemp("deployed"), redis_server, redis_url=cluster.url) as deployed:
        refused, theirs = trigger(3, [GONE, 7]), trigger(4, [STAYS, 7])
        deployed.archive(trigger(1, [GONE, STAYS]), trigger(2, [GONE]), refused, theirs)
        deployed.archive(data(21, "d1", b"one"), data(22, f"for_{GONE}", b"two"), data(23, "d3", GONE.encode()))
        deployed.archive(outcome(31, GONE, 1), outcome(32, STAYS, 1))
        catalog = open_catalog(deployed.settings)
        ensure_tables(catalog)
        ingest(catalog, deployed.settings, run_id="run", now=at(0))
        deployed.archive(trigger(40, [GONE, STAYS]))
        fill_queues(cluster, Policy.of(deployed.settings))
        yield deployed


def fill_queues(cluster: LocalCluster, policy: Policy) -> None:
    with connect(cluster.url) as redis:
        loader = Loader(redis, policy)
        redis.hset(keys.presence(GONE), mapping={"connected": "yes", "subscribed": "yes"})
        loader.enqueue([(GONE, [(seq_at(1), "r"), (seq_at(2), "r"), (LATE, "r")]), (STAYS, [(seq_at(1), "r")])], NOON_MS)
        redis.hset(keys.inflight(GONE), mapping={"seq": seq_at(1), "published_at": 1, "attempts": 1, "deadline": 1})
        redis.zadd(keys.parked(GONE), {str(seq_at(3)): seq_at(3)})
        redis.zadd(keys.PARKED, {"d9": 1, f"for_{GONE}_7": 1})
        redis.sadd(keys.waiting_for(f"for_{GONE}_7"), f"{STAYS} {seq_at(3)}")
        redis.sadd(keys.waiting_for("d9"), f"{GONE} {seq_at(3)}", f"{STAYS} {seq_at(3)}")
        redis.zadd(keys.deadlines(keys.shard_of(GONE, policy.wake_shards)), {GONE: 1})
        loader.add_outcomes(OutcomeRecord(vin, seq_at(1), Outcome.DELIVERED, NOON_MS) for vin in (GONE, STAYS))
        for n in range(20):  # slots on all masters
            redis.set(keys.data(f"for_{GONE}_{n}"), b"two")


def erased(lake: Deployed) -> Erased:
    settings = lake.settings
    return erase(open_catalog(settings), settings, GONE, why="asked to", now=NOW, wait_s=0, seal=lambda _: True)


@pytest.fixture(scope="module")
def done(lake: Deployed) -> Erased:
    """The lake and the queues after the erasure."""
    assert named_in(lake.bucket, GONE)
    return erased(lake)


def vins(catalog: Catalog) -> list[tuple[str, int]]:
    return sorted((row["vin"], row["seq"]) for row in read(catalog, IDS))


def test_the_bucket_keeps_nothing_of_the_vehicle_and_everything_of_others(lake: Deployed, done: Erased) -> None:
    catalog = open_catalog(lake.settings)
    assert (done.found, done.segments) == ([], 4)
    assert named_in(lake.bucket, GONE) == []
    assert done.searched > 10
    assert vins(catalog) == [(STAYS, seq_at(1))]
    assert [(row["vin"], row["seq"]) for row in read(catalog, OUTCOMES)] == [(STAYS, seq_at(1))]
    assert [row["seq"] for row in read(catalog, QUARANTINE)] == [seq_at(4)]
    assert [row["data_id"] for row in read(catalog, DATA)] == ["d1"]
    ingest(catalog, lake.settings, run_id="after", now=at(50))
    assert vins(catalog) == [(STAYS, seq_at(1)), (STAYS, seq_at(40))]
    assert len(read(catalog, SEGMENTS)) == 4
    assert check(catalog, lake.settings, now=NOW).agree
    assert erased(lake).found == []  # repeated, with nothing left to do


def test_the_vehicle_is_removed_from_the_queues_on_every_master(done: Erased, cluster: LocalCluster) -> None:
    assert (done.found, done.entries) == ([], 3)
    left = sorted(key for client in cluster.clients() for key in named_keys(client))
    assert left == [keys.pending(GONE), keys.presence(GONE)]
    with connect(cluster.url) as redis:
        assert redis.zrange(keys.pending(GONE), 0, -1) == [str(LATE).encode()]
        assert redis.zrange(keys.PARKED, 0, -1) == [b"d9"]
        assert redis.smembers(keys.waiting_for("d9")) == {f"{STAYS} {seq_at(3)}".encode()}
        outcomes: Any = redis.xrange(keys.OUTCOMES)
        assert [OutcomeRecord.from_wire(fields[b"o"]).vin for _, fields in outcomes] == [STAYS]
        assert redis.zrange(keys.pending(STAYS), 0, -1) == [str(seq_at(1)).encode()]


def named_keys(client: Redis) -> list[str]:
    """The keys of one master that name the vehicle."""
    found: Any = client.keys(f"*{GONE}*")
    return [key.decode() for key in found]
