"""A delivered message, and the results of its checks."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aio_pika.abc import AbstractIncomingMessage

from manifold.contracts.signals import topology
from manifold.contracts.signals.codes import Refusal
from manifold.contracts.signals.messages import DeviceStatus, RawSignal

RETRY_COUNT, ERROR, QUEUE = "x-retry-count", "x-error", "x-queue"  # headers written by the door
LEFT_OUT = "x-left-out"  # replaces headers that cannot be decoded or encoded
DEATH = "x-death"  # RabbitMQ's record of the queues in which a message expired; clients can forge it
# Headers by which a sender selects additional routes. Copies omit them: the door may publish to queues that the sender may not.
ROUTES = ("CC", "BCC")
# Headers about the routing and history of a message, not its content.
ROUTING_HEADERS = (
    ERROR,
    RETRY_COUNT,
    QUEUE,
    DEATH,
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    *ROUTES,
)
KEPT_PROPERTIES = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "timestamp",
    "type",
    "app_id",
)
OWN_ID = "sdv-door-"  # prefix of message ids assigned by the door; else aio-pika would generate a new one for each publish
CORRELATION, DEVICE, VERSION, IDEMPOTENCY = "x-correlation-id", "x-device-id", "x-schema-version", "x-idempotency-key"
SIGNATURE, TIMESTAMP, NONCE, ALGORITHM = "x-hmac-signature", "x-timestamp-auth", "x-nonce", "x-algorithm"


@dataclass(frozen=True, slots=True, eq=False)
class Received:
    """One delivered message."""

    queue: str
    body: bytes
    headers: Mapping[str, Any]
    at: datetime  # when it arrived at the door
    max_wait_s: float = 0.0  # how many seconds it may have waited in its queue before
    content_type: str | None = None
    content_encoding: str | None = None
    reply_to: str | None = None
    correlation_property: str | None = None
    tag: int = 0  # delivery tag
    redelivered: bool = False
    consumer: str = ""  # consumer tag
    message: AbstractIncomingMessage | None = field(default=None, repr=False)  # None only for a dead letter that is judged again

    @classmethod
    def of(cls, queue: str, message: AbstractIncomingMessage, max_wait_s: float) -> "Received":
        """Build from a delivery that arrives now."""
        return cls(
            queue=queue,
            body=message.body,
            headers=message.headers,
            at=datetime.now(UTC),
            max_wait_s=max_wait_s,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            reply_to=message.reply_to,
            correlation_property=message.correlation_id,
            tag=message.delivery_tag or 0,
            redelivered=bool(message.redelivered),
            consumer=message.consumer_tag or "",
            message=message,
        )

    def header(self, name: str) -> str | None:
        """Return a header with a text, bytes or integer value as text; None if it is missing or has a value of another type."""
        value = self.headers.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, bytes | bytearray):
            return bytes(value).decode("utf-8", "replace")
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        return str(value) if is_integer else None

    @property
    def is_status(self) -> bool:
        """Whether this is a device status.

        A retried status returns through the raw queue; a header then names its original queue.
        """
        return topology.STATUS in (self.queue, self.header(QUEUE))

    @property
    def is_copy(self) -> bool:
        """Whether this is the copy of a dead letter, which only needs to be recorded."""
        return self.queue == topology.DEAD_COPY

    @property
    def is_recorded_copy(self) -> bool:
        """Whether this dead-letter copy is already recorded.

        A door records each message that it refuses, and adds an error header. A message that expired in its queue was not
        refused, and RabbitMQ added an `x-death` header to it. Clients can forge both headers. So a copy with `x-death` counts as
        not recorded: the lake deduplicates a message that is recorded twice.
        """
        return ERROR in self.headers and DEATH not in self.headers

    @property
    def digest(self) -> str:
        """SHA-256 in lower-case hex over the parts that stay the same across redeliveries and routes."""
        headers = [(name, self.headers[name]) for name in sorted(self.headers) if name not in ROUTING_HEADERS]
        try:
            stable = repr((self.is_status, headers, [self._property(name) for name in KEPT_PROPERTIES]))
        except RecursionError:  # headers can be nested too deeply for `repr`
            stable = repr(self.is_status)
        return hashlib.sha256(hashlib.sha256(self.body).digest() + stable.encode("utf-8", "replace")).hexdigest()

    def _property(self, name: str) -> object:
        """Return a property of the message as its sender set it: None for a message id that the door assigned itself."""
        value = getattr(self.message, name, None)
        is_own_id = name == "message_id" and isinstance(value, str) and value.startswith(OWN_ID)
        return None if is_own_id else value

    @property
    def retry_count(self) -> int:
        """Number of retries so far. Any sender can write this header, so an invalid value counts as 0."""
        text = self.header(RETRY_COUNT)
        if text is not None and text.isascii() and text.isdigit() and len(text) < 10:
            return int(text)
        return 0

    @property
    def correlation_id(self) -> str | None:
        """The correlation id from the header, or else from the AMQP property; not validated, at most 100 characters."""
        stated = self.header(CORRELATION) or self.correlation_property
        return stated[:100] if stated else None


@dataclass(frozen=True, slots=True, eq=False)
class Accepted:
    """A message that passed all checks in `Checks`, which need no server."""

    received: Received
    parsed: RawSignal | DeviceStatus
    payload: bytes  # decoded payload of a signal; for a status, the body
    signal_digest: str  # of a signal's device, instant and payload; of a status's body
    key: str  # idempotency key
    body_digest: str  # SHA-256 of the bytes as delivered
    nonce: str | None  # None: signatures are off
    correlation_id: str | None

    @property
    def holder(self) -> str:
        """Identifies the message that holds the idempotency key; stable across redeliveries."""
        return self.nonce or self.body_digest

    @property
    def identity(self) -> str:
        """Identifies this message uniquely: device, content, idempotency key and holder."""
        return f"{self.parsed.device_id} {self.signal_digest} {self.key} {self.holder}"


Judged = Accepted | Refusal
