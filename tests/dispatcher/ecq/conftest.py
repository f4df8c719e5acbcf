"""Two sandboxes for all cases: default settings and short deadlines."""

from collections.abc import Iterator

import pytest

from tests.dispatcher.cases.ground import a_ground
from tests.dispatcher.ecq.ground import EcqGround


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EcqGround]:
    """Default settings: no deadline passes within a test."""
    with a_ground(tmp_path_factory.mktemp("ecq")) as ground:
        yield EcqGround(ground.platform, ground.platform_client)


@pytest.fixture(scope="session")
def brisk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EcqGround]:
    """Short deadlines (1 s) and three attempts."""
    short = {"ack_deadline_seconds": 1, "ack_deadline_max_seconds": 1, "max_attempts": 3}
    with a_ground(tmp_path_factory.mktemp("ecq-brisk"), **short) as ground:
        yield EcqGround(ground.platform, ground.platform_client)
