"""Finds MQTT packets in a byte stream, which may be split anywhere, without buffering payloads. Pure."""

from collections.abc import Callable
from typing import Final
from zlib import crc32

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)

CONTROL_MAX: Final = 256 << 10  # bytes kept of the body of a packet other than PUBLISH; the rest of the body is skipped
_MAX_LENGTH_BYTES = 4  # of the field with the packet length (MQTT 5, section 1.5.5)

Control = Callable[[int, bytes], None]
Publish = Callable[["PublishHead", int, int], None]


class Malformed(ValueError):
    """The bytes are not MQTT."""


class PublishHead:
    """The fields of a PUBLISH before its payload.

    `mid` is the packet id, 0 with QoS 0. `properties` are raw bytes without their length; empty on MQTT 3.1.1.
    """

    __slots__ = ("first_byte", "mid", "properties", "topic")

    def __init__(self, first_byte: int, topic: bytes, mid: int, properties: bytes) -> None:
        self.first_byte = first_byte
        self.topic = topic
        self.mid = mid
        self.properties = properties

    @property
    def qos(self) -> int:
        """QoS: 0, 1 or 2."""
        return self.first_byte >> 1 & 3

    @property
    def dup(self) -> bool:
        """The dup flag: the sender may have sent this PUBLISH before."""
        return bool(self.first_byte & 8)

    @property
    def retain(self) -> bool:
        """The retain flag."""
        return bool(self.first_byte & 1)


class Scanner:
    """Scans the bytes of one direction of one connection.

    For each complete packet whose type is in `kinds`, it calls `on_control(kind, body)` with at most CONTROL_MAX bytes of the
    body. At the last byte of a PUBLISH whose topic satisfies `wanted`, it calls `on_publish(head, crc, size)`. `size` is the
    payload's size in bytes. `crc` is the payload's CRC-32 if `computes_crc` is true, else 0. All other packets are skipped. The
    attributes may change between two packets.
    """

    __slots__ = (
        *("_buffer", "_bytes_left", "_crc", "_head", "_needed", "_on_control", "_on_publish", "_size", "_stopped"),
        *("computes_crc", "kinds", "version", "wanted"),
    )

    def __init__(self, kinds: frozenset[int], on_control: Control, on_publish: Publish) -> None:
        self.kinds = kinds
        self.version = 4
        self.computes_crc = False
        self.wanted: Callable[[bytes], object] | None = None  # None: every PUBLISH is skipped
        self._on_control, self._on_publish = on_control, on_publish
        self._buffer = bytearray()  # the beginning of an incomplete packet
        self._needed = 0  # size that `_buffer` must reach before it is scanned again
        self._bytes_left = 0  # bytes of the current packet that have not arrived and will not be buffered
        self._head: PublishHead | None = None  # of the PUBLISH whose payload is arriving; `_bytes_left` counts its rest
        self._crc = self._size = 0  # of that payload
        self._stopped = False

    def stop(self) -> None:
        """Make `feed` return after the current packet."""
        self._stopped = True

    @property
    def unfinished(self) -> int:
        """Number of trailing bytes that belong to an incomplete packet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> int:
        """Scan bytes, and return how many were scanned: all, unless a callback called `stop`.

        Raises:
            Malformed: the stream is not MQTT; the scanner cannot be used any more.
        """
        offset, data_end = 0, len(data)
        self._stopped = False
        while offset < data_end and not self._stopped:
            if self._bytes_left:
                offset = self._skip_or_checksum(data, offset, data_end)
            elif self._buffer:
                offset = self._complete_buffer(data, offset, data_end)
            else:
                next_offset = self._packet(data, offset, data_end)
                if next_offset is None:
                    self._buffer += data[offset:]
                    return data_end
                offset = next_offset
        return offset

    def _skip_or_checksum(self, data: bytes, offset: int, data_end: int) -> int:
        """Consume bytes of a packet that is not buffered: add a wanted PUBLISH's payload to its CRC, or skip them.

        Reports the PUBLISH at its last byte. Returns the next offset.
        """
        part_end = min(data_end, offset + self._bytes_left)
        self._bytes_left -= part_end - offset
        head = self._head
        if head is not None:
            if self.computes_crc:
                self._crc = crc32(memoryview(data)[offset:part_end], self._crc)
            if not self._bytes_left:
                self._head = None
                self._on_publish(head, self._crc, self._size)
        return part_end

    def _complete_buffer(self, data: bytes, offset: int, data_end: int) -> int:
        """Add bytes to the buffered packet, and scan it when it has the needed size; return the next offset in `data`."""
        buffer = self._buffer
        part_end = min(data_end, offset + self._needed - len(buffer))
        buffer += data[offset:part_end]
        if len(buffer) == self._needed:
            next_offset = self._packet(bytes(buffer), 0, len(buffer))
            if next_offset is not None:  # None: `_packet` has raised `_needed`
                buffer.clear()
        return part_end

    def _packet(self, data: bytes, start: int, data_end: int) -> int | None:
        """Scan the packet that begins at `start`.

        Returns the offset of the first byte that is not scanned yet. If the packet is not buffered and its rest has not arrived,
        this is `data_end`, and `_bytes_left` is set. If more of the packet must be buffered first, sets `_needed` and returns
        None.
        """
        if data_end - start < 2:
            self._needed = 2  # the packet type, and the first byte of the length
            return None
        size, body = data[start + 1], start + 2
        if size > 127:  # the length has more than one byte
            length = _length(data, start + 1, data_end)
            if length is None:
                self._needed = data_end - start + 1
                return None
            size, body = length
        packet_end = body + size
        kind = data[start] >> 4
        if kind == PUBLISH and self.wanted is not None:
            return self._publish(data, start, body, packet_end, data_end)
        if not kind:
            raise Malformed("packet type 0")
        if kind in self.kinds:
            kept_end = min(packet_end, body + CONTROL_MAX)
            if kept_end > data_end:
                self._needed = kept_end - start
                return None
            self._bytes_left = packet_end - kept_end
            self._on_control(kind, data[body:kept_end])
            return kept_end
        return self._skip(packet_end, data_end)

    def _skip(self, packet_end: int, data_end: int) -> int:
        """Skip to the end of the packet, or as far as bytes have arrived; return the next offset."""
        if packet_end > data_end:
            self._bytes_left = packet_end - data_end
            return data_end
        return packet_end

    def _publish(self, data: bytes, start: int, body: int, packet_end: int, data_end: int) -> int | None:
        """Scan the PUBLISH that begins at `start` and has its body at `body`.

        Returns the next offset. If the bytes before the payload have not all arrived, sets `_needed` and returns None.
        """
        assert self.wanted is not None
        first_byte = data[start]
        topic_start = body + 2
        if topic_start > data_end:
            self._needed = topic_start - start
            return None
        topic_end = topic_start + (data[body] << 8 | data[body + 1])
        if topic_end > data_end:
            self._needed = topic_end - start
            return None
        topic = data[topic_start:topic_end]
        if not self.wanted(topic):
            return self._skip(packet_end, data_end)
        has_packet_id = first_byte & 6  # the bits of the QoS
        mid_end = topic_end + (2 if has_packet_id else 0)
        head_end = mid_end + 1 if self.version >= 5 else mid_end  # MQTT 5: at least one byte with the size of the properties
        if head_end > packet_end:
            raise Malformed("PUBLISH shorter than its head")
        if head_end > data_end:
            self._needed = head_end - start
            return None
        mid = data[topic_end] << 8 | data[topic_end + 1] if has_packet_id else 0
        payload_start, properties = mid_end, b""
        if self.version >= 5:
            properties_size, properties_start = data[mid_end], mid_end + 1
            if properties_size > 127:  # the size has more than one byte
                length = _length(data, mid_end, data_end)
                if length is None:
                    self._needed = data_end - start + 1
                    return None
                properties_size, properties_start = length
            payload_start = properties_start + properties_size
            if payload_start > packet_end:
                raise Malformed("PUBLISH shorter than its properties")
            if payload_start > data_end:
                self._needed = payload_start - start
                return None
            properties = data[properties_start:payload_start]
        head = PublishHead(first_byte, topic, mid, properties)
        return self._payload(head, data, payload_start, packet_end, data_end)

    def _payload(self, head: PublishHead, data: bytes, payload_start: int, packet_end: int, data_end: int) -> int:
        """Report the PUBLISH if its payload is complete, else keep its head until the rest arrives; return the next offset.

        The payload ends with the packet, which may reach beyond the bytes in `data`.
        """
        payload_size = packet_end - payload_start
        if packet_end <= data_end:
            crc = crc32(data[payload_start:packet_end]) if self.computes_crc else 0
            self._on_publish(head, crc, payload_size)
            return packet_end
        self._crc = crc32(memoryview(data)[payload_start:data_end]) if self.computes_crc else 0
        self._head = head
        self._size = payload_size
        self._bytes_left = packet_end - data_end
        return data_end


def _length(data: bytes, start: int, data_end: int) -> tuple[int, int] | None:
    """Decode the variable byte integer at `start`; return its value and end offset, or None if it is incomplete."""
    value = shift = 0
    for offset in range(start, min(data_end, start + _MAX_LENGTH_BYTES)):
        value |= (data[offset] & 127) << shift
        shift += 7
        if data[offset] < 128:
            return value, offset + 1
    if data_end - start >= _MAX_LENGTH_BYTES:
        raise Malformed("a length of more than four bytes")
    return None
