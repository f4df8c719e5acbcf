"""Properties that the library fails to decode."""

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from aio_pika import IncomingMessage
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from manifold.signals._received import LEFT_OUT
from manifold.signals.compat import MAX_HEADERS, accept_any_properties

CONTENT_TYPE, HEADERS, DELIVERY_MODE, CORRELATION_ID, EXPIRATION, TIMESTAMP = (1 << bit for bit in (15, 13, 12, 10, 8, 6))


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
    accept_any_properties()
    found = read(CORRELATION_ID | TIMESTAMP, short(raw) + struct.pack(">Q", 1_700_000_000))

    assert found.correlation_id == text
    assert found.timestamp.year == 2023


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 10**15])
def test_a_time_outside_the_calendar_is_none(value: int) -> None:
    accept_any_properties()

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
    accept_any_properties()
    found = read(CONTENT_TYPE | HEADERS | CORRELATION_ID, short(b"application/json") + table(fields) + short(b"mine"))

    assert set(found.headers) == {LEFT_OUT}
    assert found.content_type == "application/json"
    assert found.correlation_id == "mine"


@pytest.mark.parametrize(("mode", "expires"), [(3, b"1"), (255, b"soon"), (2, b"1" * 255), (0, b"")])
def test_an_unknown_delivery_mode_or_expiration_keeps_no_message_back(mode: int, expires: bytes) -> None:
    accept_any_properties()
    header = SimpleNamespace(properties=read(DELIVERY_MODE | EXPIRATION, bytes([mode]) + short(expires)))
    delivered: Any = DeliveredMessage(Basic.Deliver("door-0", 1, False, "", "key"), header, b"{}", None)  # type: ignore[arg-type]  # nothing is sent

    assert IncomingMessage(delivered).body == b"{}"
