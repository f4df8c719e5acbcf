"""What the broker tells about vehicles, as typed events: the JSON of the rules in infra/emqx, and of the sandbox's tap."""

from dataclasses import dataclass
from typing import Any

import msgspec

from contracts.names import Owner
from contracts.topics import BrokerEvent

UNDEFINED = "undefined"  # EMQX writes a missing value as this word
MAX_SAID = 256  # characters of a vehicle's own words that are kept: MQTT allows 65,535 for every acknowledgement


@dataclass(frozen=True, slots=True)
class Heard:
    """The vehicle sent an online or a heartbeat."""


@dataclass(frozen=True, slots=True)
class Connected:
    """A vehicle is here. The event is out before the vehicle gets its CONNACK."""

    owner: Owner
    at_ms: int
    clean_start: bool
    expiry_s: int  # how long the session outlives the connection


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A vehicle has gone."""

    owner: Owner
    at_ms: int
    connected_at_ms: int  # of the connection that ended; a newer one may exist
    expiry_s: int | None  # a session expiry that the vehicle's own DISCONNECT named
    reason: str


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A vehicle listens to `topic_filter`, or stops (`on` false)."""

    owner: Owner
    at_ms: int
    topic_filter: str
    on: bool


@dataclass(frozen=True, slots=True)
class Acked:
    """A vehicle has acknowledged the message that carries `seq`. A negative PUBACK ends a message like a positive one."""

    owner: Owner
    at_ms: int
    topic: str
    seq: int | None  # None: not one of ours
    published_ms: int | None
    reason: str | None  # what the vehicle said in its PUBACK, up to MAX_SAID


@dataclass(frozen=True, slots=True)
class DeliveryDropped:
    """The broker threw a message out of a vehicle's session: its queue was full, or the message's time was over."""

    owner: Owner
    at_ms: int
    seq: int | None
    reason: str


Event = Connected | Disconnected | Subscribed | Acked | DeliveryDropped


def parse_event(name: BrokerEvent, client_id: str, payload: bytes) -> Event | None:
    """The event in `payload`; None for kinds that nothing here needs (`delivered`, `dropped`).

    Raises:
        ValueError: `payload` is not an event of this kind; the message says what is wrong with it.
    """
    try:
        fields: dict[str, Any] = msgspec.json.decode(payload)
        owner, at_ms = Owner(client_id), int(fields["timestamp"])
        match name:
            case BrokerEvent.CONNECTED:
                return Connected(owner, int(fields["connected_at"]), bool(fields["clean_start"]), int(fields["expiry_interval"]))
            case BrokerEvent.DISCONNECTED:
                expiry = (fields.get("disconn_props") or {}).get("Session-Expiry-Interval")
                connected_at, gone_at = int(fields["connected_at"]), int(fields["disconnected_at"])
                return Disconnected(owner, gone_at, connected_at, None if expiry is None else int(expiry), str(fields["reason"]))
            case BrokerEvent.SUBSCRIBED | BrokerEvent.UNSUBSCRIBED:
                return Subscribed(owner, at_ms, str(fields["topic"]), name is BrokerEvent.SUBSCRIBED)
            case BrokerEvent.ACKED:
                published = fields.get("publish_received_at")
                said = (fields.get("puback_props") or {}).get("Reason-String")
                return Acked(
                    owner,
                    at_ms,
                    str(fields["topic"]),
                    _seq(fields),
                    published if isinstance(published, int) else None,
                    said[:MAX_SAID] if isinstance(said, str) else None,
                )
            case BrokerEvent.DELIVERY_DROPPED:
                return DeliveryDropped(owner, at_ms, _seq(fields), str(fields.get("reason", UNDEFINED)))
            case _:
                return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise ValueError(f"not a {name} event of {client_id}: {exc!r}") from exc


def _seq(fields: dict[str, Any]) -> int | None:
    """The user property `seq` that the dispatcher put on its publish."""
    said = fields.get("pub_props", {}).get("User-Property", {}).get("seq")
    return int(said) if isinstance(said, str) and said.isascii() and said.isdigit() else None
