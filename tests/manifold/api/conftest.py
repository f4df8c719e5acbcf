"""One API for all read-only tests."""

from collections.abc import Iterator

import pytest

from tests.manifold.api.desk import Desk, desk_at


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk for tests that isolate themselves by names of vehicles and data."""
    with desk_at(tmp_path_factory.mktemp("desk")) as found:
        yield found
