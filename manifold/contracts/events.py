"""Typed broker events about vehicles, parsed from the JSON of the rules in infra/emqx and of the sandbox's event tap."""

from typing import Any

import msgspec
from msgspec import Struct

from manifold.contracts.names import Owner
from manifold.contracts.topics import BrokerEvent

UNDEFINED = "undefined"  # EMQX writes a missing value as this word
MAX_REASON = 256  # characters kept of a vehicle's reason string; MQTT allows 65,535 in every acknowledgement


class PresenceSign(Struct, frozen=True):
    """The vehicle sent an online or heartbeat message."""


class Connected(Struct, frozen=True):
    """A vehicle connected. The event is sent before the vehicle's CONNACK."""

    owner: Owner
    at_ms: int
    clean_start: bool
    expiry_s: int  # session expiry interval in seconds
    max_packet_bytes: int | None = None  # maximum packet size in bytes; None: unlimited, or not in the event


class Disconnected(Struct, frozen=True):
    """A vehicle disconnected."""

    owner: Owner
    at_ms: int
    connected_at_ms: int  # connect time of the connection that ended; a newer one may exist
    expiry_s: int | None  # the session expiry interval in the vehicle's DISCONNECT, if any
    reason: str


class Subscribed(Struct, frozen=True):
    """A vehicle subscribed to `topic_filter`, or unsubscribed (`on` false)."""

    owner: Owner
    at_ms: int
    topic_filter: str
    on: bool
    qos: int = 1  # granted by the broker; 1 if not in the event


class Acked(Struct, frozen=True):
    """A vehicle acknowledged the message with this `seq`. A negative PUBACK ends a message like a positive one."""

    owner: Owner
    at_ms: int
    topic: str
    seq: int | None  # None: not published by Manifold
    published_ms: int | None  # when the broker received the message, Unix milliseconds; None: not in the event
    reason: str | None  # reason string of the PUBACK, truncated to MAX_REASON


class DeliveryDropped(Struct, frozen=True):
    """The broker dropped a message from a vehicle's session: its queue was full, or the message expired."""

    owner: Owner
    at_ms: int
    seq: int | None
    reason: str
    topic: str = ""  # empty if not in the event


Event = Connected | Disconnected | Subscribed | Acked | DeliveryDropped


class _UserProperties(Struct, frozen=True):
    seq: Any = None


class _PublishProperties(Struct, frozen=True, rename={"user": "User-Property"}):
    user: _UserProperties = _UserProperties()


class _PubackProperties(Struct, frozen=True, rename={"reason": "Reason-String"}):
    reason: Any = None


class _AckedFields(Struct, frozen=True):
    """The decoded fields of an acknowledgement, by far the most frequent event; the rest of the JSON is skipped."""

    timestamp: int
    topic: str
    pub_props: _PublishProperties = _PublishProperties()
    puback_props: _PubackProperties | None = None
    publish_received_at: Any = None


_decode_acked = msgspec.json.Decoder(_AckedFields).decode


def parse_event(name: BrokerEvent, client_id: str, payload: bytes) -> Event | None:
    """Parse the event of kind `name` in `payload`; None for the kinds that are not used, `delivered` and `dropped`.

    Raises:
        ValueError: `payload` is not an event of this kind; the message names the problem.
    """
    try:
        if name is BrokerEvent.ACKED:
            return _acked(Owner(client_id), _decode_acked(payload))
        fields: dict[str, Any] = msgspec.json.decode(payload)
        owner, at_ms = Owner(client_id), int(fields["timestamp"])
        match name:
            case BrokerEvent.CONNECTED:
                max_packet_bytes = fields.get("max_packet_size")
                return Connected(
                    owner,
                    at_ms=int(fields["connected_at"]),
                    clean_start=bool(fields["clean_start"]),
                    expiry_s=int(fields["expiry_interval"]),
                    max_packet_bytes=max_packet_bytes if isinstance(max_packet_bytes, int) else None,
                )
            case BrokerEvent.DISCONNECTED:
                properties = fields.get("disconn_props") or {}
                expiry = properties.get("Session-Expiry-Interval")
                return Disconnected(
                    owner,
                    connected_at_ms=int(fields["connected_at"]),
                    at_ms=int(fields["disconnected_at"]),
                    expiry_s=None if expiry is None else int(expiry),
                    reason=str(fields["reason"]),
                )
            case BrokerEvent.SUBSCRIBED | BrokerEvent.UNSUBSCRIBED:
                qos = int(fields.get("qos", 1))
                return Subscribed(owner, at_ms, str(fields["topic"]), on=name is BrokerEvent.SUBSCRIBED, qos=qos)
            case BrokerEvent.DELIVERY_DROPPED:
                user_properties = fields.get("pub_props", {}).get("User-Property", {})
                seq = _seq(user_properties.get("seq"))
                return DeliveryDropped(owner, at_ms, seq, str(fields.get("reason", UNDEFINED)), str(fields.get("topic", "")))
            case _:
                return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise ValueError(f"not a {name} event of {client_id}: {exc!r}") from exc


def _acked(owner: Owner, fields: _AckedFields) -> Acked:
    published_ms = fields.publish_received_at
    reason = None if fields.puback_props is None else fields.puback_props.reason
    return Acked(
        owner,
        fields.timestamp,
        fields.topic,
        _seq(fields.pub_props.user.seq),
        published_ms if isinstance(published_ms, int) else None,
        reason[:MAX_REASON] if isinstance(reason, str) else None,
    )


def _seq(user_property: object) -> int | None:
    """Return the seq in a message's user property `seq`; None if the message has none, so that it is not Manifold's."""
    if isinstance(user_property, str) and user_property.isascii() and user_property.isdigit():
        return int(user_property)
    return None
