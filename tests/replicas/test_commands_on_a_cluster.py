"""Jobs and commands behave the same for any number of Redis nodes."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from manifold.console._doctor import examine
from manifold.contracts import keys
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import seq_of, wall_clock_ms
from manifold.contracts.signals import keys as of_door
from manifold.history.merge import History
from manifold.queues import BlockingBatch, Loader, Policy, connect
from manifold.queues.verbs.ecq import Append
from manifold.runtime.redis import connect as connect_blocking
from manifold.settings import Settings
from pipelines.populate.lock import populate_lock
from tests.replicas.cluster import LocalCluster


def test_doctor_checks_every_master(cluster: LocalCluster) -> None:
    settings = Settings(redis_url=cluster.url)
    cluster.flush()
    found = {finding.check: finding for finding in examine(settings)}
    assert found["redis"].passed
    assert found["redis memory"].seen.count("no limit") == cluster.masters
    assert "snapshots only" in found["redis persistence"].seen
    assert "appendonly yes" in found["redis persistence"].remedy
    assert found["queues"].seen.startswith("rebuild needed")

    with connect_blocking(cluster.url) as redis:
        Loader(redis, Policy.of(settings)).mark_loaded(1)
    assert {finding.check: finding.passed for finding in examine(settings)}["queues"]


@pytest.mark.parametrize("service", ["jobs", "dispatcher", "recorder", "api", "signals"])
def test_each_service_has_the_rights_that_its_client_needs(url_of: Callable[[str], str], service: str) -> None:
    """Commands that client libraries send to a cluster by themselves, and scripts on every node."""
    own = of_door.idempotency("device", "key") if service == "signals" else keys.pending("V")

    async def by_the_other_library() -> None:
        async with connect(url_of(service)) as redis:
            assert await redis.script_load("return 1")
            assert await redis.eval("return redis.call('TTL', KEYS[1])", 1, own) == -2

    asyncio.run(by_the_other_library())
    with connect_blocking(url_of(service)) as redis:
        assert redis.ping()
        assert redis.info("memory", target_nodes="primaries")
        assert redis.eval("return redis.call('TTL', KEYS[1])", 1, own) == -2


def test_the_populate_lock_holds(url_of: Callable[[str], str]) -> None:
    with connect_blocking(url_of("jobs")) as redis, populate_lock(redis) as lock:
        lock.require_held()


def test_a_compacted_queue_is_read_from_the_cluster_alone(
    cluster: LocalCluster, url_of: Callable[[str], str], tmp_path: Path
) -> None:
    settings = Settings(redis_url=url_of("api"), home=tmp_path)
    cluster.flush()
    with connect_blocking(url_of("jobs")) as redis:
        Loader(redis, Policy.of(settings)).mark_loaded(1)
    with connect_blocking(url_of("recorder")) as redis:
        batch, seq = BlockingBatch(redis, Policy.of(settings)), seq_of(wall_clock_ms(), 0, 0)
        batch.add(ecq_queue("}C{"), Append(seq, "k", b"22"), wall_clock_ms())
        batch.run()
    with connect_blocking(url_of("api")) as redis:
        (entry,) = History(settings, redis).compacted_queue("}C{").entries

    assert (entry.key, entry.seq, entry.size_bytes, entry.state) == ("k", seq, 2, "pending")
    assert not (tmp_path / "lake").exists(), "the lake must not be read"
