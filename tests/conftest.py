"""Fixtures that many rooms share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Server, start_mosquitto, start_redis, stopping


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One Redis for all tests that isolate themselves by owner names."""
    with stopping(start_redis(tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Server]:
    """A Redis that this test may kill, wipe and restart."""
    with stopping(start_redis(tmp_path / "redis", append_only=True)) as server:
        yield server


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One plain broker for all tests that isolate themselves by topic and client id."""
    with stopping(start_mosquitto(tmp_path_factory.mktemp("mosquitto"))) as server:
        yield server
