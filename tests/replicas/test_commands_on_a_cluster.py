"""What jobs and commands do with Redis does not depend on how many nodes it has."""

from pathlib import Path

from adapters.redis import connect as connect_blocking
from console._doctor import examine
from contracts.queue_names import ecq_queue
from contracts.seq import seq_of, wall_clock_ms
from contracts.settings import Settings
from history.merge import History
from pipelines.populate.lock import populate_lock
from queues import BlockingBatch, Loader, Policy
from queues.verbs.ecq import Append
from tests.replicas.cluster import LocalCluster


def test_doctor_asks_every_master(cluster: LocalCluster) -> None:
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


def test_the_lock_of_populating_holds(cluster: LocalCluster) -> None:
    with connect_blocking(cluster.url) as redis, populate_lock(redis) as lock:
        lock.check()


def test_a_compacted_queue_is_told_by_the_cluster_alone(cluster: LocalCluster, tmp_path: Path) -> None:
    settings = Settings(redis_url=cluster.url, home=tmp_path)
    cluster.flush()
    with connect_blocking(cluster.url) as redis:
        Loader(redis, Policy.of(settings)).mark_loaded(1)
        batch, seq = BlockingBatch(redis, Policy.of(settings)), seq_of(wall_clock_ms(), 0, 0)
        batch.add(ecq_queue("}C{"), Append(seq, "k", b"22"), wall_clock_ms())
        batch.run()

        (entry,) = History(settings, redis).compacted_queue("}C{").entries

    assert (entry.key, entry.seq, entry.size_bytes, entry.state) == ("k", seq, 2, "pending")
    assert not (tmp_path / "lake").exists(), "nobody asked the lake"
