"""Least privilege in RabbitMQ: each user does its work, and is refused everything else."""

import json
from collections.abc import Callable

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from manifold.contracts.signals import rights, topology
from manifold.contracts.signals.rights import DOOR, GATEWAY, OPERATOR, READER
from manifold.messaging.amqp import USER
from manifold.settings import Settings
from tests.manifold.signals.gateway import Door, Gateway, body_of, signed
from tests.support.servers import ROOT

Act = Callable[[Gateway], object]


def publish(exchange: str, key: str) -> Act:
    about = pika.BasicProperties(headers={})
    return lambda client: client.channel.basic_publish(exchange, key, b"{}", about, mandatory=True)


def declare(queue: str, **more: object) -> Act:
    return lambda client: client.channel.queue_declare(queue, durable=True, **more)


def read(queue: str) -> Act:
    return lambda client: client.channel.basic_get(queue)


def purge(queue: str) -> Act:
    return lambda client: client.channel.queue_purge(queue)


MUST_NOT: list[tuple[str, str, Act]] = [
    (DOOR, "read what it has processed", read(topology.PROCESSED)),
    (DOOR, "read dead letters", read(topology.DEAD)),
    (DOOR, "make a queue of its own", declare("mine")),
    (DOOR, "delete dead letters", purge(topology.DEAD)),
    (DOOR, "publish under another key", publish(topology.EXCHANGE, "another")),
    (GATEWAY, "read signals of others", read(topology.RAW)),
    (GATEWAY, "read processed signals", read(topology.PROCESSED)),
    (GATEWAY, "publish processed signals", publish(topology.EXCHANGE, topology.PROCESSED)),
    (GATEWAY, "publish a retry", publish(topology.EXCHANGE, topology.RETRY)),
    (GATEWAY, "publish dead letters", publish(topology.DEAD_EXCHANGE, topology.DEAD)),
    (GATEWAY, "write into a queue", publish("", topology.PROCESSED)),
    (GATEWAY, "make a queue", declare("mine")),
    (GATEWAY, "delete a queue", lambda client: client.channel.queue_delete(topology.RAW)),
    (GATEWAY, "bind a queue", lambda client: client.channel.queue_bind(topology.PROCESSED, topology.EXCHANGE, "#")),
    (OPERATOR, "read signals", read(topology.RAW)),
    (OPERATOR, "read statuses", read(topology.STATUS)),
    (OPERATOR, "read processed signals", read(topology.PROCESSED)),
    (OPERATOR, "publish processed signals", publish(topology.EXCHANGE, topology.PROCESSED)),
    (OPERATOR, "publish dead letters", publish(topology.DEAD_EXCHANGE, topology.DEAD)),
    (OPERATOR, "make a queue", declare("mine")),
    (READER, "read signals", read(topology.RAW)),
    (READER, "read dead letters", read(topology.DEAD)),
    (READER, "publish processed signals", publish(topology.EXCHANGE, topology.PROCESSED)),
    (READER, "make a queue", declare("mine")),
    (OPERATOR, "delete a queue", lambda client: client.channel.queue_delete(topology.DEAD)),
]


@pytest.mark.usefixtures("door")
@pytest.mark.parametrize(("user", "act"), [pytest.param(u, act, id=f"{u}: {what}") for u, what, act in MUST_NOT])
def test_a_user_is_refused_what_it_must_not_do(rabbitmq: Settings, user: str, act: Act) -> None:
    client = Gateway(rabbitmq, user)
    try:
        with pytest.raises(ChannelClosedByBroker) as refused:
            act(client)
    finally:
        client.close()

    assert refused.value.reply_code == 403


@pytest.mark.usefixtures("door")
def test_a_gateway_sends_signals_and_statuses_and_receives_errors(rabbitmq: Settings, gateway: Gateway) -> None:
    client = Gateway(rabbitmq, GATEWAY)
    try:
        mine = client.channel.queue_declare("", exclusive=True).method.queue
        client.send_signed()
        assert gateway.get(topology.PROCESSED)
        client.send(b"no JSON", {}, queue=topology.STATUS, reply_to=mine)
        assert json.loads(client.get(mine)[1])["code"] == "MALFORMED_JSON"
    finally:
        client.close()


def test_service_and_operator_work_with_their_own_rights(door: Door, rabbitmq: Settings, gateway: Gateway) -> None:
    """The service of these tests is the user `door` with exactly its rights, as in every other test."""
    gateway.send_signed()
    assert gateway.get(topology.PROCESSED)
    assert door.settings.signals_amqp_url.get_secret_value() == ""
    gateway.send(body_of(), signed(body_of(), secret="forged"))
    client = Gateway(rabbitmq, OPERATOR)
    try:
        assert client.get(topology.DEAD)
        client.send_signed()
        assert gateway.get(topology.PROCESSED)
    finally:
        client.close()


def test_the_documented_rights_match_the_sandbox(rabbitmq: Settings) -> None:
    written = json.loads((ROOT / "infra" / "rabbitmq" / "permissions.json").read_text())
    given = json.loads((rabbitmq.home / "rabbitmq" / "definitions.json").read_text())

    assert written == rights.permissions()
    assert [of for of in given["permissions"] if of["user"] != USER] == written["permissions"]
    assert given["topic_permissions"] == written["topic_permissions"]
    assert {user["name"] for user in given["users"]} == {USER, *rights.RIGHTS}
    assert {user["tags"] for user in given["users"]} == {""}
