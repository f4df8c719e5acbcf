"""Properties that the library fails to decode."""

import struct
from typing import Any

import pytest
from pamqp.header import ContentHeader

from manifold.signals._decoding import MAX_HEADERS, read_any_properties
from manifold.signals._received import LEFT_OUT

CONTENT_TYPE, HEADERS, CORRELATION_ID, TIMESTAMP = 1 << 15, 1 << 13, 1 << 10, 1 << 6


def short(raw: bytes) -> bytes:
    return bytes([len(raw)]) + raw


def table(fields: bytes) -> bytes:
    return struct.pack(">I", len(fields)) + fields


def deep(levels: int) -> bytes:
    """A header value of nested lists."""
    value = b"V"
    for _ in range(levels):
        value = b"A" + table(value)
    return value


def read(flags: int, raw: bytes) -> Any:
    header = ContentHeader()
    header.unmarshal(struct.pack(">HHQH", 60, 0, 1, flags) + raw)
    return header.properties


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        pytest.param("Grüße".encode(), "Grüße", id="text"),
        pytest.param(bytes(range(0xF0, 0x100)), "?" * 16, id="a UUID in bytes"),
        pytest.param(b"a\xff" * 127, "a?" * 127, id="the longest allowed"),
        pytest.param(b"", "", id="empty"),
    ],
)
def test_invalid_text_keeps_its_length_and_later_properties_are_read(raw: bytes, text: str) -> None:
    read_any_properties()
    found = read(CORRELATION_ID | TIMESTAMP, short(raw) + struct.pack(">Q", 1_700_000_000))

    assert found.correlation_id == text
    assert found.timestamp.year == 2023


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 10**15])
def test_a_time_outside_the_calendar_is_none(value: int) -> None:
    read_any_properties()

    assert read(TIMESTAMP, struct.pack(">Q", value)).timestamp is None


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(short(b"deep") + deep(20_000), id="deep"),
        pytest.param(short(b"\xff") + b"V", id="a name that is not text"),
        pytest.param(short(b"many") + b"A" + table(b"V" * MAX_HEADERS), id="too many to read in time"),
        pytest.param(short(b"at") + b"T" + struct.pack(">Q", 2**63), id="a time"),
    ],
)
def test_unreadable_headers_are_skipped_and_later_properties_are_read(fields: bytes) -> None:
    read_any_properties()
    found = read(CONTENT_TYPE | HEADERS | CORRELATION_ID, short(b"application/json") + table(fields) + short(b"mine"))

    assert set(found.headers) == {LEFT_OUT}
    assert found.content_type == "application/json"
    assert found.correlation_id == "mine"
