"""Answers of vehicles through a real broker and recorder: what is recorded, and what a flood of them costs others."""

import asyncio
import json
import math
from collections.abc import Iterator
from itertools import count as count_up
from pathlib import Path
from typing import Any

import pytest

from manifold.contracts import topics
from manifold.contracts.envelope import Stream
from manifold.messaging.mqtt import Message, Mqtt
from manifold.recorder._answers import Answers
from manifold.recorder._parser import Incoming
from manifold.recorder._rate_limit import BURST, MAX_KEPT_BYTES
from manifold.settings import Settings
from manifold.settings.embedded_broker import MAX_INFLIGHT
from tests.manifold.recorder.harness import Harness, harness, metric, running_harness
from tests.manifold.recorder.publisher import platform
from tests.support.servers import start_mosquitto, wait_until
from tests.support.wire import trigger

FLOOD = 5000


def answer(status: str = "done", seq: int = 7, **more: Any) -> bytes:
    return json.dumps({"seq": seq, "status": status, **more}).encode()


def recorded(home: Harness, vin: str) -> list[tuple[bytes, bool]]:
    """The archived answers of a vehicle, and whether each was accepted."""
    home.flush()
    topic = topics.response_topic("agent", vin, "maps-47")
    return [(e.payload, e.refused_because is None) for e in home.archived(Stream.ANSWER) if e.topic == topic]


def say(home: Harness, vin: str, *payloads: bytes, **properties: Any) -> None:
    """Publish as the vehicle, in order; returns when the broker has them."""

    async def send() -> None:
        async with Mqtt(f"mqtt://127.0.0.1:{home.broker.port}", vin) as vehicle:
            await vehicle.wait_connected()
            topic = topics.response_topic("agent", vin, "maps-47")
            await asyncio.gather(*(vehicle.publish(topic, payload, **properties) for payload in payloads))
            await vehicle.publish(f"agent/{vin}/proxy/request/end", b"")  # QoS 1: those of QoS 0 before it have arrived

    asyncio.run(send())


def count(home: Harness, status: str) -> float:
    """The answers that ended so, by the recorder's metric."""
    found = metric(home, f'manifold_recorder_messages_total{{status="{status}",stream="answer"}}')
    return 0 if math.isnan(found) else found


def test_an_answer_is_recorded_and_enters_no_queue(shared: Harness) -> None:
    keys = shared.keys("*")
    say(shared, "SAYS", answer("busy", reason="in motion"), answer())

    wait_until(lambda: len(recorded(shared, "SAYS")) == 2, what="both answers to be archived")
    assert recorded(shared, "SAYS") == [(answer("busy", reason="in motion"), True), (answer(), True)]
    assert {key for key in shared.keys("*") if "SAYS" in key} == set()
    assert set(shared.keys("q:*")) == {key for key in keys if key.startswith("q:")}


def test_retained_answers_and_those_of_qos_0_are_recorded_once(home: Harness) -> None:
    say(home, "KEPT", answer(), retain=True)
    say(home, "LIGHT", answer(), qos=0)

    wait_until(lambda: count(home, "recorded") == 2, what="both answers to be recorded")
    home.stop_recorder()
    home.start()
    say(home, "LAST", answer())
    wait_until(lambda: recorded(home, "LAST") != [], what="the last answer to be archived")
    assert recorded(home, "KEPT") == recorded(home, "LIGHT") == [(answer(), True)]


def test_answers_wait_at_the_broker_while_the_recorder_is_away(home: Harness) -> None:
    wait_until(lambda: home.health()["problems"] == [], what="the recorder to be subscribed")
    home.running.kill()
    for n in range(1, BURST):
        say(home, "WAITS", answer(seq=n))
    home.start()

    wait_until(lambda: count(home, "recorded") == BURST - 1, what="all answers to be recorded")
    assert recorded(home, "WAITS") == [(answer(seq=n), True) for n in range(1, BURST)]


def test_a_malformed_answer_is_quarantined_and_a_foreign_response_is_not_recorded(shared: Harness) -> None:
    huge = answer(reason="x" * 1_000_000)
    ignored = count(shared, "ignored")
    say(shared, "ODD", b"\x00 my own protocol", b'{"status": "ok"}', answer("perhaps"), huge, answer())

    wait_until(lambda: len(recorded(shared, "ODD")) == 3, what="three answers to be archived")
    assert recorded(shared, "ODD") == [(answer("perhaps"), False), (huge[:MAX_KEPT_BYTES], False), (answer(), True)]
    assert count(shared, "ignored") == ignored + 2
    reasons = [e.refused_because for e in shared.archived(Stream.ANSWER) if "/ODD/" in e.topic]
    assert reasons[0] == 'status "perhaps" must be one of busy, failed, refused, done'
    assert str(reasons[1]).startswith(f"an answer of {len(huge)} bytes is over 4096")


def test_a_vehicle_that_answers_endlessly_fills_no_journal(home: Harness) -> None:
    flood = 300
    say(home, "LOUD", *(answer(seq=n + 1) for n in range(flood)))
    say(home, "CALM", answer())

    wait_until(lambda: count(home, "dropped") == flood - BURST - 1, what="the flood to be counted")
    wait_until(lambda: recorded(home, "CALM") == [(answer(), True)], what="the answer of another vehicle")
    assert [accepted for _, accepted in recorded(home, "LOUD")] == [True] * BURST + [False]


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Harness]:
    """With a broker that sends a few messages of a session at once, as the sandbox's and EMQX do."""
    with harness(tmp_path) as home:
        home.broker.stop()
        home.broker = start_mosquitto(tmp_path / "narrow", extra=f"max_inflight_messages {MAX_INFLIGHT}")
        home.load()
        home.start()
        yield home


def test_triggers_are_recorded_during_a_flood_of_answers(narrow: Harness) -> None:
    """Both wait at the broker, the trigger behind all answers; it is recorded before most of them."""
    home = narrow
    wait_until(lambda: home.health()["problems"] == [], what="the recorder to be subscribed")
    home.running.kill()

    async def scenario() -> int:
        async with platform(home.broker.port) as publisher:
            for start in range(0, FLOOD, 500):
                names = (topics.response_topic("agent", f"FLOOD{n}", "maps-47") for n in range(start, start + 500))
                await asyncio.gather(*(publisher.client.publish(name, answer()) for name in names))
            receipt = await publisher.publish(topics.TRIGGER, trigger(["V1"], "urgent"))
            await asyncio.to_thread(home.start)
            return int((await receipt)["seq"])

    seq = asyncio.run(scenario())
    wait_until(lambda: count(home, "recorded") == FLOOD, what="all answers to be recorded")
    home.flush()
    assert sum(e.seq < seq for e in home.archived(Stream.ANSWER)) < FLOOD // 10
    assert len(home.archived(Stream.ANSWER)) == FLOOD


def test_an_answer_gets_no_receipt(shared: Harness) -> None:
    """A vehicle could have the recorder write to a publisher's topic."""

    async def scenario() -> None:
        async with platform(shared.broker.port) as publisher:
            topic = topics.response_topic("agent", "ASKS", "maps-47")
            receipts = [await publisher.publish(topic, payload) for payload in (answer(), answer("perhaps"))]
            await asyncio.to_thread(wait_until, lambda: len(recorded(shared, "ASKS")) == 2, what="both to be archived")
            await publisher.trigger(["V1"], "receipts")
            assert [receipt.done() for receipt in receipts] == [False, False]

    asyncio.run(scenario())


def test_the_recorder_hears_no_answers_where_the_setting_is_off(tmp_path_factory: Any) -> None:
    with running_harness(tmp_path_factory.mktemp("deaf"), campaign_answers="false") as deaf:
        say(deaf, "UNHEARD", answer())
        asyncio.run(_one_batch(deaf))
        assert deaf.health()["problems"] == []
        assert recorded(deaf, "UNHEARD") == []


async def _one_batch(home: Harness) -> None:
    async with platform(home.broker.port) as publisher:
        assert (await publisher.trigger(["V1"], "after"))["status"] == "recorded"


def test_an_answer_whose_parsing_fails_is_refused_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    async def scenario() -> list[Incoming]:
        seqs = count_up(1)
        mqtt = Mqtt("mqtt://127.0.0.1:1", "sdv-recorder-0-answers")
        async with Answers(Settings(), mqtt, lambda: next(seqs)) as answers:
            for payload in (answer(), answer(seq=8)):
                mqtt.on_message(Message(topics.response_topic("agent", "V1", "maps-47"), payload))
            return answers.take()

    monkeypatch.setattr("manifold.recorder._answers.parse_answer", fail)
    first, second = asyncio.run(scenario())
    assert str(first.refused_because).startswith("parsing it failed (MemoryError)")
    assert (first.seq, second.seq, second.envelope.payload) == (1, 2, answer(seq=8))
