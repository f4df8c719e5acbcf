"""Declares the topology of the contract, and partitions of the raw queue if the settings ask for them."""

import re
from typing import Any

import structlog
from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import AMQPError, ChannelNotFoundEntity, ChannelPreconditionFailed

from manifold.contracts.errors import Permanent
from manifold.contracts.signals import topology

log = structlog.get_logger(__name__)

PLUGIN = "rabbitmq_consistent_hash_exchange"
# RabbitMQ's error for an object that exists with other arguments: the wanted value and the current one.
_OTHER = re.compile(
    r"inequivalent arg '(?P<argument>[^']*)' for (?P<what>(?:queue|exchange) '[^']*') in vhost '[^']*': "
    r"received (?P<ours>.*) but current is (?P<theirs>.*)"
)


async def repair_topology(connection: AbstractConnection, *, partitions: int = 0) -> None:
    """Log missing exchanges, then declare and bind everything. Keeps all bindings: another door's partition count may need them.

    Raises:
        Permanent: as for `assert_topology`.
    """
    missing = [
        name for name in (*topology.EXCHANGES, *[topology.PARTITIONS] * bool(partitions)) if await _is_missing(connection, name)
    ]
    for name in missing:
        log.warning("exchange missing", exchange=name)
    await assert_topology(connection, partitions=partitions, unbinds=False)
    if missing:
        log.info("topology declared again", exchanges=missing)


async def _is_missing(connection: AbstractConnection, exchange: str) -> bool:
    """Whether the exchange does not exist. Uses its own channel, because a failed passive declare closes it."""
    made = await connection.channel(publisher_confirms=False)
    channel = await made.get_underlay_channel()
    try:
        await channel.exchange_declare(exchange, passive=True)
    except ChannelNotFoundEntity:
        return True
    await made.close()
    return False


async def assert_topology(connection: AbstractConnection, *, partitions: int = 0, unbinds: bool = True) -> None:
    """Declare the contract's topology and `partitions` partitions; `unbinds`: also remove bindings of other settings.

    Raises:
        Permanent: an object exists with other arguments (the message names the argument and both values), or the server lacks the
            plug-in for partitions.
    """
    made = await connection.channel(publisher_confirms=False)
    channel = await made.get_underlay_channel()
    try:
        for name, kind in topology.EXCHANGES.items():
            await channel.exchange_declare(name, exchange_type=kind, durable=True)
        for queue in topology.QUEUES:
            await channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
            if queue.name != topology.RAW:
                await channel.queue_bind(queue.name, queue.exchange, queue.key)
        if unbinds:
            await channel.queue_unbind(topology.RETRY, topology.EXCHANGE, topology.RETRY)  # left by releases before 0.1.0
        if partitions:
            await _declare_partitions(channel, partitions, unbinds=unbinds)
        else:
            await channel.queue_bind(topology.RAW, topology.EXCHANGE, topology.RAW)
            if unbinds:
                await _without_partitions(connection)
    except ChannelPreconditionFailed as exc:
        raise Permanent(
            f"the RabbitMQ topology conflicts: {_text(exc)}; delete what is named there, once it is empty, or let the door use a "
            "virtual host of its own (MANIFOLD_SIGNALS_AMQP_URL)"
        ) from exc
    await made.close()


async def _declare_partitions(channel: Any, count: int, *, unbinds: bool) -> None:
    """Route signals to the partitions instead of the raw queue. Meanwhile some reach both; the door deduplicates them."""
    by = dict(topology.PARTITIONS_BY)
    try:
        await channel.exchange_declare(topology.PARTITIONS, exchange_type=topology.PARTITIONS_TYPE, durable=True, arguments=by)
    except AMQPError as exc:
        if "unknown exchange type" in str(exc):
            raise Permanent(
                f"RabbitMQ has no plug-in for partitions; run: rabbitmq-plugins enable {PLUGIN}, or set signals_partitions=0"
            ) from exc
        raise
    for queue in topology.partitions(count):
        await channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
        await channel.queue_bind(queue.name, queue.exchange, queue.key)
    await channel.exchange_bind(topology.PARTITIONS, topology.EXCHANGE, topology.RAW)
    if unbinds:
        await channel.queue_unbind(topology.RAW, topology.EXCHANGE, topology.RAW)


async def _without_partitions(connection: AbstractConnection) -> None:
    """Unbind earlier partitions. Uses its own channel, because it closes if there are none."""
    made = await connection.channel(publisher_confirms=False)
    channel = await made.get_underlay_channel()
    try:
        await channel.exchange_declare(topology.PARTITIONS, exchange_type=topology.PARTITIONS_TYPE, passive=True)
        await channel.exchange_unbind(topology.PARTITIONS, topology.EXCHANGE, topology.RAW)
    except ChannelNotFoundEntity:
        return
    await made.close()


def _text(exc: BaseException) -> str:
    """Return the conflicting object and argument with both values, or else the server's text without its code."""
    said = str(exc.args[0]) if exc.args else type(exc).__name__
    if (other := _OTHER.search(said)) is None:
        return said.removeprefix("PRECONDITION_FAILED - ")
    ours, theirs = (re.sub(r"^the value | of type '\w+'$", "", other[name]) for name in ("ours", "theirs"))
    return f"{other['what']} has {other['argument']} = {theirs}, and the door needs {ours}"
