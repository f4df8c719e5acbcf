"""A signals service for all tests of a file, and services that a test may damage."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from manifold.settings import Settings
from tests.manifold.signals.gateway import Door, Gateway
from tests.support.servers import Server


@pytest.fixture(scope="module")
def running_door(tmp_path_factory: pytest.TempPathFactory, rabbitmq: Settings, redis_server: Server) -> Iterator[Door]:
    """One signals service for all tests that leave it healthy."""
    made = Door(tmp_path_factory.mktemp("door"), rabbitmq, redis_server.port)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def gateway(rabbitmq: Settings) -> Iterator[Gateway]:
    """A client of the services' RabbitMQ."""
    made = Gateway(rabbitmq)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def door(running_door: Door, gateway: Gateway) -> Door:
    """A consuming service with empty queues; earlier records are hidden."""
    gateway.purge()
    running_door.sees_only_what_comes()
    return running_door


@pytest.fixture
def own_door(tmp_path: Path, rabbitmq: Settings, own_redis: Server, gateway: Gateway) -> Iterator[Door]:
    """A stopped service that a test may damage, with its own Redis and empty queues."""
    made = Door(tmp_path / "home", rabbitmq, own_redis.port)
    gateway.purge()
    try:
        yield made
    finally:
        made.stop()
