"""Minimal parsing of packets that the codec cannot decode, so that they can be acknowledged or matched."""

from typing import NamedTuple

PUBLISH, PUBACK, SUBACK, CONNACK, DISCONNECT = 3, 4, 9, 2, 14  # packet types
LONGEST_HEADER = 5  # bytes of a fixed header: one for type and flags, and up to four for the length
LONGEST_PROPERTIES = 256 << 10  # bytes; twice the maximum of Response Topic and Correlation Data
_NO_REASON = 0x80  # "unspecified error", for a packet that ends before its reason code


class Publish(NamedTuple):
    """The parsed fields of a PUBLISH. `mid` is the packet id; 0: the packet has none and needs no acknowledgement."""

    topic: str
    qos: int
    dup: bool
    retain: bool
    mid: int


def length_of(header: bytes) -> int | None:
    """Return the length in bytes of the packet with this fixed header; 0 if the header is incomplete, None if it is invalid."""
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
    qos = min(packet[0] >> 1 & 3, 2)
    mid = _uint16(packet, topic_end) if qos and topic_end + 2 <= len(packet) else 0
    return Publish(topic, qos if mid else 0, dup=bool(packet[0] & 8), retain=bool(packet[0] & 1), mid=mid)


def has_long_properties(head: bytes) -> bool:
    """Whether the properties of this PUBLISH exceed `LONGEST_PROPERTIES`: decoding takes forty times their size in memory.

    `head` begins with the first byte of a packet of any type.
    """
    if head[0] >> 4 != PUBLISH:
        return False
    topic_length_start = _body_start(head)
    has_packet_id = head[0] & 6  # the bits of the QoS
    properties_start = topic_length_start + 2 + _uint16(head, topic_length_start) + (2 if has_packet_id else 0)
    length = length_of(head[properties_start - 1 : properties_start + 4])  # `length_of` skips the byte before the length
    return length is None or length > LONGEST_PROPERTIES


def reason_of_puback(packet: bytes) -> tuple[int, int]:
    """Return the packet id and reason code of a whole PUBACK."""
    start = _body_start(packet)
    mid = _uint16(packet, start)
    body_length = len(packet) - start
    if body_length > 2:
        return mid, packet[start + 2]
    return mid, 0 if body_length == 2 else _NO_REASON  # a PUBACK without a reason code means success


def reasons_of_suback(packet: bytes) -> tuple[int, bytes]:
    """Return the packet id and reason codes of a whole SUBACK."""
    start = _body_start(packet)
    # The property length follows the two bytes of the packet id. `length_of` skips the byte before it, and counts that byte.
    properties_length = length_of(packet[start + 1 : start + 6])
    reasons = packet[start + 1 + properties_length :] if properties_length else b""
    return _uint16(packet, start), reasons or bytes([_NO_REASON])


def reason_of_disconnect(packet: bytes) -> int:
    """Return the reason code of a whole DISCONNECT."""
    start = _body_start(packet)
    return packet[start] if start < len(packet) else 0


def _body_start(packet: bytes) -> int:
    """Return the index of the first byte after the fixed header."""
    # The last byte of the encoded length has its top bit clear. If there is none, the index of the body cannot be known.
    length_end = next((index for index in range(1, LONGEST_HEADER) if packet[index : index + 1] < b"\x80"), 0)
    return length_end + 1


def _uint16(packet: bytes, start: int) -> int:
    return int.from_bytes(packet[start : start + 2])
