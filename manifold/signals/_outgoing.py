"""Messages published by the door: processed signals, retries, dead letters, replies. Pure: address, body, properties."""

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from aio_pika import DeliveryMode, Message

from manifold.contracts.signals import topology
from manifold.contracts.signals.codes import ErrorReport
from manifold.contracts.signals.messages import RawSignal, processed_message
from manifold.contracts.signals.processing import ProcessedData
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
from manifold.signals.compat import MAX_HEADERS

JSON, PERSISTENT = "application/json", DeliveryMode.PERSISTENT
MAX_PROPERTIES = MAX_HEADERS - 4000  # bytes; copies come back with headers added by RabbitMQ, and must be readable
MAX_OWN_HEADER_BYTES = 10_000  # bytes of a header written by the door
MAX_SHORT_STRING_BYTES = 255  # bytes of a short string property
FIRST_RETRY_S, MAX_RETRY_S, JITTER = 1.0, 30.0, 0.25
# RabbitMQ closes a channel that publishes with this reply_to and has no pending request; AMQP 1.0 senders can set it.
DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """One message to publish."""

    exchange: str
    key: str
    message: Message
    mandatory: bool = True


def processed(message: Accepted, parsed: RawSignal, data: ProcessedData, at: datetime) -> Outgoing:
    """Build the processed signal. Its message id is the signal's digest, so that republished messages share one id."""
    body = processed_message(parsed, data, at=at, correlation_id=message.correlation_id)
    headers: dict[str, Any] = {DEVICE: parsed.device_id, VERSION: parsed.schema_version}
    if message.correlation_id:
        headers[CORRELATION] = message.correlation_id
    properties: dict[str, Any] = {
        "content_type": JSON,
        "delivery_mode": PERSISTENT,
        "message_id": message.content,
        "timestamp": at,
    }
    return Outgoing(topology.EXCHANGE, topology.PROCESSED, Message(body, headers=headers, **properties))


def retry(received: Received, after_ms: int, *, max_properties: int = MAX_PROPERTIES) -> Outgoing:
    """Build the same message for redelivery after `after_ms`. `max_properties`: bytes that its properties may have."""
    headers = {RETRY_COUNT: received.retry_count + 1}
    message = _forwarded(received, headers, max_properties, expiration=timedelta(milliseconds=after_ms))
    return Outgoing(topology.DEAD_EXCHANGE, topology.RETRY, message)


def back_off_ms(retry_count: int, *, at_random: float | None = None) -> int:
    """Return the delay in ms before attempt `retry_count` + 1: 1 s, doubling up to 30 s, ±25 % jitter, never above 30 s."""
    share = random.random() if at_random is None else at_random
    plain: float = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(retry_count, 10))
    return round(min(MAX_RETRY_S, plain * (1 - JITTER + 2 * JITTER * share)) * 1000)


def dead_letter(received: Received, report: ErrorReport, *, max_properties: int = MAX_PROPERTIES) -> Outgoing:
    """Build the same message with its error report in a header. `max_properties`: bytes that its properties may have."""
    message = _forwarded(received, {ERROR: report.to_json().decode()}, max_properties)
    return Outgoing(topology.DEAD_EXCHANGE, topology.DEAD, message)


def reply(received: Received, report: ErrorReport, at: datetime) -> Outgoing | None:
    """Build the error for the sender; None if no reply is wanted, or `reply_to` names one of the door's own queues."""
    to = received.reply_to
    if not to or not _fits(to) or to in topology.OWN_QUEUES:
        return None
    headers: dict[str, Any] = {CORRELATION: report.correlation_id} if report.correlation_id else {}
    known = next(filter(_fits, (received.correlation_property, report.correlation_id)), None)
    properties: dict[str, Any] = {"content_type": JSON, "delivery_mode": PERSISTENT, "correlation_id": known, "timestamp": at}
    return Outgoing("", to, Message(report.to_json(), headers=headers, **properties), mandatory=False)


def _fits(text: str | None) -> bool:
    return bool(text) and len(str(text).encode()) <= MAX_SHORT_STRING_BYTES


def _forwarded(received: Received, added: dict[str, Any], max_properties: int, *, expiration: timedelta | None = None) -> Message:
    """Build a copy: the same bytes, and all properties and headers that are not about routing, as far as they can be sent."""
    queue = topology.STATUS if received.is_status else topology.RAW
    headers = {name: value for name, value in received.headers.items() if name not in ROUTES} | added | {QUEUE: queue}
    kept = {name: getattr(received.message, name, None) for name in KEPT_PROPERTIES}
    if kept["reply_to"] == DIRECT_REPLY_TO:
        kept["reply_to"] = None
    kept["message_id"] = kept["message_id"] or f"{OWN_ID}{uuid4().hex}"
    made = Message(received.body, headers=headers, delivery_mode=PERSISTENT, expiration=expiration, **kept)
    return made if _can_be_sent(made, max_properties) else _without_headers(made)


def _without_headers(message: Message) -> Message:
    """Drop all headers but the door's own: the client's may be impossible to encode."""
    own = {name: message.headers[name] for name in (ERROR, QUEUE, RETRY_COUNT) if _is_own(message.headers.get(name))}
    return Message(
        message.body,
        headers=own | {LEFT_OUT: "headers that cannot be sent on"},
        delivery_mode=PERSISTENT,
        expiration=message.expiration,  # these change how it is delayed or decoded
        content_type=message.content_type,
        content_encoding=message.content_encoding,
    )


def _is_own(value: Any) -> bool:
    """Whether a header value can be the door's own: a client may use the name for something larger."""
    return type(value) is int or (type(value) is str and len(value.encode()) <= MAX_OWN_HEADER_BYTES)


def _can_be_sent(message: Message, max_properties: int) -> bool:
    """Whether the properties can be encoded and fit into one frame; RabbitMQ closes the connection otherwise."""
    try:
        return len(message.properties.marshal()) <= max_properties
    except Exception:  # noqa: BLE001  # the properties come from arbitrary clients
        return False
