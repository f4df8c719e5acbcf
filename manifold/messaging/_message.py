"""A message as an MQTT client receives it."""

from collections.abc import Sequence

import mqtt5
from msgspec import Struct

from manifold.messaging import _raw


class Message(Struct, frozen=True, gc=False):
    """One message as it came; give it to `Mqtt.ack` once it is safe."""

    topic: str
    payload: bytes
    qos: int = 1
    dup: bool = False
    retain: bool = False
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: Sequence[tuple[str, str]] = ()
    mid: int = 0
    connection: int = 0  # the connection that brought it; packet ids mean nothing on another one
    unreadable: str | None = None  # why the packet could not be read; the payload is then the whole packet, as it came


def read(packet: mqtt5.PublishPacket, connection: int) -> Message:
    """The message in a packet."""
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
    """The message in a PUBLISH that cannot be read."""
    raw = _raw.publish_of(packet)
    return Message(raw.topic, packet, raw.qos, raw.dup, raw.retain, mid=raw.mid, connection=connection, unreadable=why)
