"""A RabbitMQ for each file of tests, a door for all of a file's tests, and doors that a test may harm."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from manifold.settings import Settings
from tests.manifold.signals.gateway import Door, Gateway
from tests.support.rabbitmq import running_rabbitmq
from tests.support.servers import Server


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A RabbitMQ that has imported the definitions; one for each file of tests, because all doors of one share its queues."""
    with running_rabbitmq(tmp_path_factory.mktemp("rabbitmq")) as settings:
        yield settings


@pytest.fixture(scope="module")
def running_door(tmp_path_factory: pytest.TempPathFactory, rabbitmq: Settings, redis_server: Server) -> Iterator[Door]:
    """One door for all tests that leave it healthy."""
    made = Door(tmp_path_factory.mktemp("door"), rabbitmq, redis_server.port)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def gateway(rabbitmq: Settings) -> Iterator[Gateway]:
    """A client of the RabbitMQ at which the doors are."""
    made = Gateway(rabbitmq)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def door(running_door: Door, gateway: Gateway) -> Door:
    """A door that consumes, from queues that are empty; it has recorded nothing that a test could see."""
    gateway.purge()
    running_door.sees_only_what_comes()
    return running_door


@pytest.fixture
def own_door(tmp_path: Path, rabbitmq: Settings, own_redis: Server, gateway: Gateway) -> Iterator[Door]:
    """A door that a test may harm, with a Redis of its own; it is not started, and its queues are there and empty."""
    made = Door(tmp_path / "home", rabbitmq, own_redis.port)
    gateway.purge()
    try:
        yield made
    finally:
        made.stop()
