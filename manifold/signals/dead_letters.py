"""Dead letters for an operator: list them, and replay them after the cause is fixed.

Listing takes the messages without acknowledging them, and RabbitMQ requeues them at the end of the block. Until then, other
clients cannot see them.

Signatures expire. If a message is refused only because it is too old, and an accepted secret signed it, replay signs it again
with the current time and a new nonce. The door cannot distinguish such a message from a captured and resent message, so an
operator must vouch for it. An operator with the secret could also send any other message, so this adds no risk.
"""

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from manifold.contracts.signals import topology
from manifold.contracts.signals.codes import Refusal
from manifold.contracts.signals.rights import OPERATOR
from manifold.contracts.signals.signing import signed_headers
from manifold.messaging.amqp import connection_url, hmac_secrets
from manifold.settings import Settings
from manifold.signals._checks import Checks
from manifold.signals._received import ERROR, QUEUE, ROUTING_HEADERS, Accepted, Judged, Received
from manifold.signals._stated_identity import readable, stated_identity_of
from manifold.signals.compat import accept_any_properties

ACCEPTED = "accepted"
EXPIRED = "EXPIRED"  # code of a message that expired in its queue and was not refused by a door


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter."""

    place: int  # in the order of the queue, from 1, the oldest letter
    error: dict[str, Any]  # the door's error report; empty if the letter has none
    body: bytes
    message: AbstractIncomingMessage

    @property
    def code(self) -> str:
        """The code of the refusal, or `EXPIRED`."""
        return str(self.error.get("code", EXPIRED))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for the console."""
        stated = stated_identity_of(_received(self))
        return {
            "place": self.place,
            "code": self.code,
            "device_id": stated.devices[0] if stated.devices else None,
            "correlation_id": stated.correlation_id,
            "error": self.error,
            "bytes": len(self.body),
            "headers": self._headers(),
        }

    def _headers(self) -> dict[str, str]:
        """Return the headers except the error report, as text."""
        return {name: str(value) for name, value in self.message.headers.items() if name != ERROR}


class DeadLetters:
    """Access to the dead letters, within the block of `open_dead_letters`."""

    def __init__(self, channel: Any, checks: Checks) -> None:
        self._channel, self._checks = channel, checks

    async def take_oldest(self, count: int) -> list[DeadLetter]:
        """Take the oldest letters that were not taken yet: `count`, or fewer if the queue has no more.

        Their places count from 1 in each call. Letters that are neither erased nor replayed return to the queue at the end of the
        block.
        """
        queue = await self._channel.get_queue(topology.DEAD, ensure=True)
        letters = list[DeadLetter]()
        while len(letters) < count:
            message = await queue.get(fail=False, no_ack=False)
            if message is None:
                break
            letters.append(DeadLetter(len(letters) + 1, _error_of(message), message.body, message))
        return letters

    def verdict_now(self, letter: DeadLetter) -> str:
        """Return how the checks that need no server would judge the letter now: a refusal code, or `accepted`."""
        judged = self._judge(letter, self._checks)
        return judged.code.value if isinstance(judged, Refusal) else ACCEPTED

    def is_only_old(self, letter: DeadLetter) -> bool:
        """Whether the door would refuse the letter now, and only because its signed timestamp is too old."""
        return self.verdict_now(letter) != ACCEPTED and isinstance(self._judge_without_age(letter), Accepted)

    async def erase(self, device_id: str, names_device: Callable[[bytes | str], bool]) -> int:
        """Delete the letters of a device, holding one letter in memory at a time; return the number of deleted letters.

        A letter belongs to the device if it states the device id, or if `names_device` is true for a header, the body, or the
        inflated body.
        """
        deleted = 0
        while taken := await self.take_oldest(1):  # each time the next letter: RabbitMQ requeues taken letters only at the end
            [letter] = taken
            received = _received(letter)
            headers = (str(value) for value in received.headers.values())
            texts: list[bytes | str] = [*headers, received.body, readable(received)]
            if device_id in stated_identity_of(received).devices or any(names_device(text) for text in texts):
                await letter.message.ack()
                deleted += 1
        return deleted

    async def replay(self, letter: DeadLetter) -> None:
        """Publish a letter to its original queue, signed again if it is refused only for its age; then remove the letter."""
        original, headers = letter.message, _sender_headers(letter)
        judged = self._judge_without_age(letter)
        is_refused_now = self.verdict_now(letter) != ACCEPTED
        if is_refused_now and isinstance(judged, Accepted):
            now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            signed_fields = {"device_id": judged.parsed.device_id, "nonce": os.urandom(16).hex(), "timestamp": now}
            headers |= signed_headers(letter.body, self._checks.secrets[0], **signed_fields)
        replayed = aio_pika.Message(
            letter.body,
            headers=headers,
            content_type=original.content_type,
            content_encoding=original.content_encoding,
            correlation_id=original.correlation_id,
            reply_to=original.reply_to,
            message_id=original.message_id,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        exchange = await self._channel.get_exchange(topology.EXCHANGE, ensure=False)
        await exchange.publish(replayed, _queue_of(letter), mandatory=True)
        await original.ack()

    def _judge_without_age(self, letter: DeadLetter) -> Judged:
        """Judge the letter by all checks except the age of its timestamp."""
        return self._judge(letter, replace(self._checks, tolerance_s=math.inf, nonce_s=math.inf))

    def _judge(self, letter: DeadLetter, checks: Checks) -> Judged:
        received = _received(letter)
        return checks.judge(received, received.at)


@asynccontextmanager
async def open_dead_letters(settings: Settings) -> AsyncIterator[DeadLetters]:
    """Open the dead letters of the configured RabbitMQ.

    Raises:
        AMQPError, OSError, TimeoutError: RabbitMQ is unavailable, or has no such queue.
    """
    accept_any_properties()
    async with asyncio.timeout(settings.signals_connect_ms / 1000):
        connection = await aio_pika.connect(connection_url(settings, as_user=OPERATOR))
    async with connection, connection.channel(publisher_confirms=True, on_return_raises=True) as channel:
        yield DeadLetters(channel, Checks.of(settings, hmac_secrets(settings)))


def _received(letter: DeadLetter) -> Received:
    """Build the message as a door would receive it now, without routing and history."""
    message = letter.message
    return Received(
        _queue_of(letter),
        letter.body,
        _sender_headers(letter),
        datetime.now(UTC),
        content_type=message.content_type,
        content_encoding=message.content_encoding,
    )


def _sender_headers(letter: DeadLetter) -> dict[str, Any]:
    """Return the headers that the sender wrote, without the headers about routing and history."""
    return {name: value for name, value in letter.message.headers.items() if name not in ROUTING_HEADERS}


def _queue_of(letter: DeadLetter) -> str:
    """Return the queue from which the letter came."""
    return topology.STATUS if letter.message.headers.get(QUEUE) == topology.STATUS else topology.RAW


def _error_of(message: AbstractIncomingMessage) -> dict[str, Any]:
    """Return the error report of the door; empty if the header is missing or is not a JSON object."""
    try:
        error = json.loads(str(message.headers.get(ERROR, "{}")))
    except ValueError:
        return {}
    return error if isinstance(error, dict) else {}
