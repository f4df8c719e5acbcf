"""One cluster of three masters for all tests that leave it healthy."""

from collections.abc import Iterator

import pytest

from tests.replicas.cluster import LocalCluster, a_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with a_cluster(tmp_path_factory.mktemp("cluster")) as three_masters:
        yield three_masters
