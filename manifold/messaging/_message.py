"""A message received by the MQTT client."""

from collections.abc import Sequence

import mqtt5
from msgspec import Struct

from manifold.messaging import _raw


class Message(Struct, frozen=True, gc=False):
    """One message as received; pass it to `Mqtt.ack` once it is processed."""

    topic: str
    payload: bytes
    qos: int = 1
    dup: bool = False
    retain: bool = False
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: Sequence[tuple[str, str]] = ()
    mid: int = 0  # packet id; 0: none
    connection: int = 0  # number of the connection that delivered the message; `mid` is only valid on this connection
    unreadable: str | None = None  # why the packet could not be decoded, in which case `payload` is the whole raw packet


def decoded_message(packet: mqtt5.PublishPacket, connection: int) -> Message:
    """Build the message of a decoded PUBLISH that arrived on this connection."""
    return Message(
        packet.topic,
        packet.payload,
        int(packet.qos),
        packet.duplicate,
        packet.retain,
        packet.response_topic,
        packet.correlation_data,
        packet.user_properties,
        packet.packet_id or 0,
        connection,
    )


def undecodable_message(packet: bytes, reason: str, connection: int) -> Message:
    """Build the message of an undecodable PUBLISH."""
    raw = _raw.publish_of(packet)
    return Message(raw.topic, packet, raw.qos, raw.dup, raw.retain, mid=raw.mid, connection=connection, unreadable=reason)
