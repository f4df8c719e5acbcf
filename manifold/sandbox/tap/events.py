"""Events about vehicles, field by field as selected by the rules in infra/emqx/manifold.conf. Pure."""

from typing import Any

from manifold.contracts.events import UNDEFINED
from manifold.contracts.topics import BrokerEvent
from manifold.sandbox.tap.packets import Connect
from manifold.sandbox.tap.properties import Properties
from manifold.sandbox.tap.publication_store import Publication

Fields = dict[str, Any]

_LEVELS_MAX = 190  # slashes in a client id; with more than 200 in a topic, Mosquitto disconnects the publisher
_ID_BYTES_MAX = 60_000  # a topic may have 65,535 bytes

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
        self.topic = topic
        self.qos = qos
        self.retain = retain
        self.props = props  # of the PUBLISH that the vehicle receives; empty on MQTT 3.1.1
        self.id = message_id
        self.publication = publication  # None: not in the store, so publisher and time are unknown


def connected(now_ms: int, client_id: str, connect: Connect, expiry_s: int, receive_maximum: int) -> Fields:
    """Return the fields of a connected event: the broker has accepted a vehicle's connection."""
    return _fields(BrokerEvent.CONNECTED, now_ms, client_id) | {
        "proto_ver": connect.version,
        "clean_start": connect.clean_start,
        "expiry_interval": expiry_s,
        "keepalive": connect.keepalive_s,
        "receive_maximum": receive_maximum,
        "max_packet_size": connect.properties.get("Maximum-Packet-Size", UNDEFINED),
        "connected_at": now_ms,
    }


def disconnected(now_ms: int, client_id: str, version: int, reason: str, props: Properties, connected_at_ms: int) -> Fields:
    """Return the fields of a disconnected event. `props` are the properties of the vehicle's DISCONNECT."""
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


def delivered(now_ms: int, client_id: str, delivery: Delivery, dup: bool) -> Fields:
    """Return the fields of a delivered event. Its message expiry is the remaining time, as in the PUBLISH to the vehicle."""
    props = _publisher_props(delivery)
    remaining_s = delivery.props.get("Message-Expiry-Interval")
    if remaining_s is not None:
        props = props | {"Message-Expiry-Interval": remaining_s}
    return _message_fields(BrokerEvent.DELIVERED, now_ms, client_id, delivery, dup=dup) | {"pub_props": props}


def acked(now_ms: int, client_id: str, delivery: Delivery, props: Properties) -> Fields:
    """Return the fields of an acked event. `props` are the properties of the vehicle's PUBACK or PUBREC."""
    fields = _message_fields(BrokerEvent.ACKED, now_ms, client_id, delivery, dup=False)
    return fields | {"pub_props": _publisher_props(delivery), "puback_props": props}


def dropped(now_ms: int, publication: Publication, qos: int, retain: bool) -> Fields:
    """Return the fields of a dropped event: a message had no subscriber. The event's client is the publisher."""
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
    """Return the fields that every event has."""
    return {"event": _NAMES[event], "timestamp": now_ms, "clientid": client_id}


def _message_fields(event: BrokerEvent, now_ms: int, client_id: str, delivery: Delivery, *, dup: bool) -> Fields:
    """Return the fields of an event about a message to a vehicle."""
    publication = delivery.publication
    return _fields(event, now_ms, client_id) | {
        "id": delivery.id,
        "from_clientid": publication.sent.from_clientid if publication else UNDEFINED,
        "topic": delivery.topic,
        "qos": delivery.qos,
        "flags": {"retain": delivery.retain, "dup": dup},
        "publish_received_at": publication.received_at_ms if publication else UNDEFINED,
    }


def _publisher_props(delivery: Delivery) -> Properties:
    """Return the properties that the publisher sent, or if they are unknown, those that the vehicle receives."""
    return delivery.publication.sent.props if delivery.publication else delivery.props


def is_valid_topic_suffix(client_id: str) -> bool:
    """Whether an event topic can end with this client id: it has no wildcard, and does not make the topic too long."""
    has_wildcard = not set(client_id).isdisjoint("+#")
    return not has_wildcard and client_id.count("/") < _LEVELS_MAX and len(client_id.encode()) < _ID_BYTES_MAX
