"""Dead letters, for an operator: look at them, and send them to the raw queue again, once their cause is cured.

Looking takes the messages and gives them back when the block ends: meanwhile nobody else sees them.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from adapters.amqp import connection_url, hmac_secrets
from contracts.settings import Settings
from contracts.signals import topology
from contracts.signals.codes import Refusal
from signals._checks import Checks
from signals._decoding import read_any_properties
from signals._received import ERROR, RETRY_COUNT, Received

OF_THE_WAY = (ERROR, RETRY_COUNT, "x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason")
EXPIRED = "EXPIRED"  # no door has seen it


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter. `place` counts from 1, the oldest first."""

    place: int
    error: dict[str, Any]
    body: bytes
    message: AbstractIncomingMessage

    @property
    def code(self) -> str:
        """Why it lies here."""
        return str(self.error.get("code", EXPIRED))

    def to_json(self) -> dict[str, Any]:
        """What the console prints of it."""
        return {"place": self.place, "code": self.code, "error": self.error, "bytes": len(self.body), "headers": self._headers()}

    def _headers(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.message.headers.items() if name != ERROR}


class DeadLetters:
    """The dead letters while the block of `open_dead_letters` runs."""

    def __init__(self, channel: Any, checks: Checks) -> None:
        self._channel, self._checks = channel, checks

    async def oldest(self, count: int) -> list[DeadLetter]:
        """So many of them."""
        queue, found = await self._channel.get_queue(topology.DEAD, ensure=True), list[DeadLetter]()
        while len(found) < count and (message := await queue.get(fail=False, no_ack=False)) is not None:
            found.append(DeadLetter(len(found) + 1, _error_of(message), message.body, message))
        return found

    def would_be(self, letter: DeadLetter) -> str:
        """What the checks that need no server would say now: a code, or `accepted`."""
        message = letter.message
        headers = {name: value for name, value in message.headers.items() if name not in OF_THE_WAY}
        received = Received(
            topology.RAW,
            letter.body,
            headers,
            datetime.now(UTC),
            content_type=message.content_type,
            content_encoding=message.content_encoding,
        )
        judged = self._checks.judge(received, received.at)
        return judged.code.value if isinstance(judged, Refusal) else "accepted"

    async def replay(self, letter: DeadLetter) -> None:
        """Send it to the raw queue again, and take it from here once it is there."""
        old = letter.message
        again = aio_pika.Message(
            letter.body,
            headers={name: value for name, value in old.headers.items() if name not in OF_THE_WAY},
            content_type=old.content_type,
            content_encoding=old.content_encoding,
            correlation_id=old.correlation_id,
            reply_to=old.reply_to,
            message_id=old.message_id,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        exchange = await self._channel.get_exchange(topology.EXCHANGE, ensure=False)
        await exchange.publish(again, topology.RAW, mandatory=True)
        await old.ack()


@asynccontextmanager
async def open_dead_letters(settings: Settings) -> AsyncIterator[DeadLetters]:
    """The dead letters of the RabbitMQ of the settings.

    Raises:
        AMQPError, OSError, TimeoutError: RabbitMQ is away, or has no such queue.
    """
    read_any_properties()
    async with asyncio.timeout(settings.signals_connect_ms / 1000):
        connection = await aio_pika.connect(connection_url(settings))
    async with connection, connection.channel(publisher_confirms=True, on_return_raises=True) as channel:
        yield DeadLetters(channel, Checks.of(settings, hmac_secrets(settings)))


def _error_of(message: AbstractIncomingMessage) -> dict[str, Any]:
    try:
        error = json.loads(str(message.headers.get(ERROR, "{}")))
    except ValueError:
        return {}
    return error if isinstance(error, dict) else {}
