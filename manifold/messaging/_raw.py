"""Minimal parsing of packets that the codec cannot decode, so that they can be acknowledged or matched."""

from typing import NamedTuple

PUBLISH, PUBACK, SUBACK, CONNACK, DISCONNECT = 3, 4, 9, 2, 14  # packet types
LONGEST_HEADER = 5  # bytes of a fixed header: type and flags, and up to four for the length
LONGEST_PROPERTIES = 256 << 10  # bytes; twice the maximum of Response Topic and Correlation Data
_NO_REASON = 0x80  # "unspecified error", for a packet that ends before its reason code


class Publish(NamedTuple):
    """The parsed fields of a PUBLISH; packet id 0: none, so there is nothing to acknowledge."""

    topic: str
    qos: int
    dup: bool
    retain: bool
    mid: int


def length_of(header: bytes) -> int | None:
    """Return the packet length for a fixed header; 0: the header is incomplete; None: it is invalid."""
    size = 0
    for place, byte in enumerate(header[1:LONGEST_HEADER]):
        size |= (byte & 127) << (7 * place)
        if byte < 128:
            return size + place + 2
    return None if len(header) >= LONGEST_HEADER else 0


def publish_of(packet: bytes) -> Publish:
    """Parse a whole PUBLISH up to its properties. Topic bytes that are not UTF-8 become U+FFFD."""
    at = _body(packet)
    topic, at = packet[at + 2 : (end := at + 2 + _number(packet, at))], end
    qos = min(packet[0] >> 1 & 3, 2)
    mid = _number(packet, at) if qos and at + 2 <= len(packet) else 0
    return Publish(topic.decode(errors="replace"), qos if mid else 0, bool(packet[0] & 8), bool(packet[0] & 1), mid)


def has_long_properties(head: bytes) -> bool:
    """Whether a PUBLISH has excessive properties; decoded, they take forty times their size in memory."""
    if head[0] >> 4 != PUBLISH:
        return False
    at = _body(head)
    at += 2 + _number(head, at) + (2 if head[0] & 6 else 0)
    length = length_of(head[at - 1 : at + 4])
    return length is None or length > LONGEST_PROPERTIES


def reason_of_puback(packet: bytes) -> tuple[int, int]:
    """Return the packet id and reason code of a whole PUBACK."""
    at = _body(packet)
    left = len(packet) - at
    return _number(packet, at), packet[at + 2] if left > 2 else 0 if left == 2 else _NO_REASON


def reasons_of_suback(packet: bytes) -> tuple[int, bytes]:
    """Return the packet id and reason codes of a whole SUBACK."""
    at = _body(packet)
    properties = length_of(packet[at + 1 : at + 6])  # `length_of` skips one byte before the length
    return _number(packet, at), (packet[at + 1 + properties :] if properties else b"") or bytes([_NO_REASON])


def reason_of_disconnect(packet: bytes) -> int:
    """Return the reason code of a whole DISCONNECT."""
    at = _body(packet)
    return packet[at] if at < len(packet) else 0


def _body(packet: bytes) -> int:
    return next((place for place in range(1, LONGEST_HEADER) if packet[place : place + 1] < b"\x80"), 0) + 1


def _number(packet: bytes, at: int) -> int:
    return int.from_bytes(packet[at : at + 2])
