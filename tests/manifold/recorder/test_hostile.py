"""For any input, the recorder keeps accepting other messages and stores the bytes with the reason."""

import asyncio
import json
from pathlib import Path

import pytest

from manifold.contracts import topics
from manifold.contracts.ecq import Append
from manifold.contracts.envelope import Stream
from manifold.contracts.messages import Trigger
from manifold.messaging.mqtt import Message
from manifold.recorder._poison_messages import PoisonGuard
from manifold.recorder._receipts import MAX_BYTES, MAX_LEVELS
from manifold.settings import Settings
from tests.manifold.recorder.cabled import through_cable
from tests.manifold.recorder.harness import Harness, harness, metric, running_harness
from tests.manifold.recorder.publisher import platform
from tests.support.careless import BAD, GOOD
from tests.support.servers import wait_until
from tests.support.wire import trigger

RECEIVE_MAXIMUM = 20


def deep(depth: int) -> bytes:
    return b'{"ids": ["V1"], "request_id": ' + b"[" * depth + b"]" * depth + b', "data_id": "d"}'


HOSTILE = [
    *map(deep, range(975, 1000)),
    deep(500_000),
    b'{"ids": [' + b"[" * 992 + b"]" * 992 + b'], "request_id": "r", "data_id": "d"}',
    b'{"ids": ' + b"9" * 5000 + b', "request_id": "r", "data_id": "d"}',
    b'{"ids": [' + b"9" * 4300 + b'], "request_id": "r", "data_id": "d"}',
    b'{"ids": [1e999], "request_id": NaN, "data_id": "d"}',
    b'{"ids": ["\\ud800"], "request_id": "r", "data_id": "d"}',
    b'{"ids": ["V1"], "request_id": "\\udfff", "data_id": "d"}',
    b'{"ids": ["V1"], "request_id": "r", "data": "\\ud800"}',
    b'{"ids": ["V\\u0000"], "request_id": "r", "data_id": "d"}',
    json.dumps({"ids": ["HOSTILE"], "request_id": "r", "data_id": "d"}).encode("utf-16"),
    b"",
    b"\0" * 1000,
]


def test_no_trigger_crashes_the_recorder_or_comes_twice(shared: Harness) -> None:
    async def scenario() -> None:
        async with platform(shared.broker.port) as publisher:
            for payload in HOSTILE:
                receipt = await publisher.send(topics.TRIGGER, payload)
                assert receipt["status"] == "refused", payload[:100]
                assert len(receipt["reason"]) < 1000
            assert (await publisher.trigger(["HOSTILE"], "good"))["status"] == "recorded"

    asyncio.run(scenario())
    assert shared.running.process.poll() is None
    shared.flush()
    refused = [e.payload for e in shared.archived(Stream.TRIGGER) if e.refused_because]
    assert [refused.count(payload) for payload in HOSTILE] == [1] * len(HOSTILE)


def test_properties_of_any_size_are_accepted(shared: Harness) -> None:
    async def scenario() -> None:
        async with platform(shared.broker.port) as publisher:
            many = [(f"name{n}", "v" * n) for n in range(700)]
            receipt = await publisher.send(topics.TRIGGER, trigger(["PROPERTIES"], "many"), user_properties=many)
            assert receipt["status"] == "recorded"
            too_many = [(f"name{n}", "v" * 1000) for n in range(300)]
            await publisher.client.publish(topics.TRIGGER, trigger(["PROPERTIES"], "more"), user_properties=too_many)
            client = publisher.client
            longest, echo = b"c" * 65_535, trigger(["PROPERTIES"], "echo")
            await client.publish(topics.TRIGGER, echo, correlation_data=longest, response_topic=publisher.response_topic)
            await publisher.trigger(["PROPERTIES"], "last")

    asyncio.run(scenario())
    shared.flush()
    kept = {e.refused_because: e for e in shared.archived(Stream.TRIGGER) if b"PROPERTIES" in e.payload}
    assert len(shared.pending("PROPERTIES")) == 3
    (reason,) = [reason for reason in kept if reason]
    assert "properties are over" in reason
    assert b"name299" in kept[reason].payload  # the packet as received


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param("/".join("a" * 1000), id="a thousand levels"),
        pytest.param("/".join("a" * (MAX_LEVELS + 1)), id="too many levels"),
        pytest.param("a" * 60_000, id="60,000 characters"),
        pytest.param("é" * (MAX_BYTES // 2), id="too many bytes of UTF-8"),
        pytest.param("", id="nothing after the prefix"),
    ],
)
def test_no_receipt_is_sent_to_a_topic_for_which_a_broker_disconnects(shared: Harness, behind: str) -> None:
    async def scenario() -> None:
        async with platform(shared.broker.port) as publisher:
            client = publisher.client
            before = shared.connections()
            await client.publish(topics.TRIGGER, trigger(["LEVELS"], "r"), response_topic=topics.RECEIPT_PREFIX + behind)
            await publisher.trigger(["LEVELS"], "good")
            assert shared.connections() == before

    asyncio.run(scenario())


def test_a_broker_that_disconnects_for_a_receipt_does_not_loop_forever(tmp_path: Path) -> None:
    """Mosquitto accepts such a Response Topic and disconnects its publisher; with this prefix, the recorder publishes to it."""
    prefix, asking = "a/" * 250, 5

    async def scenario(home: Harness) -> None:
        async with platform(home.broker.port) as publisher:
            client = publisher.client
            home.stop_recorder()
            for n in range(asking):
                await client.publish(topics.TRIGGER, trigger(["CUT"], f"r{n}"), response_topic=prefix + "x")
            await asyncio.to_thread(home.start)
            await client.publish(topics.TRIGGER, trigger(["CUT"], "good"))
            await asyncio.to_thread(
                wait_until, lambda: len(home.pending("CUT")) == asking + 1, what="all six triggers to be queued"
            )
            await asyncio.to_thread(
                wait_until, lambda: metric(home, "manifold_recorder_held_bytes") == 0, what="all messages to be settled"
            )

    with running_harness(tmp_path, receipt_prefix=prefix) as home:
        before = home.connections()
        asyncio.run(scenario(home))
        wait_until(home.is_healthy, what="the recorder to be healthy")
        # Messages synced together are settled together, so the number of disconnects varies; but it is bounded.
        assert home.connections() - before <= 3 * asking
        home.flush()
        assert [e.duplicate_of for e in home.archived(Stream.TRIGGER)].count(None) == asking + 1


def test_any_number_of_unreadable_packets_is_kept_and_acknowledged(tmp_path: Path) -> None:
    many = 3 * RECEIVE_MAXIMUM

    async def scenario(home: Harness) -> None:
        async with through_cable(home) as (cable, publisher):
            client = publisher.client
            for n in range(many):
                await client.publish(topics.TRIGGER, trigger(["SPOILT"], f"r{n}"), user_properties=[("name", GOOD)])
            await client.publish(topics.data_topic("spoilt"), b"bytes", user_properties=[(GOOD, "value")])
            assert (await publisher.trigger(["SPOILT"], "good"))["status"] == "recorded"
            cable.cut()
            assert (await publisher.trigger(["SPOILT"], "after"))["status"] == "recorded"
            await asyncio.to_thread(home.flush)

    with harness(tmp_path, mqtt_receive_maximum=str(RECEIVE_MAXIMUM), mqtt_shared="off") as home:
        home.load()
        asyncio.run(scenario(home))
        assert len(home.pending("SPOILT")) == 2
        refused = [e for e in home.archived(Stream.TRIGGER) if e.refused_because]
        assert len(refused) == many
        assert all("cannot be read (a text in it is not UTF-8)" in str(e.refused_because) for e in refused)
        assert all(e.topic == topics.TRIGGER and BAD in e.payload and e.payload[0] >> 4 == 3 for e in refused)
        (data,) = home.archived(Stream.DATA)
        assert data.refused_because is not None
        assert (data.topic, b"bytes" in data.payload) == (topics.data_topic("spoilt"), True)


def test_a_message_that_crashed_the_recorder_is_quarantined_on_redelivery(tmp_path: Path) -> None:
    fatal = trigger(["FATAL"], "fatal")

    async def scenario(home: Harness) -> None:
        async with platform(home.broker.port) as publisher:
            receipt = await publisher.publish(topics.TRIGGER, fatal)
            await publisher.publish(topics.TRIGGER, trigger(["FATAL"], "innocent"))
            await asyncio.to_thread(home.running.process.wait, 30)
            await asyncio.to_thread(home.start)
            answer = await receipt
            assert answer["status"] == "refused"
            assert "parsing it crashed the process twice" in answer["reason"]
            again = await publisher.send(topics.TRIGGER, fatal)
            assert again["status"] == "refused"
            assert (await publisher.trigger(["FATAL"], "good"))["status"] == "recorded"

    with harness(tmp_path) as home:
        home.module = "tests.manifold.recorder.dying_recorder"
        home.load()
        home.start()
        home.wait_direct_enqueue()
        asyncio.run(scenario(home))
        assert home.running.process.poll() is None
        assert len(home.pending("FATAL")) == 2
        home.flush()
        assert [e.payload for e in home.archived(Stream.TRIGGER) if e.refused_because] == [fatal, fatal]


def test_a_message_in_hand_when_the_recorder_was_killed_is_still_accepted(tmp_path: Path) -> None:
    def poison_guard() -> PoisonGuard:
        found = PoisonGuard(tmp_path / "in-hand", Settings(home=tmp_path))
        found.load()
        return found

    innocent, other = (Message(topics.TRIGGER, trigger(["V1"], name)) for name in ("r1", "r2"))
    poison_guard().begin_parsing(innocent)
    poison_guard().begin_parsing(other)
    after = poison_guard()
    after.begin_parsing(other)
    after.end_parsing()
    for later in (after, poison_guard()):
        assert later.is_suspect(innocent)
        assert later.is_suspect(other)
        assert not later.is_suspect(Message(topics.TRIGGER, trigger(["V1"], "r3")))
    assert asyncio.run(after.parse(innocent)) == (Stream.TRIGGER, Trigger(("V1",), "r1", "d"))  # type: ignore[arg-type]
    write = Message("$ECQ/w/V1/a", b"x")
    assert asyncio.run(after.parse(write)) == (Stream.ECQ, Append("V1", "a", b"x"))  # type: ignore[arg-type]
