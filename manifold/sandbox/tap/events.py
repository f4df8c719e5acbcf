"""Events about vehicles, field by field as selected by the rules in infra/emqx/manifold.conf. Pure."""

from typing import Any

from manifold.contracts.events import UNDEFINED
from manifold.contracts.topics import BrokerEvent
from manifold.sandbox.tap.packets import Connect
from manifold.sandbox.tap.properties import Properties
from manifold.sandbox.tap.publication_store import Publication

Fields = dict[str, Any]

_LEVELS_MAX = 190  # `/` in a topic; Mosquitto disconnects publishers beyond 200
_ID_BYTES_MAX = 60_000

_NAMES = {  # the value of the field `event`
    BrokerEvent.CONNECTED: "client.connected",
    BrokerEvent.DISCONNECTED: "client.disconnected",
    BrokerEvent.SUBSCRIBED: "session.subscribed",
    BrokerEvent.UNSUBSCRIBED: "session.unsubscribed",
    BrokerEvent.DELIVERED: "message.delivered",
    BrokerEvent.ACKED: "message.acked",
    BrokerEvent.DROPPED: "message.dropped",
}

# EMQX's disconnect reasons by DISCONNECT reason code.
_REASONS = {
    0x00: "normal",
    0x04: "disconnect_with_will_message",
    0x80: "unspecified_error",
    0x81: "malformed_packet",
    0x82: "protocol_error",
    0x83: "implementation_specific_error",
    0x87: "not_authorized",
    0x89: "server_busy",
    0x8B: "server_shutting_down",
    0x8D: "keepalive_timeout",
    0x8E: "takenover",
    0x8F: "topic_filter_invalid",
    0x90: "topic_name_invalid",
    0x93: "receive_maximum_exceeded",
    0x94: "topic_alias_invalid",
    0x95: "frame_too_large",
    0x96: "message_rate_too_high",
    0x97: "quota_exceeded",
    0x98: "kicked",
    0x99: "payload_format_invalid",
}


def reason_name(code: int) -> str:
    """Return EMQX's name for a DISCONNECT reason code."""
    return _REASONS.get(code, "unspecified_error")


class Delivery:
    """One message being delivered to one vehicle, with the fields for its events."""

    __slots__ = ("id", "props", "publication", "qos", "retain", "topic")

    def __init__(
        self, topic: str, qos: int, retain: bool, props: Properties, message_id: str, publication: Publication | None
    ) -> None:
        self.topic, self.qos, self.retain, self.props = topic, qos, retain, props
        self.id, self.publication = message_id, publication


def connected(now_ms: int, client_id: str, asked: Connect, expiry_s: int, receive_maximum: int) -> Fields:
    """Return the fields of a connected event: the broker has accepted a vehicle's connection."""
    return _fields(BrokerEvent.CONNECTED, now_ms, client_id) | {
        "proto_ver": asked.version,
        "clean_start": asked.clean_start,
        "expiry_interval": expiry_s,
        "keepalive": asked.keepalive_s,
        "receive_maximum": receive_maximum,
        "max_packet_size": asked.properties.get("Maximum-Packet-Size", UNDEFINED),
        "connected_at": now_ms,
    }


def disconnected(now_ms: int, client_id: str, version: int, reason: str, props: Properties, connected_at_ms: int) -> Fields:
    """Return the fields of a disconnected event; `props` are those of the vehicle's DISCONNECT."""
    return _fields(BrokerEvent.DISCONNECTED, now_ms, client_id) | {
        "proto_ver": version,
        "reason": reason,
        "disconn_props": props,
        "connected_at": connected_at_ms,
        "disconnected_at": now_ms,
    }


def subscription(event: BrokerEvent, now_ms: int, client_id: str, topic_filter: str, qos: int) -> Fields:
    """Return the fields of a subscribed or unsubscribed event."""
    return _fields(event, now_ms, client_id) | {"topic": topic_filter, "qos": qos}


def delivered(now_ms: int, client_id: str, it: Delivery, dup: bool) -> Fields:
    """Return the fields of a delivered event. The message expiry in it is the remaining time."""
    props = _props(it)
    remains = it.props.get("Message-Expiry-Interval")
    if remains is not None:
        props = props | {"Message-Expiry-Interval": remains}
    return _message(BrokerEvent.DELIVERED, now_ms, client_id, it, dup) | {"pub_props": props}


def acked(now_ms: int, client_id: str, it: Delivery, props: Properties) -> Fields:
    """Return the fields of an acked event; `props` are those of the vehicle's PUBACK."""
    return _message(BrokerEvent.ACKED, now_ms, client_id, it, False) | {"pub_props": _props(it), "puback_props": props}


def dropped(now_ms: int, publication: Publication, qos: int, retain: bool) -> Fields:
    """Return the fields of a dropped event: a publish matched no subscriber; the client is its publisher."""
    sent = publication.sent
    return _fields(BrokerEvent.DROPPED, now_ms, sent.from_clientid) | {
        "id": publication.id,
        "topic": sent.topic.decode("utf-8", "replace"),
        "qos": qos,
        "flags": {"retain": retain, "dup": False},
        "reason": "no_subscribers",
        "pub_props": sent.props,
        "publish_received_at": publication.received_at_ms,
    }


def _fields(event: BrokerEvent, now_ms: int, client_id: str) -> Fields:
    return {"event": _NAMES[event], "timestamp": now_ms, "clientid": client_id}


def _message(event: BrokerEvent, now_ms: int, client_id: str, it: Delivery, dup: bool) -> Fields:
    known = it.publication
    return _fields(event, now_ms, client_id) | {
        "id": it.id,
        "from_clientid": known.sent.from_clientid if known else UNDEFINED,
        "topic": it.topic,
        "qos": it.qos,
        "flags": {"retain": it.retain, "dup": dup},
        "publish_received_at": known.received_at_ms if known else UNDEFINED,
    }


def _props(it: Delivery) -> Properties:
    """Return the publisher's properties if known, because a vehicle on MQTT 3.1.1 receives none."""
    return it.publication.sent.props if it.publication else it.props


def is_valid_topic_suffix(client_id: str) -> bool:
    """Whether an event topic can end with this client id: no wildcards, and fewer levels than Mosquitto's limit of 200."""
    return not set(client_id) & {"+", "#"} and client_id.count("/") < _LEVELS_MAX and len(client_id.encode()) < _ID_BYTES_MAX
