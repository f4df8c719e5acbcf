"""The topology: what is declared, what is written down, and what a server says to another one."""

import json
from pathlib import Path

import pika
import pytest

from adapters.amqp import connection_url
from contracts.settings import Settings
from contracts.signals import topology
from sandbox.platform.rabbitmq import MESSAGE_BYTES
from tests.servers import ROOT, Server
from tests.signals.gateway import DEFINITIONS, Door, Gateway


def test_the_definitions_that_are_written_down_are_those_of_the_contract() -> None:
    assert json.loads(DEFINITIONS.read_text()) == topology.definitions()


@pytest.mark.parametrize("file", ["compose/etc/rabbitmq.conf", "terraform/modules/rabbitmq/manifests/rabbitmq.yaml.tftpl"])
def test_every_server_takes_messages_of_the_same_size(file: str) -> None:
    """Larger ones end their publisher's channel; without a limit, one of 128 MiB is held by the door before it is refused."""
    assert f"max_message_size = {MESSAGE_BYTES}\n" in (ROOT / "infra" / file).read_text()


def test_the_contract_word_for_word() -> None:
    queues = {queue.name: (queue.exchange, dict(queue.arguments)) for queue in topology.QUEUES}

    assert {exchange.name: exchange.type for exchange in topology.EXCHANGES} == {"iot.xray": "topic", "iot.xray.dlx": "direct"}
    assert queues == {
        "xray.raw.v1": (
            "iot.xray",
            {
                "x-message-ttl": 3_600_000,
                "x-dead-letter-exchange": "iot.xray.dlx",
                "x-dead-letter-routing-key": "xray.raw.v1.dlq",
            },
        ),
        "xray.raw.v1.retry": (
            "iot.xray",
            {"x-message-ttl": 60_000, "x-dead-letter-exchange": "iot.xray", "x-dead-letter-routing-key": "xray.raw.v1"},
        ),
        "xray.raw.v1.dlq": ("iot.xray.dlx", {"x-message-ttl": 604_800_000}),
        "device.status.v1": ("iot.xray", {}),
        "xray.processed.v1": ("iot.xray", {}),
        "xray.raw.v1.dlq.copy": ("iot.xray.dlx", {"x-message-ttl": 604_800_000}),  # ours; the contract does not know it
    }
    assert {q.name: q.key for q in topology.QUEUES if q.key != q.name} == {"xray.raw.v1.dlq.copy": "xray.raw.v1.dlq"}


def test_a_fresh_server_imports_the_definitions_and_the_door_takes_them(
    tmp_path: Path, rabbitmq: Settings, redis_server: Server
) -> None:
    door, gateway = Door(tmp_path / "home", rabbitmq, redis_server.port), Gateway(rabbitmq)
    try:
        assert all(gateway.count(queue.name) == 0 for queue in topology.QUEUES)
        door.start()  # it declares the same, and would be refused otherwise
        gateway.send_signed()
        assert gateway.get(topology.PROCESSED)
    finally:
        gateway.close()
        door.stop()


@pytest.mark.parametrize(
    ("queue", "arguments", "named"),
    [
        (topology.RETRY, {"x-message-ttl": 1000}, ["x-message-ttl", "'60000'", "'1000'"]),
        (topology.DEAD, {}, ["x-message-ttl", "604800000", "none"]),
        (topology.STATUS, {"x-max-length": 5}, ["x-max-length", "none", "'5'"]),
    ],
)
def test_a_queue_with_other_arguments_is_named_with_both_values(
    tmp_path: Path, rabbitmq: Settings, redis_server: Server, queue: str, arguments: dict[str, int], named: list[str]
) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(connection_url(rabbitmq)))
    channel = connection.channel()
    channel.queue_delete(queue)
    channel.queue_declare(queue, durable=True, arguments=arguments)
    door = Door(tmp_path / "home", rabbitmq, redis_server.port)
    try:
        with pytest.raises(RuntimeError, match="ended with 2"):
            door.start()
        said = door.log
    finally:
        channel.queue_delete(queue)
        connection.close()

    assert [word for word in [queue, *named] if word not in said] == [], said
    assert "Traceback" not in said
