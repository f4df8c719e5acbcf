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
    DEATH,
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
# Bytes of the properties of a published message. Copies return to the door with headers added by RabbitMQ, and must stay below
# the size up to which the door reads headers.
MAX_PROPERTIES = MAX_HEADERS - 4000
MAX_OWN_HEADER_BYTES = 10_000  # bytes of a header written by the door
MAX_SHORT_STRING_BYTES = 255  # bytes of a short string property
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 30.0  # delay before the first retry, and the longest delay
JITTER = 0.25  # share of the delay by which it varies, up or down
# RabbitMQ closes a channel that publishes with this reply_to and has no pending request; AMQP 1.0 senders can set it.
DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """One message to publish."""

    exchange: str
    key: str  # routing key
    message: Message
    mandatory: bool = True  # whether RabbitMQ returns the message if no queue is bound for it


def processed(message: Accepted, parsed: RawSignal, data: ProcessedData, at: datetime) -> Outgoing:
    """Build the processed signal. Its message id is the signal's digest, so that republished messages share one id."""
    body = processed_message(parsed, data, at=at, correlation_id=message.correlation_id)
    headers: dict[str, Any] = {DEVICE: parsed.device_id, VERSION: parsed.schema_version}
    if message.correlation_id:
        headers[CORRELATION] = message.correlation_id
    properties: dict[str, Any] = {
        "content_type": JSON,
        "delivery_mode": PERSISTENT,
        "message_id": message.signal_digest,
        "timestamp": at,
    }
    return Outgoing(topology.EXCHANGE, topology.PROCESSED, Message(body, headers=headers, **properties))


def retry(received: Received, after_ms: int, *, max_properties: int = MAX_PROPERTIES) -> Outgoing:
    """Build the same message for redelivery after `after_ms`. `max_properties`: maximum bytes of its properties."""
    headers = {RETRY_COUNT: received.retry_count + 1}
    message = _copy_of(received, headers, max_properties, expiration=timedelta(milliseconds=after_ms))
    return Outgoing(topology.DEAD_EXCHANGE, topology.RETRY, message)


def back_off_ms(retry_count: int, *, at_random: float | None = None) -> int:
    """Return the delay in ms before the next retry of a message that was retried `retry_count` times.

    The delay starts at 1 s and doubles with each retry. Jitter changes it by up to 25 %, and it never exceeds 30 s. `at_random`,
    from 0 to 1, replaces the random number that selects the jitter.
    """
    position = random.random() if at_random is None else at_random
    delay_s: float = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(retry_count, 10))
    with_jitter_s = delay_s * (1 - JITTER + 2 * JITTER * position)
    return round(min(MAX_RETRY_S, with_jitter_s) * 1000)


def dead_letter(received: Received, report: ErrorReport, *, max_properties: int = MAX_PROPERTIES) -> Outgoing:
    """Build the same message with its error report in a header. `max_properties`: maximum bytes of its properties."""
    message = _copy_of(received, {ERROR: report.to_json().decode()}, max_properties)
    return Outgoing(topology.DEAD_EXCHANGE, topology.DEAD, message)


def reply(received: Received, report: ErrorReport, at: datetime) -> Outgoing | None:
    """Build the error message for the sender.

    Return None if the sender asked for no reply, or if `reply_to` is too long or names one of the door's own queues.
    """
    reply_to = received.reply_to
    if not reply_to or not _fits_short_string(reply_to) or reply_to in topology.OWN_QUEUES:
        return None
    headers: dict[str, Any] = {CORRELATION: report.correlation_id} if report.correlation_id else {}
    correlation_id: str | None = None
    if _fits_short_string(received.correlation_property):
        correlation_id = received.correlation_property
    elif _fits_short_string(report.correlation_id):
        correlation_id = report.correlation_id
    properties: dict[str, Any] = {
        "content_type": JSON,
        "delivery_mode": PERSISTENT,
        "correlation_id": correlation_id,
        "timestamp": at,
    }
    return Outgoing("", reply_to, Message(report.to_json(), headers=headers, **properties), mandatory=False)


def _fits_short_string(text: str | None) -> bool:
    """Whether the text can be sent as a short string property; false for None and the empty text."""
    if not text:
        return False
    return len(text.encode()) <= MAX_SHORT_STRING_BYTES


def _copy_of(
    received: Received, own_headers: dict[str, Any], max_properties: int, *, expiration: timedelta | None = None
) -> Message:
    """Build a copy with the same body, with all properties and headers that do not select routes, and with `own_headers`.

    RabbitMQ's header `DEATH` is left out: a dead letter with it counts as one that expired before any door saw it.
    If RabbitMQ would not accept these properties, build the copy without the sender's headers.
    """
    queue = topology.STATUS if received.is_status else topology.RAW
    sender_headers = {name: value for name, value in received.headers.items() if name not in (*ROUTES, DEATH)}
    headers = sender_headers | own_headers | {QUEUE: queue}
    kept = {name: getattr(received.message, name, None) for name in KEPT_PROPERTIES}
    if kept["reply_to"] == DIRECT_REPLY_TO:
        kept["reply_to"] = None
    kept["message_id"] = kept["message_id"] or f"{OWN_ID}{uuid4().hex}"
    copy = Message(received.body, headers=headers, delivery_mode=PERSISTENT, expiration=expiration, **kept)
    return copy if _can_be_sent(copy, max_properties) else _without_headers(copy)


def _without_headers(message: Message) -> Message:
    """Build the message with the door's own headers only, because the sender's headers may be impossible to encode."""
    own = {name: message.headers[name] for name in (ERROR, QUEUE, RETRY_COUNT) if _is_own(message.headers.get(name))}
    return Message(
        message.body,
        headers=own | {LEFT_OUT: "headers that cannot be sent on"},
        delivery_mode=PERSISTENT,
        # Of the other properties, keep those by which the message is delayed and decoded.
        expiration=message.expiration,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
    )


def _is_own(value: Any) -> bool:
    """Whether the door can have written this header value; a sender may use the same header for a larger value."""
    return type(value) is int or (type(value) is str and len(value.encode()) <= MAX_OWN_HEADER_BYTES)


def _can_be_sent(message: Message, max_properties: int) -> bool:
    """Whether the properties can be encoded and fit into one frame; RabbitMQ closes the connection otherwise."""
    try:
        return len(message.properties.marshal()) <= max_properties
    except Exception:  # noqa: BLE001  # the properties come from arbitrary clients
        return False
