"""Any split of a byte stream gives the same packets."""

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifold.sandbox.tap.packets import packet, string, variable
from manifold.sandbox.tap.scanner import CONTROL_MAX, PUBACK, PUBLISH, SUBSCRIBE, Malformed, PublishHead, Scanner

Seen = tuple[object, ...]

topics = st.sampled_from([b"a", b"agent/V/proxy/request/r", b"ecp/V/online", b"skipped", b"t" * 200])
payloads = st.one_of(st.binary(max_size=200), st.integers(0, 70_000).map(lambda size: b"x" * size))


@st.composite
def publishes(draw: st.DrawFn) -> tuple[bytes, Seen | None]:
    topic, payload, qos = draw(topics), draw(payloads), draw(st.integers(0, 2))
    properties = draw(st.binary(max_size=300))
    mid = draw(st.integers(1, 0xFFFF)) if qos else 0
    body = string(topic) + (mid.to_bytes(2) if qos else b"") + variable(len(properties)) + properties + payload
    seen = (PUBLISH, topic, mid, qos, properties, crc32(payload), len(payload))
    return packet(PUBLISH << 4 | qos << 1, body), None if topic == b"skipped" else seen


@st.composite
def controls(draw: st.DrawFn) -> tuple[bytes, Seen | None]:
    kind, body = draw(st.sampled_from([PUBACK, SUBSCRIBE, 12, 13])), draw(st.binary(max_size=300))
    return packet(kind << 4, body), (kind, body) if kind in (PUBACK, SUBSCRIBE) else None


def scanner(seen: list[Seen]) -> Scanner:
    def publish(head: PublishHead, crc: int, size: int) -> None:
        seen.append((PUBLISH, head.topic, head.mid, head.qos, head.properties, crc, size))

    made = Scanner(frozenset({PUBACK, SUBSCRIBE}), lambda kind, body: seen.append((kind, body)), publish)
    made.version, made.computes_crc, made.wanted = 5, True, lambda topic: topic != b"skipped"
    return made


@given(st.lists(st.one_of(publishes(), controls()), max_size=8), st.lists(st.integers(1, 5000), max_size=60))
def test_any_split_of_the_bytes_gives_the_same_packets(packets: list[tuple[bytes, Seen | None]], sizes: list[int]) -> None:
    stream = b"".join(data for data, _ in packets)
    seen: list[Seen] = []
    it = scanner(seen)

    for size in sizes:
        chunk, stream = stream[:size], stream[size:]
        assert it.feed(chunk) == len(chunk)
    it.feed(stream)

    assert seen == [told for _, told in packets if told is not None]


@given(
    st.lists(st.one_of(publishes(), controls()), min_size=1, max_size=3).filter(lambda some: sum(len(p) for p, _ in some) < 3000)
)
def test_single_bytes_give_the_same_packets(packets: list[tuple[bytes, Seen | None]]) -> None:
    seen: list[Seen] = []
    it = scanner(seen)

    for byte in b"".join(data for data, _ in packets):
        it.feed(bytes((byte,)))

    assert seen == [told for _, told in packets if told is not None]


@given(st.binary(max_size=400), st.integers(1, 50))
def test_noise_is_skipped_or_reported_as_malformed(noise: bytes, size: int) -> None:
    it = scanner([])
    try:
        for at in range(0, len(noise), size):
            it.feed(noise[at : at + size])
    except Malformed:
        return


def test_a_huge_control_packet_is_reported_early_and_the_next_one_is_found() -> None:
    seen: list[Seen] = []
    it = scanner(seen)
    body = bytes(range(256)) * 4096

    stream = packet(SUBSCRIBE << 4, body) + packet(PUBACK << 4, b"\0\7")
    for at in range(0, len(stream), 65_536):
        it.feed(stream[at : at + 65_536])

    assert seen == [(SUBSCRIBE, body[:CONTROL_MAX]), (PUBACK, b"\0\7")]


def test_reading_stops_where_requested() -> None:
    seen: list[Seen] = []

    def control(kind: int, body: bytes) -> None:
        seen.append((kind, body))
        it.stop()

    it = Scanner(frozenset({PUBACK}), control, lambda *_: None)
    ack = packet(PUBACK << 4, b"\0\1")

    assert it.feed(ack + b"what follows") == len(ack)
    assert seen == [(PUBACK, b"\0\1")]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x00\x00", id="packet type 0"),
        pytest.param(b"\x30\xff\xff\xff\xff\x01", id="a length of five bytes"),
        pytest.param(b"\x32\x03\x00\x01a", id="no packet id"),
        pytest.param(b"\x30\x05\x00\x01a\x7fx", id="properties longer than the packet"),
    ],
)
def test_an_invalid_packet_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        scanner([]).feed(data)
