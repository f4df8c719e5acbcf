"""Frames that are read and written by hand, as the library would; and properties that it alone does not read."""

import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from pamqp import frame
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from signals._decoding import read_any_properties
from signals._frames import ack, body_size, delivery_of, properties, properties_of, publish
from signals._received import LEFT_OUT

CONTENT_TYPE, HEADERS, CORRELATION_ID, TIMESTAMP = 1 << 15, 1 << 13, 1 << 10, 1 << 6


def short(raw: bytes) -> bytes:
    return bytes([len(raw)]) + raw


def table(fields: bytes) -> bytes:
    return struct.pack(">I", len(fields)) + fields


def deep(levels: int) -> bytes:
    """The value of a header: lists in lists."""
    value = b"V"
    for _ in range(levels):
        value = b"A" + table(value)
    return value


def read(flags: int, raw: bytes) -> Any:
    return properties_of(struct.pack(">HHQH", 60, 0, 1, flags) + raw)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        pytest.param("Grüße".encode(), "Grüße", id="text"),
        pytest.param(bytes(range(0xF0, 0x100)), "?" * 16, id="a UUID in bytes"),
        pytest.param(b"a\xff" * 127, "a?" * 127, id="as long as it may be"),
        pytest.param(b"", "", id="empty"),
    ],
)
def test_what_is_no_text_is_as_long_as_it_was_and_what_follows_is_read(raw: bytes, text: str) -> None:
    read_any_properties()
    found = read(CORRELATION_ID | TIMESTAMP, short(raw) + struct.pack(">Q", 1_700_000_000))

    assert found.correlation_id == text
    assert found.timestamp.year == 2023


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 10**15])
def test_a_time_that_no_calendar_has_is_none(value: int) -> None:
    read_any_properties()

    assert read(TIMESTAMP, struct.pack(">Q", value)).timestamp is None


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(short(b"deep") + deep(20_000), id="deep"),
        pytest.param(short(b"\xff") + b"V", id="a name that is no text"),
        pytest.param(short(b"at") + b"T" + struct.pack(">Q", 2**63), id="a time"),
    ],
)
def test_headers_that_cannot_be_read_are_left_out_and_what_follows_is_read(fields: bytes) -> None:
    read_any_properties()
    found = read(CONTENT_TYPE | HEADERS | CORRELATION_ID, short(b"application/json") + table(fields) + short(b"mine"))

    assert set(found.headers) == {LEFT_OUT}
    assert found.content_type == "application/json"
    assert found.correlation_id == "mine"


@pytest.mark.parametrize(
    "about",
    [
        pytest.param({}, id="none"),
        pytest.param({"content_type": "application/json", "headers": {"a": "b", "ü": "€" * 300}, "delivery_mode": 2}, id="usual"),
        pytest.param({"headers": {"a": "b"}, "correlation_id": "c", "message_id": "m", "priority": 3}, id="with ids"),
        pytest.param({"headers": {"a": 1, "b": [True, None, 0.5]}, "content_encoding": "gzip"}, id="no texts"),
        pytest.param({"headers": {"a": "b"}, "reply_to": "q", "expiration": "7", "app_id": "x", "user_id": "u"}, id="unusual"),
    ],
)
def test_properties_are_read_as_the_library_reads_them(about: dict[str, Any]) -> None:
    raw = ContentHeader(0, 5, Basic.Properties(**about)).marshal()
    read_any_properties()
    library = ContentHeader()
    library.unmarshal(raw)

    assert properties_of(raw) == library.properties
    assert (body_size(raw), properties_of(raw).headers or {}) == (5, about.get("headers", {}))


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 250])
def test_what_is_published_is_read_by_the_library_as_it_was_meant(size: int) -> None:
    at = 1_700_000_000
    about = properties("application/json", {"x-device-id": "d", "x-schema-version": "v1"}, "id", at)
    raw = publish(7, "iot.xray", "key", about, b"x" * size, mandatory=True, room=100)
    found = list[Any]()
    while raw:
        length, channel, one = frame.unmarshal(raw)
        raw = raw[length:]
        found.append(one)
        assert channel == 7
    command, header, *parts = found

    assert (command.exchange, command.routing_key, command.mandatory, command.immediate) == ("iot.xray", "key", True, False)
    assert header.properties == Basic.Properties(
        content_type="application/json",
        headers={"x-device-id": "d", "x-schema-version": "v1"},
        delivery_mode=2,
        message_id="id",
        timestamp=datetime.fromtimestamp(at, UTC),
    )
    assert (header.body_size, sum(len(part.value) for part in parts), len(parts)) == (size, size, -(-size // 100))


def test_a_delivery_is_read_as_the_library_reads_it() -> None:
    sent = Basic.Deliver("door-0", 2**40, True, "iot.xray", "a.key")
    raw = frame.marshal(sent, 1)[7:-1]

    assert delivery_of(raw) == ("door-0", 2**40, True, "iot.xray", "a.key")
    assert delivery_of(raw[:-5] + b"\xff\xfe\xfd\xfc\xfb")[4] == "\ufffd" * 5
    read: Any = frame.unmarshal(ack(7, 2**40))[2]
    assert (read.name, read.delivery_tag, read.multiple) == ("Basic.Ack", 2**40, False)
