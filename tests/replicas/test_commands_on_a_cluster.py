"""What jobs and commands do with Redis does not depend on how many nodes it has."""

from adapters.redis import connect as connect_blocking
from console._doctor import examine
from contracts.settings import Settings
from pipelines.populate.lock import populate_lock
from queues import Loader, Policy
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
