"""A session that has ended: its connection's later deliveries are ignored."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from pamqp.commands import Basic

from manifold.contracts.signals import topology
from manifold.contracts.signals.codes import Code, ErrorReport, Refusal
from manifold.contracts.signals.rights import DOOR
from manifold.messaging.amqp import connection_url
from manifold.settings import Settings
from manifold.signals._amqp_frames import Frames, FrameStream
from manifold.signals._outgoing import dead_letter, retry
from manifold.signals._received import Received
from manifold.signals._session import Session, open_session
from tests.manifold.signals.gateway import Door, Gateway
from tests.manifold.signals.test_alarm import ctl
from tests.manifold.signals.test_amqp_frames import delivered
from tests.support.servers import wait_until


def channel(number: int) -> Any:
    """The part of the library's channels that a session uses as long as nothing is sent."""
    loop = asyncio.get_running_loop()

    async def consumed(*_: Any, **__: Any) -> None:
        return None

    return SimpleNamespace(
        number=number, closing=loop.create_future(), on_consumer_cancel_callbacks=set(), basic_consume=consumed, is_closed=False
    )


def test_deliveries_after_the_session_ends_are_ignored() -> None:
    """The next session would acknowledge it by a tag that belongs to another message there, and count its bytes forever."""

    async def scenario() -> list[int]:
        taken, wire = list[Received](), FrameStream()
        session = Session(channel(1), channel(2), wire, FrameStream())
        await session.consume(topology.RAW, taken.append)
        frames = Frames(asyncio.StreamReader(), wire, asyncio.get_running_loop())
        frames.data_received(delivered(1, b"of the stay"))
        session.end("its work has ended")
        session.leave()
        frames.data_received(delivered(2, b"while it is closed"))
        return [one.tag for one in taken]

    assert asyncio.run(scenario()) == [1]


def test_a_consumer_cancelled_by_the_server_ends_the_session() -> None:
    async def scenario() -> str:
        taking = channel(1)
        session = Session(taking, channel(2), FrameStream(), FrameStream())
        for tell in taking.on_consumer_cancel_callbacks:
            tell(Basic.Cancel("door-0"))
        return session.lost.result() if session.lost.done() else ""

    assert "cancelled a consumer" in asyncio.run(scenario())


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
    about = Basic.Properties(reply_to="amq.rabbitmq.reply-to")
    message = Received(queue=topology.RAW, body=b"{}", headers={}, at=datetime.now(UTC), properties=about)
    report = ErrorReport.of(Refusal(Code.SCHEMA_ERROR, "no", "other"), at=message.at, correlation_id=None, retry_count=0)

    async def scenario() -> list[Exception | None]:
        async with open_session(connection_url(rabbitmq, as_user=DOOR), own_door.settings) as session:
            return await session.publish([retry(message, 1000), dead_letter(message, report)])

    assert asyncio.run(scenario()) == [None, None]
