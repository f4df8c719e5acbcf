"""Bytes into packets, in whatever pieces they come."""

import asyncio
from collections.abc import Iterator

import mqtt5
import pytest

from adapters._link import Link, length_of

QOS_1 = mqtt5.QoS.AT_LEAST_ONCE
SMALL = mqtt5.PublishPacket("a/b", b"1", qos=QOS_1, packet_id=1, user_properties=[("seq", "7")]).write()
LARGE = mqtt5.PublishPacket("a/b", bytes(300_000), qos=QOS_1, packet_id=2).write()
PUBACK = mqtt5.PubAckPacket(3).write()
NOT_UTF_8 = b"\x32\x08\x00\x02\xff\xfe\x00\x09\x00!"  # a PUBLISH, as a careless broker would pass it on


@pytest.fixture
def taken() -> list[mqtt5.Packet]:
    return []


@pytest.fixture
def link(taken: list[mqtt5.Packet]) -> Iterator[Link]:
    loop = asyncio.new_event_loop()

    async def make() -> Link:
        return Link(taken.append, lambda _: None)

    yield loop.run_until_complete(make())
    loop.close()


def ids(taken: list[mqtt5.Packet]) -> list[int | None]:
    return [packet.packet_id for packet in taken if isinstance(packet, mqtt5.PublishPacket | mqtt5.PubAckPacket)]


@pytest.mark.parametrize("piece", [1, 2, 5, 7, 4096, 1 << 20])
def test_packets_come_whole_and_in_order_in_pieces_of_any_size(link: Link, taken: list[mqtt5.Packet], piece: int) -> None:
    stream = SMALL + PUBACK + (LARGE if piece > 100 else SMALL) + PUBACK
    for at in range(0, len(stream), piece):
        link.data_received(stream[at : at + piece])
    assert ids(taken) == [1, 3, 2 if piece > 100 else 1, 3]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what mqtt5's panic leaves behind
@pytest.mark.parametrize("piece", [3, 1 << 20])
def test_a_packet_that_cannot_be_read_does_not_hold_up_the_next(link: Link, taken: list[mqtt5.Packet], piece: int) -> None:
    stream = SMALL + NOT_UTF_8 + PUBACK
    for at in range(0, len(stream), piece):
        link.data_received(stream[at : at + piece])
    assert ids(taken) == [1, 3]


@pytest.mark.parametrize(
    ("header", "length"),
    [(b"\x40", 0), (b"\x40\x02", 4), (b"\x30\x80", 0), (b"\x30\x80\x01", 131), (b"\x30\xff\xff\xff\x7f", (1 << 28) - 1 + 5)],
)
def test_the_length_of_a_packet_is_known_from_its_first_bytes(header: bytes, length: int) -> None:
    assert length_of(header) == length


def test_a_length_of_more_than_four_bytes_is_no_packet() -> None:
    assert length_of(b"\x30\xff\xff\xff\xff") is None
