"""MQTT packets from bytes, for any chunking."""

import asyncio
from collections.abc import Iterator

import mqtt5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifold.messaging._connection import Connection, Endpoint
from manifold.messaging._raw import (
    LONGEST_PROPERTIES,
    length_of,
    publish_of,
    reason_of_disconnect,
    reason_of_puback,
    reasons_of_suback,
)

BROKER = Endpoint("127.0.0.1", 1883, tls=False)
QOS_1 = mqtt5.QoS.AT_LEAST_ONCE
SMALL = mqtt5.PublishPacket("a/b", b"1", qos=QOS_1, packet_id=1, user_properties=[("seq", "7")]).write()
LARGE = mqtt5.PublishPacket("a/b", bytes(300_000), qos=QOS_1, packet_id=2).write()
PUBACK = mqtt5.PubAckPacket(3).write()


@pytest.fixture
def taken() -> list[mqtt5.Packet]:
    return []


@pytest.fixture
def raw() -> list[bytes]:
    return []


@pytest.fixture
def connection(taken: list[mqtt5.Packet], raw: list[bytes]) -> Iterator[Connection]:
    loop = asyncio.new_event_loop()

    async def make() -> Connection:
        return Connection(BROKER, taken.append, lambda packet, _: raw.append(packet), lambda _: None)

    yield loop.run_until_complete(make())
    loop.close()


def ids(taken: list[mqtt5.Packet]) -> list[int | None]:
    return [packet.packet_id for packet in taken if isinstance(packet, mqtt5.PublishPacket | mqtt5.PubAckPacket)]


@pytest.mark.parametrize("piece", [1, 2, 5, 7, 4096, 1 << 20])
def test_packets_arrive_whole_and_in_order_for_any_chunking(
    connection: Connection, taken: list[mqtt5.Packet], piece: int
) -> None:
    stream = SMALL + PUBACK + (LARGE if piece > 100 else SMALL) + PUBACK
    for at in range(0, len(stream), piece):
        connection.data_received(stream[at : at + piece])
    assert ids(taken) == [1, 3, 2 if piece > 100 else 1, 3]


def packet(head: int, *body: bytes) -> bytes:
    return bytes([head]) + number(sum(map(len, body))) + b"".join(body)


def number(value: int) -> bytes:
    """A variable byte integer."""
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + number(value >> 7)


def text(content: bytes) -> bytes:
    return len(content).to_bytes(2) + content


def publish(topic: bytes, properties: bytes, mid: bytes = b"\x01\x02", head: int = 0x32) -> bytes:
    return packet(head, text(topic), mid, number(len(properties)), properties, b"payload")


BAD = b"\xff"
PAIR, REASON = b"\x26", b"\x1f"  # a user property, and a Reason String
A_PAIR = PAIR + text(b"k") + text(BAD)
LONG = (PAIR + text(b"") + text(b"")) * (LONGEST_PROPERTIES // 5 + 1)
UNREADABLE = [
    pytest.param(publish(BAD, b""), ("\ufffd", 1, 0x102), id="topic"),
    pytest.param(publish(b"t", A_PAIR), ("t", 1, 0x102), id="value of a user property"),
    pytest.param(publish(b"t", PAIR + text(BAD) + text(b"v")), ("t", 1, 0x102), id="name of a user property"),
    pytest.param(publish(b"t", b"\x08" + text(BAD)), ("t", 1, 0x102), id="Response Topic"),
    pytest.param(publish(b"t", b"\x03" + text(b"\xed\xa0\x80")), ("t", 1, 0x102), id="a lone surrogate as Content Type"),
    pytest.param(publish(b"t", b"\x7f\0"), ("t", 1, 0x102), id="an unknown property"),
    pytest.param(publish(b"t", PAIR + b"\x40\0k"), ("t", 1, 0x102), id="a property longer than the packet"),
    pytest.param(publish(b"t" * 65_535, A_PAIR), ("t" * 65_535, 1, 0x102), id="the longest topic"),
    pytest.param(publish(b"", b""), ("", 1, 0x102), id="no topic"),
    pytest.param(publish(b"t", LONG), ("t", 1, 0x102), id="properties of 256 KiB"),
    pytest.param(publish(b"t", A_PAIR, mid=b"", head=0x30), ("t", 0, 0), id="QoS 0"),
    pytest.param(publish(b"t", A_PAIR, head=0x34), ("t", 2, 0x102), id="QoS 2"),
    pytest.param(publish(b"t", b"", head=0x36), ("t", 2, 0x102), id="QoS 3"),
    pytest.param(packet(0x32), ("", 0, 0), id="empty"),
    pytest.param(packet(0x32, b"\xff\xffabc"), ("abc", 0, 0), id="a topic longer than the packet"),
    pytest.param(packet(0x32, b"\0\1t\7"), ("t", 0, 0), id="half a packet id"),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # left behind by mqtt5's panic
@pytest.mark.parametrize("piece", [3, 1 << 20])
@pytest.mark.parametrize(("bad", "told"), UNREADABLE)
def test_an_unreadable_packet_is_passed_on_and_does_not_block_the_next(
    connection: Connection, taken: list[mqtt5.Packet], raw: list[bytes], bad: bytes, told: tuple[str, int, int], piece: int
) -> None:
    stream = SMALL + bad + PUBACK
    piece = max(piece, len(stream) // 1000)
    for at in range(0, len(stream), piece):
        connection.data_received(stream[at : at + piece])
    assert ids(taken) == [1, 3]
    assert raw == [bad]
    message = publish_of(bad)
    assert (message.topic, message.qos, message.mid) == told


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@given(st.binary(max_size=60), st.sampled_from([0x30, 0x32, 0x34, 0x3B, 0x20, 0x40, 0x90, 0xE0, 0xF0, 0]))
def test_no_packet_content_stops_later_packets(body: bytes, head: int) -> None:
    taken: list[mqtt5.Packet] = []
    raw: list[bytes] = []

    async def receive() -> None:
        connection = Connection(BROKER, taken.append, lambda each, _: raw.append(each), lambda _: None)
        connection.data_received(packet(head, body) + PUBACK)

    asyncio.run(receive())
    assert isinstance(taken[-1], mqtt5.PubAckPacket)
    assert len(taken) + len(raw) == 2
    for each in raw:
        publish_of(each), reason_of_puback(each), reasons_of_suback(each), reason_of_disconnect(each)


def test_unreadable_acks_still_name_their_packet_id_and_reason_code() -> None:
    reason = REASON + text(BAD)
    assert reason_of_puback(packet(0x40, b"\1\2\x87", number(len(reason)), reason)) == (0x102, 0x87)
    assert reason_of_puback(packet(0x40, b"\1\2\x55")) == (0x102, 0x55)
    assert reason_of_puback(packet(0x40, b"\1\2")) == (0x102, 0)
    assert reason_of_puback(packet(0x40, b"\1")) == (1, 0x80)
    assert reasons_of_suback(packet(0x90, b"\1\2", number(len(reason)), reason, b"\1\x87")) == (0x102, b"\1\x87")
    assert reasons_of_suback(packet(0x90, b"\1\2\0\x55")) == (0x102, b"\x55")
    assert reasons_of_suback(packet(0x90, b"\1\2")) == (0x102, b"\x80")
    assert reason_of_disconnect(packet(0xE0, b"\x8e", number(len(reason)), reason)) == 0x8E
    assert reason_of_disconnect(packet(0xE0)) == 0


@pytest.mark.parametrize(
    ("header", "length"),
    [(b"\x40", 0), (b"\x40\x02", 4), (b"\x30\x80", 0), (b"\x30\x80\x01", 131), (b"\x30\xff\xff\xff\x7f", (1 << 28) - 1 + 5)],
)
def test_the_length_of_a_packet_is_known_from_its_first_bytes(header: bytes, length: int) -> None:
    assert length_of(header) == length


def test_a_length_of_more_than_four_bytes_is_not_a_packet() -> None:
    assert length_of(b"\x30\xff\xff\xff\xff") is None
