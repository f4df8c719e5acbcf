"""A session with RabbitMQ: its deliveries, acknowledgements and publishes, and its end."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from aio_pika import Message

from manifold.contracts.signals import topology
from manifold.contracts.signals.codes import Code, ErrorReport, Refusal
from manifold.contracts.signals.rights import DOOR
from manifold.messaging.amqp import connection_url
from manifold.settings import Settings
from manifold.signals._outgoing import Outgoing, dead_letter, retry
from manifold.signals._received import Received
from manifold.signals._session import SESSION_ERRORS, open_session
from tests.manifold.signals.gateway import Door, Gateway
from tests.support.rabbitmq import ctl
from tests.support.servers import wait_until


@pytest.mark.slow
def test_deliveries_after_the_session_ends_are_ignored(own_door: Door, rabbitmq: Settings, gateway: Gateway) -> None:
    """The next session would acknowledge it by a tag that belongs to another message there, and count its bytes forever."""

    async def scenario() -> list[bytes]:
        taken = list[Received]()
        async with open_session(connection_url(rabbitmq, as_user=DOOR), own_door.settings) as session:
            await session.consume(topology.RAW, taken.append)
            gateway.send(b"of the stay", {})
            await until(lambda: len(taken) == 1)
            session.end("its work has ended")
            session.ignore_deliveries()
            gateway.send(b"while it is closed", {})
            await until(lambda: gateway.count(topology.RAW) == 0)  # it is on its way to the session
            while await session.count(topology.RAW):  # whose reply comes after it
                pass
        return [one.body for one in taken]

    assert asyncio.run(scenario()) == [b"of the stay"]
    wait_until(lambda: gateway.count(topology.RAW) == 2)  # redelivered to whoever comes next


@pytest.mark.slow
def test_messages_are_delivered_in_order_and_acknowledged_together(own_door: Door, rabbitmq: Settings, gateway: Gateway) -> None:
    async def scenario() -> list[bytes]:
        taken = list[Received]()
        async with open_session(connection_url(rabbitmq, as_user=DOOR), own_door.settings) as session:
            await session.consume(topology.RAW, taken.append)
            for number in range(60):
                gateway.send(str(number).encode(), {})
            await until(lambda: len(taken) == own_door.settings.signals_prefetch)
            assert gateway.count(topology.RAW) == 60 - own_door.settings.signals_prefetch
            await session.ack_up_to(taken[-2])
            await until(lambda: len(taken) == 60)
            await session.ack_each(taken[50:])
            await session.count(topology.RAW)  # on the same channel, so the acknowledgements are read before
        return [one.body for one in taken]

    assert asyncio.run(scenario()) == [str(number).encode() for number in range(60)]
    assert gateway.get(topology.RAW)[1] == b"49"


@pytest.mark.slow
def test_a_queue_recreated_before_the_check_is_consumed_again(own_door: Door, gateway: Gateway) -> None:
    """As by another service that noticed the loss first."""
    own_door.start()
    gateway.purge()
    (raw,) = (queue for queue in topology.QUEUES if queue.name == topology.RAW)
    gateway.channel.queue_delete(raw.name)
    gateway.channel.queue_declare(raw.name, durable=True, arguments=dict(raw.arguments))
    gateway.channel.queue_bind(raw.name, topology.EXCHANGE, topology.RAW)
    gateway.send_signed()
    wait_until(lambda: gateway.count(topology.PROCESSED) >= 1)


@pytest.mark.slow
def test_connections_have_the_configured_heartbeat(own_door: Door, rabbitmq: Settings) -> None:
    own_door.with_settings(signals_heartbeat_seconds=7).start()
    lines = ctl(rabbitmq, "-q", "list_connections", "user", "timeout").splitlines()
    assert [line.split()[1] for line in lines if line.split()[:1] == ["door"]].count("7") == 2


@pytest.mark.slow
def test_a_direct_reply_to_request_of_another_client_ends_no_connection(own_door: Door, rabbitmq: Settings) -> None:
    """AMQP 1.0 clients send such messages; a connection error would redeliver it forever."""
    about: Any = SimpleNamespace(reply_to="amq.rabbitmq.reply-to")
    message = Received(queue=topology.RAW, body=b"{}", headers={}, at=datetime.now(UTC), message=about)
    report = ErrorReport.of(Refusal(Code.SCHEMA_ERROR, "no", "other"), at=message.at, correlation_id=None, retry_count=0)

    async def scenario() -> list[Exception | None]:
        async with open_session(connection_url(rabbitmq, as_user=DOOR), own_door.settings) as session:
            return await session.publish([retry(message, 1000), dead_letter(message, report)])

    assert asyncio.run(scenario()) == [None, None]


@pytest.mark.slow
def test_unroutable_messages_of_the_same_id_are_all_reported(own_door: Door, rabbitmq: Settings, gateway: Gateway) -> None:
    """Clients choose the ids of their messages. RabbitMQ confirms what it returns, so a lost return would be a lost message."""

    async def scenario() -> list[list[Exception | None]]:
        unroutable = Outgoing(topology.DEAD_EXCHANGE, "no-queue", Message(b"{}", message_id="chosen"))
        async with open_session(connection_url(rabbitmq, as_user=DOOR), own_door.settings) as session:
            return await asyncio.gather(*(session.publish([unroutable]) for _ in range(3)))

    groups = asyncio.run(scenario())
    assert ["unroutable" in str(why) for group in groups for why in group] == [True] * 3


@pytest.mark.slow
def test_every_call_on_a_lost_connection_raises_a_session_error(own_door: Door, rabbitmq: Settings, gateway: Gateway) -> None:
    """Any other error ends the service."""
    one = Outgoing(topology.EXCHANGE, topology.PROCESSED, Message(b"{}"))
    gateway.send(b"delivered", {})

    async def scenario() -> list[Any]:
        taken = list[Received]()
        async with open_session(connection_url(rabbitmq, as_user=DOOR), own_door.settings) as session:
            await session.consume(topology.RAW, taken.append)
            await until(lambda: len(taken) == 1)
            await asyncio.to_thread(ctl, rabbitmq, "close_all_connections", "the operator has closed them")
            await session.lost
            calls: list[Awaitable[Any]] = [
                session.repair_topology(),
                session.count(topology.RAW),
                session.consume(topology.STATUS, taken.append),
                session.replace_consumer("door-0"),
                session.ack_up_to(taken[0]),
                session.publish([one]),
            ]
            found: list[Any] = [(await asyncio.gather(call, return_exceptions=True))[0] for call in calls]
            return [*found[:-1], *found[-1]]

    assert [why for why in asyncio.run(scenario()) if not isinstance(why, SESSION_ERRORS)] == []


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition while the event loop goes on.

    Raises:
        TimeoutError: it does not come true.
    """
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110  # polled from the server
            await asyncio.sleep(0.02)
