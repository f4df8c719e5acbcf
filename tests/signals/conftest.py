"""One RabbitMQ for the tests of a process, and a door for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.settings import Settings, load_settings
from sandbox.platform import rabbitmq as embedded
from tests.servers import Server, free_port, start_rabbitmq
from tests.signals.gateway import Door, Gateway


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The settings of a RabbitMQ that runs, as the sandbox has it."""
    if embedded.server_script() is None:
        pytest.skip("rabbitmq-server is not installed; make setup installs it")
    settings = load_settings(home=tmp_path_factory.mktemp("rabbitmq"), amqp_port=free_port())
    servers = start_rabbitmq(settings)
    try:
        yield settings
    finally:
        for server in reversed(servers):
            server.stop()


@pytest.fixture
def door(tmp_path: Path, rabbitmq: Settings, redis_server: Server) -> Iterator[Door]:
    """A door that consumes; its queues are empty."""
    made = Door(tmp_path / "home", rabbitmq, redis_server.port)
    made.start()
    gateway = Gateway(rabbitmq)
    gateway.purge()
    gateway.close()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def gateway(rabbitmq: Settings, door: Door) -> Iterator[Gateway]:
    """A client of the RabbitMQ at which the door is."""
    made = Gateway(rabbitmq)
    try:
        yield made
    finally:
        made.close()
