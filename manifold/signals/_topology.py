"""Declares the topology of the contract and, if the settings configure any, the partitions of the raw queue."""

import re
from typing import Any

import structlog
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import AMQPError, ChannelNotFoundEntity, ChannelPreconditionFailed

from manifold.contracts.errors import Permanent
from manifold.contracts.signals import topology

log = structlog.get_logger(__name__)

PLUGIN = "rabbitmq_consistent_hash_exchange"
# RabbitMQ's error for an object that exists with other arguments: the wanted value and the current one.
_CONFLICT = re.compile(
    r"inequivalent arg '(?P<argument>[^']*)' for (?P<object>(?:queue|exchange) '[^']*') in vhost '[^']*': "
    r"received (?P<wanted>.*) but current is (?P<current>.*)"
)


async def repair_topology(connection: AbstractConnection, *, partitions: int = 0) -> None:
    """Declare and bind the whole topology, and log which exchanges were missing.

    Existing bindings are kept: a door with another number of partitions may need them.

    Raises:
        Permanent: as for `assert_topology`.
    """
    exchanges = [*topology.EXCHANGES, *([topology.PARTITIONS] if partitions else [])]
    missing = [name for name in exchanges if await _is_missing(connection, name)]
    for name in missing:
        log.warning("exchange missing; declaring it again", exchange=name)
    await assert_topology(connection, partitions=partitions, unbinds=False)
    if missing:
        log.info("topology declared again", exchanges=missing)


async def _is_missing(connection: AbstractConnection, exchange: str) -> bool:
    """Whether the exchange does not exist. Uses a channel of its own, because the check of a missing exchange closes it."""
    channel = await connection.channel(publisher_confirms=False)
    try:
        await channel.get_exchange(exchange, ensure=True)
    except ChannelNotFoundEntity:
        return True
    await channel.close()
    return False


async def assert_topology(connection: AbstractConnection, *, partitions: int = 0, unbinds: bool = True) -> None:
    """Declare and bind the contract's topology and `partitions` partitions.

    With `unbinds`, also remove the bindings that earlier releases, or doors with other settings, have left.

    Raises:
        Permanent: an object exists with other arguments (the message names the argument and both values), or the server lacks the
            plug-in for partitions.
    """
    channel = await connection.channel(publisher_confirms=False)
    try:
        for name, kind in topology.EXCHANGES.items():
            await channel.declare_exchange(name, kind, durable=True)
        for queue in topology.QUEUES:
            declared = await channel.declare_queue(queue.name, durable=True, arguments=dict(queue.arguments))
            if queue.name != topology.RAW:  # which is bound below, unless there are partitions
                await declared.bind(queue.exchange, queue.key)
            if unbinds and queue.name == topology.RETRY:
                await declared.unbind(topology.EXCHANGE, topology.RETRY)  # left by releases before 0.1.0
        raw = await channel.get_queue(topology.RAW, ensure=False)
        if partitions:
            await _declare_partitions(channel, partitions)
            if unbinds:
                await raw.unbind(topology.EXCHANGE, topology.RAW)
        else:
            await raw.bind(topology.EXCHANGE, topology.RAW)
            if unbinds:
                await _unbind_partitions(connection)
    except ChannelPreconditionFailed as exc:
        raise Permanent(
            f"the RabbitMQ topology conflicts: {_conflict_text(exc)}; delete what is named there, once it is empty, or let the "
            "door use a virtual host of its own (MANIFOLD_SIGNALS_AMQP_URL)"
        ) from exc
    await channel.close()


async def _declare_partitions(channel: AbstractChannel, count: int) -> None:
    """Declare the partitions and route signals to them.

    Until the caller unbinds the raw queue, a signal reaches the raw queue and a partition; the door deduplicates it.
    """
    arguments: dict[str, Any] = dict(topology.PARTITIONS_BY)
    try:
        exchange = await channel.declare_exchange(
            topology.PARTITIONS, topology.PARTITIONS_TYPE, durable=True, arguments=arguments
        )
    except AMQPError as exc:
        if "unknown exchange type" in str(exc):
            raise Permanent(
                f"RabbitMQ has no plug-in for partitions; run: rabbitmq-plugins enable {PLUGIN}, or set signals_partitions=0"
            ) from exc
        raise
    for queue in topology.partitions(count):
        declared = await channel.declare_queue(queue.name, durable=True, arguments=dict(queue.arguments))
        await declared.bind(queue.exchange, queue.key)
    await exchange.bind(topology.EXCHANGE, topology.RAW)


async def _unbind_partitions(connection: AbstractConnection) -> None:
    """Route no more signals to partitions, if an earlier setting declared any.

    Uses a separate channel, because RabbitMQ closes the channel if the partitions' exchange does not exist.
    """
    channel = await connection.channel(publisher_confirms=False)
    try:
        exchange = await channel.get_exchange(topology.PARTITIONS, ensure=True)
    except ChannelNotFoundEntity:
        return
    await exchange.unbind(topology.EXCHANGE, topology.RAW)
    await channel.close()


def _conflict_text(exc: BaseException) -> str:
    """Return the conflicting object and argument with both values; if the error does not name them, its text without the code."""
    error = str(exc.args[0]) if exc.args else type(exc).__name__
    conflict = _CONFLICT.search(error)
    if conflict is None:
        return error.removeprefix("PRECONDITION_FAILED - ")
    wanted, current = _bare_value(conflict["wanted"]), _bare_value(conflict["current"])
    return f"{conflict['object']} has {conflict['argument']} = {current}, and the door needs {wanted}"


def _bare_value(text: str) -> str:
    """Return the value in a text of RabbitMQ, such as `'60000'` of "the value '60000' of type 'signedint'"."""
    return re.sub(r"^the value | of type '\w+'$", "", text)
