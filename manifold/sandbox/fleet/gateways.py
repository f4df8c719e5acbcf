"""A simulated fleet of gateways, which publishes signed signals to RabbitMQ in bursts, with confirms.

    python -m manifold.sandbox.fleet.gateways --devices 20 --messages 500 --seed 1

`SignalMix` generates the messages, some of which are repeated, forged, late or malformed; `publish` sends them.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import aio_pika
import typer
from rich.console import Console
from rich.table import Table

from manifold.contracts.errors import ManifoldError, Permanent, message_of
from manifold.contracts.signals import topology
from manifold.contracts.signals.rights import GATEWAY
from manifold.messaging.amqp import connection_url, hmac_secrets
from manifold.sandbox.fleet._signal_mix import CODES, DUPLICATES, MIX, ONLY_GOOD, REFERRING, Kind, SignalMessage, SignalMix
from manifold.settings import Settings, load_settings

__all__ = ["CODES", "DUPLICATES", "MIX", "ONLY_GOOD", "REFERRING", "Kind", "SignalMessage", "SignalMix", "publish"]

MAX_BURST = 40  # messages
console = Console()


def bursts(messages: Iterable[SignalMessage], seed: int) -> Iterator[list[SignalMessage]]:
    """Split the messages into bursts of random sizes, mostly small.

    A message that refers to an earlier one starts a new burst: the earlier burst is confirmed by then, so RabbitMQ has the
    messages in this order.
    """
    rng = random.Random(f"bursts of {seed}")
    burst: list[SignalMessage] = []
    size = 1
    for message in messages:
        if burst and (len(burst) >= size or message.kind in REFERRING):
            yield burst
            burst = []
            size = round(MAX_BURST ** rng.random())  # from 1 to MAX_BURST, each order of magnitude as likely as any other
        burst.append(message)
    if burst:
        yield burst


async def publish(
    settings: Settings, messages: Iterable[SignalMessage], *, seed: int = 0, rate: float | None = None, queue: str = topology.RAW
) -> int:
    """Publish the messages in bursts, and return their number once RabbitMQ has confirmed all of them.

    `rate` is the mean number of messages per second; None: as fast as RabbitMQ confirms them. The AMQP door may process the
    messages later.

    Raises:
        AMQPError, OSError, TimeoutError: RabbitMQ is unavailable, refuses, or has no such queue.
    """
    sent = 0
    began = time.monotonic()
    connection = await aio_pika.connect(connection_url(settings, as_user=GATEWAY), timeout=settings.signals_connect_ms / 1000)
    async with connection, connection.channel(publisher_confirms=True, on_return_raises=True) as channel:
        exchange = await channel.get_exchange(topology.EXCHANGE, ensure=True)

        async def send(message: SignalMessage) -> None:
            await exchange.publish(_amqp_message(message), queue, mandatory=True)

        for burst in bursts(messages, seed):
            if rate is not None:
                due = began + sent / rate
                await asyncio.sleep(due - time.monotonic())
            await asyncio.gather(*map(send, burst))
            sent += len(burst)
    return sent


def _amqp_message(message: SignalMessage) -> aio_pika.Message:
    return aio_pika.Message(
        message.body,
        headers=dict[str, Any](message.headers),
        content_type="application/json",
        content_encoding=message.content_encoding,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )


def main(
    devices: Annotated[int, typer.Option(min=1, help="how many")] = 20,
    messages: Annotated[int, typer.Option(min=1, help="of all devices together")] = 500,
    seed: Annotated[int, typer.Option(help="the same seed gives the same mix")] = 1,
    rate: Annotated[float, typer.Option(min=0, help="messages a second; 0: as fast as RabbitMQ confirms")] = 0.0,
    only_good: Annotated[bool, typer.Option("--only-good", help="nothing repeated, forged or malformed")] = False,
) -> None:
    """Simulate gateways of devices: they publish signals, some of them repeated, forged, late or malformed."""
    from aio_pika.exceptions import AMQPError

    try:
        settings = load_settings()
        secrets = hmac_secrets(settings)
        if not secrets:
            raise Permanent("there is no secret to sign with; run make up first, or set MANIFOLD_SIGNALS_HMAC_SECRET")
        mix = SignalMix(seed, devices, secrets[0], shares=ONLY_GOOD if only_good else MIX)
        generated = list(mix.messages(messages, datetime.now(UTC)))
        began = time.monotonic()
        asyncio.run(publish(settings, generated, seed=seed, rate=rate or None))
    except (ManifoldError, AMQPError, OSError, TimeoutError) as exc:
        console.print(f"gateways: {message_of(exc)}", style="red", highlight=False)
        raise typer.Exit(1) from exc
    _print_summary(generated, time.monotonic() - began)


def _print_summary(messages: Sequence[SignalMessage], seconds: float) -> None:
    table = Table(title=f"{len(messages)} messages in {seconds:.1f} s", title_justify="left", box=None, pad_edge=False)
    for column in ("kind", "sent", "the door is to say"):
        table.add_column(column)
    for kind, count in Counter(message.kind for message in messages).most_common():
        expected = CODES.get(kind, "duplicate" if kind in DUPLICATES else "processed")
        table.add_row(kind, str(count), expected)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
