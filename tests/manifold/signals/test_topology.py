"""The topology: declared, stored, and as one server exports it to another."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError
from prometheus_client.parser import text_string_to_metric_families

from manifold.contracts.signals import topology
from manifold.messaging.amqp import connection_url
from manifold.sandbox.platform.rabbitmq import MAX_MESSAGE_BYTES
from manifold.settings import Settings
from tests.manifold.signals.gateway import FOREIGN, Door, Gateway, body_of, signed
from tests.support.rabbitmq import DEFINITIONS
from tests.support.servers import ROOT, Server, wait_until


def test_the_stored_definitions_match_the_contract() -> None:
    assert json.loads(DEFINITIONS.read_text()) == topology.definitions()


@pytest.mark.parametrize("file", ["compose/etc/rabbitmq.conf", "terraform/modules/rabbitmq/manifests/rabbitmq.yaml.tftpl"])
def test_every_server_accepts_messages_of_the_same_size(file: str) -> None:
    """Larger messages close their publisher's channel; without a limit, each in the service's hands could have 128 MiB."""
    assert f"max_message_size = {MAX_MESSAGE_BYTES}\n" in (ROOT / "infra" / file).read_text()


def test_the_topology_matches_the_contract_literally() -> None:
    queues = {queue.name: (queue.exchange, dict(queue.arguments)) for queue in topology.QUEUES}

    assert topology.EXCHANGES == {"iot.xray": "topic", "iot.xray.dlx": "direct"}
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
            "iot.xray.dlx",
            {"x-message-ttl": 60_000, "x-dead-letter-exchange": "iot.xray", "x-dead-letter-routing-key": "xray.raw.v1"},
        ),
        "xray.raw.v1.dlq": ("iot.xray.dlx", {"x-message-ttl": 604_800_000}),
        "device.status.v1": ("iot.xray", {}),
        "xray.processed.v1": ("iot.xray", {}),
        "xray.raw.v1.dlq.copy": ("iot.xray.dlx", {"x-message-ttl": 604_800_000}),  # ours, not in the contract
    }
    assert {q.name: q.key for q in topology.QUEUES if q.key != q.name} == {"xray.raw.v1.dlq.copy": "xray.raw.v1.dlq"}


@pytest.mark.parametrize(
    ("queue", "arguments", "said"),
    [
        (topology.RETRY, {"x-message-ttl": 1000}, "has x-message-ttl = '1000', and the door needs '60000'"),
        (topology.DEAD, {}, "has x-message-ttl = none, and the door needs '604800000'"),
        (topology.STATUS, {"x-max-length": 5}, "has x-max-length = '5', and the door needs none"),
    ],
)
def test_a_queue_with_other_arguments_is_named_with_both_values(
    tmp_path: Path, rabbitmq: Settings, redis_server: Server, queue: str, arguments: dict[str, int], said: str
) -> None:
    with another_topology(rabbitmq) as channel:
        channel.queue_delete(queue)
        channel.queue_declare(queue, durable=True, arguments=arguments)
        try:
            assert f"queue '{queue}' {said}; delete" in refusal_of_a_door(tmp_path, rabbitmq, redis_server)
        finally:
            channel.queue_delete(queue)


@pytest.mark.parametrize(
    ("exchange", "other", "said"),
    [
        (topology.EXCHANGE, {"exchange_type": "fanout", "durable": True}, "has type = 'fanout', and the door needs 'topic'"),
        (topology.DEAD_EXCHANGE, {"exchange_type": "direct"}, "has durable = 'false', and the door needs 'true'"),
    ],
)
def test_an_exchange_of_another_type_is_named_with_both_values(
    tmp_path: Path, rabbitmq: Settings, redis_server: Server, exchange: str, other: dict[str, Any], said: str
) -> None:
    with another_topology(rabbitmq) as channel:
        channel.exchange_delete(exchange)
        channel.exchange_declare(exchange, **other)
        try:
            assert f"exchange '{exchange}' {said}; delete" in refusal_of_a_door(tmp_path, rabbitmq, redis_server)
        finally:
            channel.exchange_delete(exchange)


@contextmanager
def another_topology(rabbitmq: Settings) -> Iterator[BlockingChannel]:
    """A channel on which another topology is declared."""
    connection = pika.BlockingConnection(pika.URLParameters(connection_url(rabbitmq)))
    try:
        yield connection.channel()
    finally:
        connection.close()


def refusal_of_a_door(tmp_path: Path, rabbitmq: Settings, redis_server: Server) -> str:
    """The error of a service that did not start."""
    door = Door(tmp_path / "home", rabbitmq, redis_server.port)
    with pytest.raises(RuntimeError, match="ended with 2"):
        door.start()
    assert "Traceback" not in door.log
    return door.log


def test_a_message_on_the_retry_route_of_the_contract_returns(door: Door, gateway: Gateway) -> None:
    body = body_of("device-of-another")
    gateway.publish(topology.DEAD_EXCHANGE, topology.RETRY, body, signed(body, device="device-of-another"), expiration="1")

    assert b"device-of-another" in gateway.get(topology.PROCESSED)[1]


def test_the_binding_of_an_earlier_release_is_removed_and_its_queue_kept(
    tmp_path: Path, rabbitmq: Settings, redis_server: Server
) -> None:
    with another_topology(rabbitmq) as channel:
        channel.queue_bind(topology.RETRY, topology.EXCHANGE, topology.RETRY)
        door = Door(tmp_path / "home", rabbitmq, redis_server.port)
        door.start()
        try:
            channel.confirm_delivery()
            with pytest.raises(UnroutableError):
                channel.basic_publish(topology.EXCHANGE, topology.RETRY, b"{}", mandatory=True)
        finally:
            door.stop()


def test_messages_through_foreign_bindings_are_checked_and_reported(door: Door, gateway: Gateway) -> None:
    """By a binding of the raw queue to a foreign exchange, to all of our keys, and to the dead letters."""
    gateway.channel.exchange_declare("of.others", "fanout")
    ways = [("of.others", "any"), (topology.EXCHANGE, "#"), (topology.DEAD_EXCHANGE, topology.DEAD)]
    for exchange, key in ways:
        gateway.channel.queue_bind(topology.RAW, exchange, key)
    try:
        body = body_of("device-7")
        gateway.publish("of.others", "theirs", body, signed(body, device="device-7"))
        assert b"device-7" in gateway.get(topology.PROCESSED)[1]
        gateway.publish("of.others", "theirs", body, signed(body, device="device-7", secret="forged"))
        # Two of others, the processed signal, and the dead letters of both, which are ignored.
        wait_until(lambda: foreign(door) == 5, what="the messages from foreign bindings")
    finally:
        for exchange, key in ways:
            gateway.channel.queue_unbind(topology.RAW, exchange, key)
        gateway.channel.exchange_delete("of.others")
    gateway.send_signed()
    gateway.get(topology.PROCESSED)
    assert (gateway.count(topology.DEAD), foreign(door)) == (2, 5)
    assert FOREIGN in door.log
    assert [exchange for exchange, _ in ways if f"exchange={exchange!r} " not in door.log] == []


def foreign(door: Door) -> float:
    """The number of messages that arrived by a foreign binding."""
    page = text_string_to_metric_families(httpx.get(f"{door.settings.signals}/metrics").text)
    return sum(
        s.value for family in page if family.name == "signals_foreign" for s in family.samples if s.name.endswith("_total")
    )


@pytest.mark.parametrize("exchange", [topology.EXCHANGE, topology.DEAD_EXCHANGE])
def test_an_exchange_deleted_at_run_time_is_declared_and_bound_again(door: Door, gateway: Gateway, exchange: str) -> None:
    """Nothing is published meanwhile, so no error reveals the deletion."""
    gateway.channel.exchange_delete(exchange)
    wait_until(lambda: f"exchange={exchange!r}" in door.log, within_s=20, what="the signals service to name the exchange")
    wait_until(lambda: door.log.count("topology declared again") > 0, within_s=20)
    gateway.send_signed()
    gateway.send(b"no JSON", {})

    assert gateway.get(topology.PROCESSED)
    assert gateway.get(topology.DEAD)


def test_a_binding_deleted_at_run_time_is_created_again(door: Door, gateway: Gateway) -> None:
    gateway.channel.queue_unbind(topology.RAW, topology.EXCHANGE, topology.RAW)

    def is_routed() -> bool:
        try:
            gateway.send_signed()
        except UnroutableError:
            return False
        return True

    wait_until(is_routed, within_s=20, what="a route to the raw queue")
    assert gateway.get(topology.PROCESSED)
