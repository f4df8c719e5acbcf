"""Finds MQTT packets in a byte stream, however it is split, without buffering payloads. Pure."""

from collections.abc import Callable
from typing import Final
from zlib import crc32

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)

CONTROL_MAX: Final = 256 << 10  # retained bytes of a packet other than PUBLISH; the rest is skipped
_LONGEST_SIZE = 4  # bytes of the packet length, MQTT 5 section 1.5.5

Control = Callable[[int, bytes], None]
Publish = Callable[["PublishHead", int, int], None]


class Malformed(ValueError):
    """The bytes are not MQTT."""


class PublishHead:
    """The fields before a PUBLISH's payload. `properties` are raw, without their length; empty on MQTT 3.1.1."""

    __slots__ = ("first", "mid", "properties", "topic")

    def __init__(self, first: int, topic: bytes, mid: int, properties: bytes) -> None:
        self.first, self.topic, self.mid, self.properties = first, topic, mid, properties

    @property
    def qos(self) -> int:
        """QoS: 0, 1 or 2."""
        return self.first >> 1 & 3

    @property
    def dup(self) -> bool:
        """The dup flag: it may have been sent before."""
        return bool(self.first & 8)

    @property
    def retain(self) -> bool:
        """The retain flag."""
        return bool(self.first & 1)


class Scanner:
    """Scans one direction of one connection.

    `on_control(kind, body)` is called for each complete packet in `kinds`, with at most CONTROL_MAX bytes. `on_publish(head, crc,
    size)` is called at the last byte of a PUBLISH whose topic satisfies `wanted`; `crc` is the payload's CRC-32 with `digests`,
    else 0. Everything else is skipped. Attributes may change between packets.
    """

    __slots__ = (
        *("_crc", "_head", "_left", "_needed", "_on_control", "_on_publish", "_size", "_stash", "_stopped"),
        *("digests", "kinds", "version", "wanted"),
    )

    def __init__(self, kinds: frozenset[int], on_control: Control, on_publish: Publish) -> None:
        self.kinds, self._on_control, self._on_publish = kinds, on_control, on_publish
        self.version, self.digests = 4, False
        self.wanted: Callable[[bytes], object] | None = None  # None: no PUBLISH at all
        self._stash = bytearray()  # an incomplete packet, which needs `_needed` bytes
        self._needed = 0
        self._left = 0  # remaining bytes of the current packet that are not buffered
        self._head: PublishHead | None = None  # the PUBLISH whose payload `_left` counts
        self._crc = self._size = 0
        self._stopped = False

    def stop(self) -> None:
        """Make `feed` return after the current packet."""
        self._stopped = True

    @property
    def unfinished(self) -> int:
        """Number of trailing bytes that belong to an incomplete packet."""
        return len(self._stash)

    def feed(self, data: bytes) -> int:
        """Scan bytes; return how many were read: all, unless `stop` was called.

        Raises:
            Malformed: the stream is not MQTT; the scanner cannot be used any more.
        """
        at, end = 0, len(data)
        self._stopped = False
        while at < end and not self._stopped:
            if self._left:
                at = self._pass(data, at, end)
            elif self._stash:
                at = self._complete(data, at, end)
            else:
                after = self._packet(data, at, end)
                if after < 0:
                    self._stash += data[at : at - after]
                    self._needed = -after
                    return end
                at = after
        return at

    def _pass(self, data: bytes, at: int, end: int) -> int:
        stop = min(end, at + self._left)
        self._left -= stop - at
        head = self._head
        if head is not None:
            if self.digests:
                self._crc = crc32(memoryview(data)[at:stop], self._crc)
            if not self._left:
                self._head = None
                self._on_publish(head, self._crc, self._size)
        return stop

    def _complete(self, data: bytes, at: int, end: int) -> int:
        stash = self._stash
        stop = min(end, at + self._needed - len(stash))
        stash += data[at:stop]
        if len(stash) == self._needed:
            after = self._packet(bytes(stash), 0, len(stash))
            if after < 0:
                self._needed = -after
            else:
                stash.clear()
        return stop

    def _packet(self, data: bytes, at: int, end: int) -> int:
        """Return the next offset, with `_left` set inside an unbuffered packet; or minus the bytes needed from `at` on."""
        if end - at < 2:
            return -2
        size, body = data[at + 1], at + 2
        if size > 127:
            size, body = _length(data, at + 1, end)
            if body < 0:
                return -(end - at + 1)
        first, stop = data[at], body + size
        kind = first >> 4
        if kind == PUBLISH and self.wanted is not None:
            return self._publish(data, at, body, stop, end)
        if not kind:
            raise Malformed("packet type 0")
        if kind in self.kinds:
            kept = min(stop, body + CONTROL_MAX)
            if kept > end:
                return at - kept
            self._left = stop - kept
            self._on_control(kind, data[body:kept])
            return kept
        return self._skip(stop, end)

    def _skip(self, stop: int, end: int) -> int:
        if stop > end:
            self._left = stop - end
            return end
        return stop

    def _publish(self, data: bytes, at: int, body: int, stop: int, end: int) -> int:
        """Scan a PUBLISH up to its payload; returns where to go on, or minus the number of bytes needed from `at`."""
        assert self.wanted is not None
        first, head_end = data[at], body + 2
        if head_end > end:
            return at - head_end
        topic_end = head_end + (data[body] << 8 | data[body + 1])
        if topic_end > end:
            return at - topic_end
        topic = data[head_end:topic_end]
        if not self.wanted(topic):
            return self._skip(stop, end)
        mid_end = topic_end + (2 if first & 6 else 0)
        needed = mid_end + 1 if self.version >= 5 else mid_end
        if needed > stop:
            raise Malformed("PUBLISH shorter than its head")
        if needed > end:
            return at - needed
        mid = data[topic_end] << 8 | data[topic_end + 1] if first & 6 else 0
        payload, properties = mid_end, b""
        if self.version >= 5:
            size, start = data[mid_end], mid_end + 1
            if size > 127:
                size, start = _length(data, mid_end, end)
                if start < 0:
                    return at - end - 1
            payload = start + size
            if payload > stop:
                raise Malformed("PUBLISH shorter than its properties")
            if payload > end:
                return at - payload
            properties = data[start:payload]
        return self._payload(PublishHead(first, topic, mid, properties), data, payload, stop, end)

    def _payload(self, head: PublishHead, data: bytes, at: int, stop: int, end: int) -> int:
        if stop <= end:
            self._on_publish(head, crc32(data[at:stop]) if self.digests else 0, stop - at)
            return stop
        self._crc = crc32(memoryview(data)[at:end]) if self.digests else 0
        self._head, self._size, self._left = head, stop - at, stop - end
        return end


def _length(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Decode a variable byte integer; return it and its end offset, -1 if it is incomplete."""
    value = shift = 0
    for n in range(at, min(end, at + _LONGEST_SIZE)):
        value |= (data[n] & 127) << shift
        shift += 7
        if data[n] < 128:
            return value, n + 1
    if end - at >= _LONGEST_SIZE:
        raise Malformed("a length of more than four bytes")
    return 0, -1
