"""A RabbitMQ for each file of tests, a door for all of a file's tests, and doors that a test may harm."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.settings import Settings, load_settings
from sandbox.platform import rabbitmq as embedded
from tests.servers import Server, free_port, start_rabbitmq
from tests.signals.gateway import DEFINITIONS, Door, Gateway


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A RabbitMQ that has imported the definitions; one for each file of tests, because all doors of one share its queues."""
    if embedded.server_script() is None:
        pytest.skip("rabbitmq-server is not installed; make setup installs it")
    settings = load_settings(home=tmp_path_factory.mktemp("rabbitmq"), amqp_port=free_port())
    servers = start_rabbitmq(settings, definitions=DEFINITIONS)
    try:
        yield settings
    finally:
        for server in reversed(servers):
            server.stop()


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
