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
    mid: int = 0
    connection: int = 0  # number of the connection that delivered it; packet ids are only valid there
    unreadable: str | None = None  # decoding error; the payload is then the whole raw packet


def read(packet: mqtt5.PublishPacket, connection: int) -> Message:
    """Convert a decoded packet."""
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


def unread(packet: bytes, why: str, connection: int) -> Message:
    """Convert an undecodable PUBLISH."""
    raw = _raw.publish_of(packet)
    return Message(raw.topic, packet, raw.qos, raw.dup, raw.retain, mid=raw.mid, connection=connection, unreadable=why)
