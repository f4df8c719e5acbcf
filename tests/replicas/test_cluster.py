"""The whole path from trigger to vehicle over Redis Cluster, with a master dying on the way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis import Redis

from manifold.contracts import topics
from tests.dispatcher.platform import a_platform, health
from tests.dispatcher.platform_client import PlatformClient
from tests.replicas.cluster import LocalCluster, a_cluster
from tests.replicas.drivers import a_fleet, all_arrived_in_order
from tests.support.servers import Server, wait_until
from tests.support.wire import trigger

VEHICLES = 12
FAIL_OVER_S = 120  # takes seconds on a quiet machine


def test_a_master_dies_during_batches_and_everything_arrives_in_order(tmp_path: Path) -> None:
    with (
        a_cluster(tmp_path / "cluster", replicas=1) as cluster,
        a_platform(tmp_path, redis_url=cluster.url, ack_deadline_seconds=2, ack_deadline_max_seconds=4) as platform,
    ):
        platform.start_recorder()
        platform.start_dispatcher()
        platform_client = PlatformClient(platform.settings)
        with a_fleet(platform, VEHICLES) as drivers:
            send = _sender(platform_client, [d.vin for d in drivers])
            seqs = [send() for _ in range(20)]
            all_arrived_in_order(platform, drivers, seqs, within_s=FAIL_OVER_S)
            assert _masters_with_queues(cluster) == 3

            seqs += [send() for _ in range(10)]
            cluster.nodes[1].kill()
            seqs += [send() for _ in range(10)]  # recorded while a third of the queues is unreachable
            wait_until(lambda: health(platform.settings.recorder_port).get("direct_enqueue") == "on", within_s=FAIL_OVER_S)
            seqs += [send() for _ in range(10)]
            all_arrived_in_order(platform, drivers, seqs, within_s=FAIL_OVER_S)
        platform_client.close()


def _sender(platform_client: PlatformClient, vins: list[str]) -> Callable[[], int]:
    platform_client.send(topics.data_topic("d"), b"hello")
    requests = iter(range(1000))

    def send() -> int:
        receipt = platform_client.send(topics.TRIGGER, trigger(vins, f"task_{next(requests)}"))
        assert receipt["status"] == "recorded", receipt
        return int(receipt["seq"])

    return send


def _masters_with_queues(cluster: LocalCluster) -> int:
    return sum(_has_queues(node) for node in cluster.nodes[: cluster.masters])


def _has_queues(node: Server) -> bool:
    with Redis(port=node.port) as client:
        found: Any = client.keys("q:*")
    return bool(found)
