"""The direct enqueue of compacted queues, once more with Redis Cluster below it."""

from collections.abc import Iterator

import pytest
from redis import Redis

from adapters.redis import connect as connect_blocking
from tests.recorder.test_ecq_enqueuer import *  # noqa: F403  # its tests run here with the fixtures of this module
from tests.replicas.cluster import LocalCluster


@pytest.fixture  # type: ignore[no-redef]
def redis(cluster: LocalCluster) -> Iterator[Redis]:
    """A blocking client of an empty cluster."""
    cluster.flush()
    with connect_blocking(cluster.url) as client:
        yield client


@pytest.fixture  # type: ignore[no-redef]
def url(cluster: LocalCluster) -> str:
    """A node of that cluster."""
    return cluster.url
