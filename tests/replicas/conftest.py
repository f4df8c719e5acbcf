"""One cluster of three masters for all tests that leave it healthy."""

from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from manifold.runtime.redis import connect as connect_blocking
from tests.replicas.cluster import LocalCluster, a_cluster
from tests.support.redis_users import RedisUsers, refused


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with a_cluster(tmp_path_factory.mktemp("cluster")) as three_masters:
        yield three_masters


@pytest.fixture
def redis(cluster: LocalCluster) -> Iterator[Redis]:
    """A blocking client of an empty cluster."""
    cluster.flush()
    with connect_blocking(cluster.url) as client:
        yield client


@pytest.fixture
def url(cluster: LocalCluster) -> str:
    """The URL of a node of that cluster."""
    return cluster.url


@pytest.fixture(scope="session")
def users(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> RedisUsers:
    """The users of environments on each node; without a password, tests may do everything."""
    users = RedisUsers(tmp_path_factory.mktemp("users"))
    for node in cluster.clients():
        users.add_to(node)
    return users


@pytest.fixture
def url_of(cluster: LocalCluster, users: RedisUsers) -> Iterator[Callable[[str], str]]:
    """The cluster's URL for a service. None of its commands may be refused."""
    for node in cluster.clients():
        node.acl_log_reset()
    yield lambda service: users.url(service, cluster.nodes[0].port).replace("redis:", "redis+cluster:").removesuffix("/0")
    assert [line for node in cluster.clients() for line in refused(node)] == []
