"""The broker's events about vehicles, as types: the JSON of the rules in infra/emqx, and of the sandbox's tap."""

from typing import Any

import msgspec
from msgspec import Struct

from manifold.contracts.names import Owner
from manifold.contracts.topics import BrokerEvent

UNDEFINED = "undefined"  # EMQX writes a missing value as this word
MAX_REASON = 256  # characters of a vehicle's own words that are kept: MQTT allows 65,535 for every acknowledgement


class Heard(Struct, frozen=True):
    """The vehicle sent an online or a heartbeat."""


class Connected(Struct, frozen=True):
    """A vehicle is here. The event is out before the vehicle gets its CONNACK."""

    owner: Owner
    at_ms: int
    clean_start: bool
    expiry_s: int  # how long the session outlives the connection
    takes: int | None = None  # bytes of the largest packet that it takes on this connection; None: any, or the event does not say


class Disconnected(Struct, frozen=True):
    """A vehicle has gone."""

    owner: Owner
    at_ms: int
    connected_at_ms: int  # of the connection that ended; a newer one may exist
    expiry_s: int | None  # a session expiry that the vehicle's own DISCONNECT named
    reason: str


class Subscribed(Struct, frozen=True):
    """A vehicle listens to `topic_filter`, or stops (`on` false)."""

    owner: Owner
    at_ms: int
    topic_filter: str
    on: bool
    qos: int = 1  # that the broker has granted; 1 where the event does not say


class Acked(Struct, frozen=True):
    """A vehicle has acknowledged the message that carries `seq`. A negative PUBACK ends a message like a positive one."""

    owner: Owner
    at_ms: int
    topic: str
    seq: int | None  # None: not one of ours
    published_ms: int | None
    reason: str | None  # what the vehicle said in its PUBACK, up to MAX_REASON


class DeliveryDropped(Struct, frozen=True):
    """The broker threw a message out of a vehicle's session: its queue was full, or the message's time was over."""

    owner: Owner
    at_ms: int
    seq: int | None
    reason: str
    topic: str = ""  # empty where the event does not say


Event = Connected | Disconnected | Subscribed | Acked | DeliveryDropped


class _UserProperties(Struct, frozen=True):
    seq: Any = None


class _PublishProperties(Struct, frozen=True, rename={"user": "User-Property"}):
    user: _UserProperties = _UserProperties()


class _PubackProperties(Struct, frozen=True, rename={"reason": "Reason-String"}):
    reason: Any = None


class _AckedFields(Struct, frozen=True):
    """The fields that are read of an acknowledgement, by far the most frequent event; the rest of its JSON is skipped."""

    timestamp: int
    topic: str
    pub_props: _PublishProperties = _PublishProperties()
    puback_props: _PubackProperties | None = None
    publish_received_at: Any = None


_decode_acked = msgspec.json.Decoder(_AckedFields).decode


def parse_event(name: BrokerEvent, client_id: str, payload: bytes) -> Event | None:
    """The event in `payload`; None for kinds that nothing here needs (`delivered`, `dropped`).

    Raises:
        ValueError: `payload` is not an event of this kind; the message says what is wrong with it.
    """
    try:
        if name is BrokerEvent.ACKED:
            return _acked(Owner(client_id), _decode_acked(payload))
        fields: dict[str, Any] = msgspec.json.decode(payload)
        owner, at_ms = Owner(client_id), int(fields["timestamp"])
        match name:
            case BrokerEvent.CONNECTED:
                began, clean, takes = int(fields["connected_at"]), bool(fields["clean_start"]), fields.get("max_packet_size")
                return Connected(owner, began, clean, int(fields["expiry_interval"]), takes if isinstance(takes, int) else None)
            case BrokerEvent.DISCONNECTED:
                expiry = (fields.get("disconn_props") or {}).get("Session-Expiry-Interval")
                connected_at, gone_at = int(fields["connected_at"]), int(fields["disconnected_at"])
                return Disconnected(owner, gone_at, connected_at, None if expiry is None else int(expiry), str(fields["reason"]))
            case BrokerEvent.SUBSCRIBED | BrokerEvent.UNSUBSCRIBED:
                on, qos = name is BrokerEvent.SUBSCRIBED, int(fields.get("qos", 1))
                return Subscribed(owner, at_ms, str(fields["topic"]), on, qos)
            case BrokerEvent.DELIVERY_DROPPED:
                text = fields.get("pub_props", {}).get("User-Property", {}).get("seq")
                reason, topic = str(fields.get("reason", UNDEFINED)), str(fields.get("topic", ""))
                return DeliveryDropped(owner, at_ms, _seq(text), reason, topic)
            case _:
                return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise ValueError(f"not a {name} event of {client_id}: {exc!r}") from exc


def _acked(owner: Owner, fields: _AckedFields) -> Acked:
    published, text = fields.publish_received_at, fields.puback_props and fields.puback_props.reason
    return Acked(
        owner,
        fields.timestamp,
        fields.topic,
        _seq(fields.pub_props.user.seq),
        published if isinstance(published, int) else None,
        text[:MAX_REASON] if isinstance(text, str) else None,
    )


def _seq(text: object) -> int | None:
    """The user property `seq` that the dispatcher put on its publish, as a number; None: it is not one of ours."""
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else None
