"""Building blocks of MQTT packets, mainly MQTT 5 properties, under EMQX's names. Pure."""

from typing import Any

from manifold.sandbox.tap.scanner import Malformed

Properties = dict[str, Any]  # by EMQX's names, like an event's `pub_props`; values are strings and integers

USER, PAIRS = "User-Property", "User-Property-Pairs"

_USER_PROPERTY = 0x26

# All other properties of MQTT 5 (section 2.2.2.2): EMQX's name and the type. A number is the size of an integer in bytes;
# `v` means a variable byte integer, `s` a string, and `b` binary data.
_PROPERTIES: dict[int, tuple[str, int | str]] = {
    0x01: ("Payload-Format-Indicator", 1),
    0x02: ("Message-Expiry-Interval", 4),
    0x03: ("Content-Type", "s"),
    0x08: ("Response-Topic", "s"),
    0x09: ("Correlation-Data", "b"),
    0x0B: ("Subscription-Identifier", "v"),
    0x11: ("Session-Expiry-Interval", 4),
    0x12: ("Assigned-Client-Identifier", "s"),
    0x13: ("Server-Keep-Alive", 2),
    0x15: ("Authentication-Method", "s"),
    0x16: ("Authentication-Data", "b"),
    0x17: ("Request-Problem-Information", 1),
    0x18: ("Will-Delay-Interval", 4),
    0x19: ("Request-Response-Information", 1),
    0x1A: ("Response-Information", "s"),
    0x1C: ("Server-Reference", "s"),
    0x1F: ("Reason-String", "s"),
    0x21: ("Receive-Maximum", 2),
    0x22: ("Topic-Alias-Maximum", 2),
    0x23: ("Topic-Alias", 2),
    0x24: ("Maximum-QoS", 1),
    0x25: ("Retain-Available", 1),
    0x27: ("Maximum-Packet-Size", 4),
    0x28: ("Wildcard-Subscription-Available", 1),
    0x29: ("Subscription-Identifier-Available", 1),
    0x2A: ("Shared-Subscription-Available", 1),
}


class Reader:
    """Reads a packet's body sequentially."""

    __slots__ = ("data", "offset")

    def __init__(self, data: bytes, offset: int = 0) -> None:
        self.data, self.offset = data, offset

    def integer(self, size: int) -> int:
        """Read a big-endian integer of `size` bytes."""
        part = self.data[self.offset : self.offset + size]
        if len(part) < size:
            raise Malformed("packet too short")
        self.offset += size
        return int.from_bytes(part)

    def variable(self) -> int:
        """Read a variable byte integer."""
        value = shift = 0
        while True:
            digit = self.integer(1)
            value |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                return value
            if shift > 21:
                raise Malformed("a length of more than four bytes")

    def binary(self) -> bytes:
        """Read length-prefixed bytes (two bytes of length)."""
        size = self.integer(2)
        part = self.data[self.offset : self.offset + size]
        if len(part) < size:
            raise Malformed("packet too short")
        self.offset += size
        return part

    def text(self) -> str:
        """Read a string; bytes that are not UTF-8 become U+FFFD, as in EMQX."""
        return self.binary().decode("utf-8", "replace")

    def rest(self) -> bytes:
        """Return the remaining bytes."""
        return self.data[self.offset :]

    @property
    def more(self) -> bool:
        """Whether any bytes are left."""
        return self.offset < len(self.data)

    def properties(self) -> Properties:
        """Read length-prefixed properties."""
        size = self.variable()
        part = self.data[self.offset : self.offset + size]
        if len(part) < size:
            raise Malformed("properties cut short")
        self.offset += size
        return read_properties(part)


def read_properties(raw: bytes) -> Properties:
    """Parse the bytes of properties, without their length.

    `User-Property` is always set, and has the last value of each key. `User-Property-Pairs` has all pairs in order; it is only
    set if there are any.
    """
    properties: Properties = {}
    pairs: list[dict[str, str]] = []
    offset, raw_end = 0, len(raw)
    while offset < raw_end:
        if raw[offset] == _USER_PROPERTY:  # parsed without a `Reader`, for speed: a request has two of these, and little else
            offset = _read_pair(raw, offset + 1, pairs)
        else:
            reader = Reader(raw, offset)
            _read_other(reader, properties)
            offset = reader.offset
    properties[USER] = {pair["key"]: pair["value"] for pair in pairs}
    if pairs:
        properties[PAIRS] = pairs
    return properties


def _read_pair(raw: bytes, offset: int, pairs: list[dict[str, str]]) -> int:
    """Append the user property at `offset` to `pairs`; return the offset after it.

    Key and value each have two bytes of length in front.
    """
    try:
        key_start = offset + 2
        key_end = key_start + (raw[offset] << 8 | raw[offset + 1])
        value_start = key_end + 2
        value_end = value_start + (raw[key_end] << 8 | raw[key_end + 1])
    except IndexError as exc:
        raise Malformed("user property cut short") from exc
    if value_end > len(raw):
        raise Malformed("user property cut short")
    key = raw[key_start:key_end].decode("utf-8", "replace")
    value = raw[value_start:value_end].decode("utf-8", "replace")
    pairs.append({"key": key, "value": value})
    return value_end


def _read_other(reader: Reader, properties: Properties) -> None:
    """Read a property that is not a user property into `properties`."""
    number = reader.integer(1)
    if number not in _PROPERTIES:
        raise Malformed(f"unknown property {number}")
    name, kind = _PROPERTIES[number]
    if isinstance(kind, int):
        properties[name] = reader.integer(kind)
    elif kind == "v":
        properties[name] = reader.variable()
    else:
        properties[name] = reader.text()  # binary data too, because events are JSON
