"""A cluster with simulated nodes and the `production` environment, one per test module; each test restores it."""

from collections.abc import Iterator

import pytest

from tests.infra.applied import Applied, applied
from tests.infra.cluster import Cluster, cluster


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("production")) as found:
        yield found


@pytest.fixture(scope="module")
def production(api: Cluster) -> Applied:
    return applied(api, "production")
