"""Three sandboxes for all cases: one patient, one brisk, and one on which settings about delivery differ from their defaults."""

from collections.abc import Iterator

import pytest

from tests.dispatcher.cases.ground import Ground, a_ground


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Default settings: no deadline passes within a test."""
    with a_ground(tmp_path_factory.mktemp("ground")) as ground:
        yield ground


@pytest.fixture(scope="session")
def brisk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A vehicle has one second to acknowledge, and two from the second attempt on; compaction is on."""
    short = {"ack_deadline_seconds": 1, "ack_deadline_max_seconds": 2, "parked_retry_seconds": 1, "compaction": "request_id"}
    with a_ground(tmp_path_factory.mktemp("brisk"), **short) as ground:
        yield ground


@pytest.fixture(scope="session")
def altered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """What is off by default is on: dispatch on connect and subscribe, two attempts; and another topic prefix."""
    settings = {
        "ack_deadline_seconds": 1,
        "ack_deadline_max_seconds": 1,
        "max_attempts": 2,
        "dispatch_on_connect": True,
        "dispatch_on_subscribe": True,
        "topic_prefix": "fleet/eu",
    }
    with a_ground(tmp_path_factory.mktemp("altered"), **settings) as ground:
        yield ground
