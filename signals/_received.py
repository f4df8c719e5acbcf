"""A message as RabbitMQ has delivered it, and what the checks make of it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from contracts.signals import topology
from contracts.signals.codes import Refusal
from contracts.signals.messages import DeviceStatus, RawSignal

RETRY_COUNT, ERROR, QUEUE = "x-retry-count", "x-error", "x-queue"  # the door's own
LEFT_OUT = "x-left-out"  # instead of headers that cannot be read, or sent on
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
    properties: Any = field(default=None, repr=False)  # the library's, for sending it on unchanged

    def header(self, name: str) -> str | None:
        """A header as text; None where it is not there, or is something else."""
        value = self.headers.get(name)
        if isinstance(value, bytes | bytearray):
            value = bytes(value).decode("utf-8", "replace")
        return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None

    @property
    def is_status(self) -> bool:
        """Whether it is a device's status and no signal; also one that was sent on, which comes back through the raw queue."""
        return topology.STATUS in (self.queue, self.header(QUEUE))

    @property
    def retry_count(self) -> int:
        """How often it was tried again. Anybody can write that header: what is no count is none."""
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


Judged = Accepted | Refusal
