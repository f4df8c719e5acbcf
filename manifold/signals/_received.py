"""A message as RabbitMQ has delivered it, and the results of its checks. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from manifold.contracts.signals import topology
from manifold.contracts.signals.codes import Refusal
from manifold.contracts.signals.messages import DeviceStatus, RawSignal

RETRY_COUNT, ERROR, QUEUE = "x-retry-count", "x-error", "x-queue"  # the door's own
LEFT_OUT = "x-left-out"  # instead of headers that cannot be read, or sent on
DEATH = "x-death"  # RabbitMQ's own: in which queues a message has expired; a client may write it too
ROUTES = (
    "CC",
    "BCC",
)  # by which other keys the server is to bring it, on its sender's word: not said again with the door's rights
# Headers that say where a message has been, or goes, and nothing of what it is.
OF_THE_WAY = (ERROR, RETRY_COUNT, QUEUE, DEATH, "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason", *ROUTES)
KEPT_PROPERTIES = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "timestamp",
    "message_type",
    "app_id",
)
OWN_ID = "sdv-door-"  # how ids begin that the door gives to what had none; else its library would, with each publish
CORRELATION, DEVICE, VERSION, IDEMPOTENCY = "x-correlation-id", "x-device-id", "x-schema-version", "x-idempotency-key"
SIGNATURE, TIMESTAMP, NONCE, ALGORITHM = "x-hmac-signature", "x-timestamp-auth", "x-nonce", "x-algorithm"


@dataclass(frozen=True, slots=True, eq=False)
class Received:
    """One delivery. `waited_s` is how long it may have lain in its queue before it came, as far as the door knows."""

    queue: str
    body: bytes
    headers: Mapping[str, Any]
    at: datetime
    waited_s: float = 0.0
    content_type: str | None = None
    content_encoding: str | None = None
    reply_to: str | None = None
    correlation_property: str | None = None
    tag: int = 0
    redelivered: bool = False
    consumer: str = ""  # to which it was delivered
    properties: Any = field(default=None, repr=False)  # the library's, for sending it on unchanged

    def header(self, name: str) -> str | None:
        """A header as text; None where it is not there, or is something else."""
        value = self.headers.get(name)
        if type(value) is str:
            return value
        if isinstance(value, bytes | bytearray):
            value = bytes(value).decode("utf-8", "replace")
        return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None

    @property
    def is_status(self) -> bool:
        """Whether it is a device's status and no signal; also one that was sent on, which comes back through the raw queue."""
        return topology.STATUS in (self.queue, self.header(QUEUE))

    @property
    def is_copy(self) -> bool:
        """Whether it is the copy of a dead letter, which is only to be put on record."""
        return self.queue == topology.DEAD_COPY

    @property
    def was_seen(self) -> bool:
        """Of the copy of a dead letter: whether it is on record. What expired has no error, or RabbitMQ says where it died."""
        return ERROR in self.headers and DEATH not in self.headers

    @property
    def digest(self) -> str:
        """SHA-256 of what stays the same however often, and on whatever way, the message is delivered; lower-case hex."""
        about = [(name, self.headers[name]) for name in sorted(self.headers) if name not in OF_THE_WAY]
        try:
            told = repr((self.is_status, about, [self._property(name) for name in KEPT_PROPERTIES]))
        except RecursionError:
            told = repr(self.is_status)
        return hashlib.sha256(hashlib.sha256(self.body).digest() + told.encode("utf-8", "replace")).hexdigest()

    def _property(self, name: str) -> object:
        value = getattr(self.properties, name, None)
        return None if name == "message_id" and isinstance(value, str) and value.startswith(OWN_ID) else value

    @property
    def retry_count(self) -> int:
        """How often it was tried again. Any sender can write that header; a value that is no count counts as 0."""
        count = self.header(RETRY_COUNT)
        return int(count) if count is not None and count.isascii() and count.isdigit() and len(count) < 10 else 0

    @property
    def correlation_id(self) -> str | None:
        """The correlation id that came with it, as a header or as AMQP's own property; not looked into."""
        given = self.header(CORRELATION) or self.correlation_property
        return given[:100] if given else None


@dataclass(frozen=True, slots=True, eq=False)
class Accepted:
    """A message that has passed every check that needs no server."""

    received: Received
    said: RawSignal | DeviceStatus
    plain: bytes  # the decoded payload; of a status, its body
    content: str  # digest: the same for the same signal
    key: str  # under which it counts once
    body_digest: str  # SHA-256 of the bytes as delivered
    nonce: str | None  # None: no signature was asked for
    correlation_id: str | None

    @property
    def holder(self) -> str:
        """Of what the idempotency key is held by: the same for the same message, however often it comes."""
        return self.nonce or self.body_digest

    @property
    def identity(self) -> str:
        """The same for the same message, and for no other: its signal, its key, and what holds that."""
        return f"{self.said.device_id} {self.content} {self.key} {self.holder}"


Judged = Accepted | Refusal
