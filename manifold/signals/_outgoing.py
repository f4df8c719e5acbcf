"""Messages published by the door: processed signals, retries, dead letters, replies. Pure: address, body, properties."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import uuid4

from pamqp import frame
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.frame import FrameTypes
from pamqp.header import ContentHeader

from manifold.contracts.signals import topology
from manifold.contracts.signals.codes import ErrorReport
from manifold.contracts.signals.messages import RawSignal, processed_message
from manifold.contracts.signals.processing import ProcessedData
from manifold.signals._amqp_frames import FRAME_OVERHEAD_BYTES
from manifold.signals._decoding import MAX_HEADERS
from manifold.signals._received import (
    CORRELATION,
    DEVICE,
    ERROR,
    KEPT_PROPERTIES,
    LEFT_OUT,
    OWN_ID,
    QUEUE,
    RETRY_COUNT,
    ROUTES,
    VERSION,
    Accepted,
    Received,
)

JSON, PERSISTENT = "application/json", 2
MAX_PROPERTIES = MAX_HEADERS - 4000  # bytes; copies come back with headers added by RabbitMQ, and must be readable
MAX_OWN_HEADER_BYTES = 10_000  # bytes of a header written by the door
MAX_SHORT_STRING_BYTES = 255  # bytes of a short string property
# RabbitMQ closes a channel that publishes with this reply_to and has no pending request; AMQP 1.0 senders can set it.
DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """One message to publish."""

    exchange: str
    key: str
    body: bytes
    properties: Any  # Basic.Properties; untyped, because pamqp declares every field optional
    mandatory: bool = True

    def packed(self, channel: int, *, room: int) -> list[bytes] | Exception:
        """Return the frames of the message, or the error if its properties cannot be encoded.

        `room` is the number of body bytes that fit into one frame.
        """
        try:
            where = _publish_frame(channel, self.exchange, self.key, self.mandatory)
            frames = [where, *(frame.marshal(one, channel) for one in self._content(room))]
        except Exception as exc:  # noqa: BLE001  # the properties come from arbitrary clients
            return exc
        # A server that negotiated smaller frames would close the connection every time.
        if len(frames[1]) > room + FRAME_OVERHEAD_BYTES:
            return ValueError(f"the properties do not fit into a frame, which has room for {room} bytes")
        return frames

    def _content(self, room: int) -> Iterator[FrameTypes]:
        yield ContentHeader(0, len(self.body), self.properties)
        for start in range(0, len(self.body), room):
            yield ContentBody(self.body[start : start + room])


@lru_cache(maxsize=64)  # few distinct addresses
def _publish_frame(channel: int, exchange: str, key: str, mandatory: bool) -> bytes:
    return frame.marshal(Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory), channel)


def processed(message: Accepted, parsed: RawSignal, data: ProcessedData, at: datetime) -> Outgoing:
    """Build the processed signal. Its message id is the signal's digest, so that republished messages share one id."""
    body = processed_message(parsed, data, at=at, correlation_id=message.correlation_id)
    headers: dict[str, Any] = {DEVICE: parsed.device_id, VERSION: parsed.schema_version}
    if message.correlation_id:
        headers[CORRELATION] = message.correlation_id
    about = Basic.Properties(JSON, headers=headers, delivery_mode=PERSISTENT, message_id=message.content, timestamp=at)
    return Outgoing(topology.EXCHANGE, topology.PROCESSED, body, about)


def retry(received: Received, after_ms: int) -> Outgoing:
    """Build the same message for redelivery after `after_ms`."""
    headers = {RETRY_COUNT: received.retry_count + 1}
    return _forwarded(received, topology.DEAD_EXCHANGE, topology.RETRY, headers, expiration=str(after_ms))


def dead_letter(received: Received, report: ErrorReport) -> Outgoing:
    """Build the same message with its error report in a header."""
    headers = {ERROR: report.to_json().decode()}
    return _forwarded(received, topology.DEAD_EXCHANGE, topology.DEAD, headers, expiration=None)


def reply(received: Received, report: ErrorReport, at: datetime) -> Outgoing | None:
    """Build the error for the sender; None if no reply is wanted, or `reply_to` names one of the door's own queues."""
    to = received.reply_to
    if not to or not _fits(to) or to in topology.OWN_QUEUES:
        return None
    headers: dict[str, Any] = {CORRELATION: report.correlation_id} if report.correlation_id else {}
    known = next(filter(_fits, (received.correlation_property, report.correlation_id)), None)
    about = Basic.Properties(JSON, headers=headers, delivery_mode=PERSISTENT, correlation_id=known, timestamp=at)
    return Outgoing("", to, report.to_json(), about, mandatory=False)


def _fits(text: str | None) -> bool:
    return bool(text) and len(str(text).encode()) <= MAX_SHORT_STRING_BYTES


def without_headers(one: Outgoing) -> Outgoing:
    """Drop all headers but the door's own: the client's may be impossible to encode."""
    headers = one.properties.headers or {}
    own = {name: headers[name] for name in (ERROR, QUEUE, RETRY_COUNT) if _is_own(headers.get(name))}
    properties = Basic.Properties(headers=own | {LEFT_OUT: "headers that cannot be sent on"}, delivery_mode=PERSISTENT)
    for name in ("expiration", "content_type", "content_encoding"):  # these change how it is delayed or decoded
        setattr(properties, name, getattr(one.properties, name, None))
    return replace(one, properties=properties)


def _forwarded(received: Received, exchange: str, key: str, added: dict[str, Any], *, expiration: str | None) -> Outgoing:
    """Build a copy: the same bytes, and all properties and headers that are not about routing, as far as they fit a frame."""
    old, queue = received.properties, topology.STATUS if received.is_status else topology.RAW
    headers = {name: value for name, value in received.headers.items() if name not in ROUTES} | added | {QUEUE: queue}
    made = Basic.Properties(headers=headers, delivery_mode=PERSISTENT)
    for name in KEPT_PROPERTIES:
        setattr(made, name, getattr(old, name, None))
    if made.reply_to == DIRECT_REPLY_TO:
        made.reply_to = None
    made.message_id = made.message_id or f"{OWN_ID}{uuid4().hex}"
    made.expiration = expiration
    one = Outgoing(exchange, key, received.body, made)
    return one if _can_be_sent(one) else without_headers(one)


def _is_own(value: Any) -> bool:
    """Whether a header value can be the door's own: a client may use the name for something larger."""
    return type(value) is int or (type(value) is str and len(value.encode()) <= MAX_OWN_HEADER_BYTES)


def _can_be_sent(one: Outgoing) -> bool:
    """Whether the properties can be encoded and fit into one frame; RabbitMQ closes the connection otherwise."""
    try:
        return len(one.properties.marshal()) <= MAX_PROPERTIES
    except Exception:  # noqa: BLE001  # the properties come from arbitrary clients
        return False
