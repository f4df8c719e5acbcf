"""Minimal parsing of packets that the codec cannot decode, so that they can be acknowledged or matched."""

from typing import NamedTuple

PUBLISH, PUBACK, SUBACK, CONNACK, DISCONNECT = 3, 4, 9, 2, 14  # packet types
LONGEST_HEADER = 5  # bytes of a fixed header: one for type and flags, and up to four for the length
LONGEST_PROPERTIES = 256 << 10  # bytes; twice the maximum of Response Topic and Correlation Data
_UNSPECIFIED_ERROR = 0x80  # reason code that is assumed for a packet that ends before its reason code


class Publish(NamedTuple):
    """The parsed fields of a PUBLISH. `mid` is the packet id; 0: the packet has none and needs no acknowledgement."""

    topic: str
    qos: int
    dup: bool
    retain: bool
    mid: int


def length_of(header: bytes) -> int | None:
    """Return the length in bytes of the packet with this fixed header; 0 if the header is incomplete, None if it is invalid.

    The first byte of `header` is counted, but not read.
    """
    body_length = 0
    for index, byte in enumerate(header[1:LONGEST_HEADER]):
        body_length |= (byte & 127) << (7 * index)
        if byte < 128:  # the last byte of the encoded length
            header_length = index + 2  # the type byte, and `index + 1` bytes of the encoded length
            return header_length + body_length
    return None if len(header) >= LONGEST_HEADER else 0


def publish_of(packet: bytes) -> Publish:
    """Parse a whole PUBLISH up to its properties. Topic bytes that are not UTF-8 become U+FFFD."""
    topic_length_start = _body_start(packet)
    topic_start = topic_length_start + 2
    topic_end = topic_start + _uint16(packet, topic_length_start)
    topic = packet[topic_start:topic_end].decode(errors="replace")
    qos = min(packet[0] >> 1 & 3, 2)  # 3 is invalid
    has_packet_id = qos > 0 and topic_end + 2 <= len(packet)
    mid = _uint16(packet, topic_end) if has_packet_id else 0
    if mid == 0:  # without a packet id, the message cannot be acknowledged, as if its QoS were 0
        qos = 0
    return Publish(topic, qos, dup=bool(packet[0] & 8), retain=bool(packet[0] & 1), mid=mid)


def has_long_properties(head: bytes) -> bool:
    """Whether `head` begins a PUBLISH whose properties exceed `LONGEST_PROPERTIES`, or have an invalid length.

    Such a packet must not be decoded, because decoding takes forty times the size of the properties in memory. `head` may begin a
    packet of any type.
    """
    if head[0] >> 4 != PUBLISH:
        return False
    topic_length_start = _body_start(head)
    topic_end = topic_length_start + 2 + _uint16(head, topic_length_start)
    has_packet_id = head[0] & 6 != 0  # the bits of the QoS
    properties_start = topic_end + 2 if has_packet_id else topic_end
    length = length_of(head[properties_start - 1 : properties_start + 4])  # `length_of` skips the byte before the length
    return length is None or length > LONGEST_PROPERTIES


def reason_of_puback(packet: bytes) -> tuple[int, int]:
    """Return the packet id and reason code of a whole PUBACK."""
    start = _body_start(packet)
    mid = _uint16(packet, start)
    body_length = len(packet) - start
    if body_length < 2:  # the packet ends within its packet id
        return mid, _UNSPECIFIED_ERROR
    reason = packet[start + 2] if body_length > 2 else 0  # a PUBACK without a reason code means success
    return mid, reason


def reasons_of_suback(packet: bytes) -> tuple[int, bytes]:
    """Return the packet id and reason codes of a whole SUBACK."""
    start = _body_start(packet)
    mid = _uint16(packet, start)
    properties_start = start + 2
    before_properties = properties_start - 1  # `length_of` skips this byte, and counts it
    length = length_of(packet[before_properties : properties_start + 4])
    reasons = packet[before_properties + length :] if length else b""  # without a valid length, they cannot be found
    return mid, reasons or bytes([_UNSPECIFIED_ERROR])


def reason_of_disconnect(packet: bytes) -> int:
    """Return the reason code of a whole DISCONNECT."""
    start = _body_start(packet)
    return packet[start] if start < len(packet) else 0  # a DISCONNECT without a reason code is a normal one


def _body_start(packet: bytes) -> int:
    """Return the index of the first byte after the fixed header."""
    for index in range(1, LONGEST_HEADER):
        byte = packet[index : index + 1]  # empty if the packet ends here
        if byte < b"\x80":  # the last byte of the encoded length has its top bit clear
            return index + 1
    return 1  # the encoded length is invalid, so the body may begin anywhere


def _uint16(packet: bytes, start: int) -> int:
    return int.from_bytes(packet[start : start + 2])
