"""One platform with one dispatcher, for the tests that need no more than vehicles of their own."""

from collections.abc import Iterator

import pytest

from tests.dispatcher.platform import Platform, a_platform


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with a_platform(tmp_path_factory.mktemp("platform")) as shared:
        shared.start_dispatcher()
        yield shared


@pytest.fixture(params=[4, 5], ids=["3.1.1", "5"])
def protocol(request: pytest.FixtureRequest) -> int:
    return int(request.param)
