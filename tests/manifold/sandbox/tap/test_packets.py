"""Packet contents in EMQX's terms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifold.sandbox.tap.packets import read_ack, read_connect, read_disconnect, read_filters, string, variable
from manifold.sandbox.tap.properties import read_properties
from manifold.sandbox.tap.scanner import Malformed
from tests.manifold.sandbox.tap.raw_connection import connect, subscribe, user_properties

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


@given(st.lists(st.tuples(texts, texts), max_size=5))
def test_user_properties_appear_as_an_object_and_as_pairs(pairs: list[tuple[str, str]]) -> None:
    raw = b"".join(b"\x26" + string(key.encode()) + string(value.encode()) for key, value in pairs)

    properties = read_properties(raw)

    assert properties["User-Property"] == dict(pairs)
    assert [(pair["key"], pair["value"]) for pair in properties.get("User-Property-Pairs", [])] == pairs


def test_other_properties_have_emqx_names() -> None:
    raw = b"\x02\0\0\0\x64" + b"\x03" + string(b"text/plain") + b"\x08" + string(b"r/t") + b"\x09" + string(b"c1") + b"\x01\x01"

    assert read_properties(raw + b"\x0b\x80\x01") == {
        "Message-Expiry-Interval": 100,
        "Content-Type": "text/plain",
        "Response-Topic": "r/t",
        "Correlation-Data": "c1",
        "Payload-Format-Indicator": 1,
        "Subscription-Identifier": 128,
        "User-Property": {},
    }


@given(st.binary(max_size=60))
def test_invalid_properties_are_malformed(raw: bytes) -> None:
    try:
        properties = read_properties(raw)
    except Malformed:
        return
    assert "User-Property" in properties


def test_a_connect_packet_is_parsed() -> None:
    asked = read_connect(connect("VIN1", 5, clean=False, username="sdv-pub-x", expiry_s=300)[2:])

    assert (asked.client_id, asked.version, asked.clean_start, asked.keepalive_s) == ("VIN1", 5, False, 60)
    assert asked.username == "sdv-pub-x"
    assert asked.properties["Session-Expiry-Interval"] == 300


def test_the_user_name_is_found_after_a_will_with_properties() -> None:
    will = variable(5) + b"\x18\0\0\0\2" + string(b"ecp/V/online") + string(b"gone")
    body = string(b"MQTT") + bytes((5, 0x86, 0, 60)) + b"\0" + string(b"V") + will + string(b"sdv-recorder")

    assert read_connect(body).username == "sdv-recorder"


@pytest.mark.parametrize(
    ("body", "version", "ack"),
    [
        pytest.param(b"\0\7", 4, (7, 0, {"User-Property": {}}), id="3.1.1"),
        pytest.param(b"\0\7", 5, (7, 0, {"User-Property": {}}), id="5, short"),
        pytest.param(b"\0\7\x97", 5, (7, 0x97, {"User-Property": {}}), id="5, with a reason"),
        pytest.param(
            b"\0\7\x97\x04\x1f\0\1x", 5, (7, 0x97, {"Reason-String": "x", "User-Property": {}}), id="5, with a reason string"
        ),
        pytest.param(b"\0\7\x97\x7f\x1f", 5, (7, 0x97, {"User-Property": {}}), id="5, properties cut short: still an ack"),
    ],
)
def test_an_ack_is_parsed(body: bytes, version: int, ack: tuple[object, ...]) -> None:
    assert read_ack(body, version) == ack


@pytest.mark.parametrize("version", [4, 5])
def test_a_subscribe_packet_lists_its_filters(version: int) -> None:
    body = subscribe("agent/V/proxy/request/+", version, mid=9)[2:]
    assert read_filters(body, version, with_options=True) == (9, ["agent/V/proxy/request/+"])


def test_a_disconnect_may_change_the_session_expiry() -> None:
    properties = b"\x11\0\0\0\2" + user_properties(why="moved")

    reason, told = read_disconnect(b"\x04" + variable(len(properties)) + properties, 5)

    assert (reason, told["Session-Expiry-Interval"], told["User-Property"]) == (4, 2, {"why": "moved"})
