"""The bytes of a connection in any split: messages are extracted, and other frames reach the library unchanged."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import frame
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from manifold.signals._amqp_frames import Frames, FrameStream

OURS, OTHER = 1, 2
ROOM = 50  # body bytes per frame
HEARTBEAT = Heartbeat().marshal()
Said = tuple[Any, ...]


def raw(what: Any, channel: int = OURS) -> bytes:
    return frame.marshal(what, channel)


def content(body: bytes, **about: Any) -> bytes:
    parts = [body[start : start + ROOM] for start in range(0, len(body), ROOM)]
    header = ContentHeader(0, len(body), Basic.Properties(**about))
    return raw(header) + b"".join(raw(ContentBody(part)) for part in parts)


def delivered(tag: int, body: bytes) -> bytes:
    return raw(Basic.Deliver("door-0", tag, tag % 2 == 1, "iot.xray", "key")) + content(body, headers={"n": tag, "of": ["a"]})


@st.composite
def spoken(draw: st.DrawFn) -> tuple[bytes, list[Said], bytes]:
    """Bytes of a server, the messages in them, and the bytes of other frames."""
    wire, said, others = b"", list[Said](), b""
    for tag in range(1, draw(st.integers(1, 8)) + 1):
        match draw(st.sampled_from(["delivery", "ack", "nack", "returned", "of another channel", "heartbeat", "of no message"])):
            case "delivery":
                body = draw(
                    st.sampled_from([b"", b"\xce", b"x" * (ROOM - 1), b"y" * ROOM, b"z" * (ROOM + 1), b"\xce" * 3 * ROOM])
                )
                wire, said = wire + delivered(tag, body), [*said, ("delivered", tag, tag % 2 == 1, body)]
            case "ack":
                wire, said = wire + raw(Basic.Ack(tag, True)), [*said, ("confirmed", tag, True, True)]
            case "nack":
                wire, said = wire + raw(Basic.Nack(tag)), [*said, ("confirmed", tag, False, False)]
            case "returned":
                wire += raw(Basic.Return(312, "NO_ROUTE", "iot.xray", "key")) + content(b"back" * tag * 10)
                said = [*said, ("returned", "NO_ROUTE")]
            case "of another channel":
                one = raw(Basic.Deliver("theirs", tag, False, "", "key"), OTHER) + raw(ContentHeader(0, 2), OTHER)
                one += raw(ContentBody(b"xy"), OTHER)
                wire, others = wire + one, others + one
            case "heartbeat":
                wire += HEARTBEAT
            case _:
                one = raw(Channel.Flow(True))
                wire, others = wire + one, others + one
    return wire, said, others


def heard(parts: list[bytes]) -> tuple[list[Said], bytes]:
    """The messages found in this split, and the bytes that reach the library, without heartbeats, which the transport adds."""

    async def scenario() -> tuple[list[Said], bytes]:
        said, wire = list[Said](), FrameStream()
        wire.channel = OURS
        wire.delivered = lambda found: said.extend(
            ("delivered", one.by.delivery_tag, one.by.redelivered, one.body) for one in found if checked(one)
        )
        wire.confirmed = lambda *about: said.append(("confirmed", *about))
        wire.returned = lambda why: said.append(("returned", why))
        reader = asyncio.StreamReader()
        protocol = Frames(reader, wire, asyncio.get_running_loop())
        for part in parts:
            protocol.data_received(part)
        reader.feed_eof()
        return said, (await reader.read()).replace(HEARTBEAT, b"")

    return asyncio.run(scenario())


def checked(one: Any) -> bool:
    return bool(one.properties.headers == {"n": one.by.delivery_tag, "of": ["a"]})


def order(said: list[Said]) -> tuple[list[Said], list[Said]]:
    """Sort by kind: deliveries are reported together, after the other frames of a read."""
    return [one for one in said if one[0] == "delivered"], [one for one in said if one[0] != "delivered"]


@settings(max_examples=200, deadline=None)
@given(spoken(), st.data())
def test_any_split_of_the_bytes_gives_the_same_messages(what: tuple[bytes, list[Said], bytes], data: st.DataObject) -> None:
    wire, said, others = what
    cuts = sorted(data.draw(st.sets(st.integers(0, len(wire)), max_size=12)))
    found, passed_on = heard([wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)])

    assert order(found) == order(said)
    assert passed_on == others


def test_single_bytes_give_the_same_messages() -> None:
    wire = delivered(1, b"x" * (ROOM + 1)) + raw(Basic.Ack(7)) + delivered(2, b"") + HEARTBEAT
    found, passed_on = heard([wire[at : at + 1] for at in range(len(wire))])

    assert order(found) == (
        [("delivered", 1, True, b"x" * (ROOM + 1)), ("delivered", 2, False, b"")],
        [("confirmed", 7, False, True)],
    )
    assert passed_on == b""


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="another protocol"),
        pytest.param(raw(Basic.Ack(1))[:-1] + b"\x00", id="a frame without its end"),
        pytest.param(raw(ContentHeader(0, 1)), id="a header without its message"),
        pytest.param(raw(ContentBody(b"x")), id="a body without its message"),
    ],
)
def test_frames_other_than_messages_are_left_to_the_library(garbage: bytes) -> None:
    assert heard([garbage]) == ([], garbage)
