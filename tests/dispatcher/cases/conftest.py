"""Three sandboxes for all cases: default settings, short deadlines, and changed delivery settings."""

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
    """Short deadlines (1 s, then 2 s) and compaction."""
    short = {"ack_deadline_seconds": 1, "ack_deadline_max_seconds": 2, "parked_retry_seconds": 1, "compaction": "request_id"}
    with a_ground(tmp_path_factory.mktemp("brisk"), **short) as ground:
        yield ground


@pytest.fixture(scope="session")
def altered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Non-default settings: dispatch on connect and subscribe, two attempts, another topic prefix."""
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
