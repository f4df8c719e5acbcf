"""The recorder as a process, with a real broker and Redis: accepting, recording, enqueueing and its messages."""

import asyncio
import base64
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from manifold.archive.flush import flush
from manifold.contracts import keys, topics
from manifold.contracts.envelope import Stream
from manifold.contracts.messages import sha1_hex
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.messaging.mqtt import Mqtt
from manifold.settings import Settings
from tests.manifold.recorder.harness import Harness, running_harness
from tests.manifold.recorder.publisher import platform
from tests.support.lake_rows import append_payloads, new_lake
from tests.support.servers import free_port, wait_until
from tests.support.wire import trigger


def test_an_accepted_batch_is_queued_and_archived(home: Harness) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as vehicle_platform:
            data = await vehicle_platform.send(topics.data_topic("d"), b"\x00bytes")
            batch = await vehicle_platform.trigger(["V1", "V2"], "task_a_1")
            assert (data["status"], batch["status"]) == ("recorded", "recorded")
            assert home.pending("V1") == home.pending("V2") == [batch["seq"]]
            assert home.redis.get(keys.data("d")) == b"\x00bytes"
            assert home.redis.hgetall(keys.trigger(batch["seq"])) == {b"request_id": b"task_a_1", b"data_id": b"d"}

    asyncio.run(scenario())
    paths = home.flush()
    assert [path.split("/")[0] for path in paths] == ["data", "trigger"]
    (data,), (batch,) = home.archived(Stream.DATA), home.archived(Stream.TRIGGER)
    assert (data.payload, data.applied, batch.applied, batch.refused_because) == (b"\x00bytes", True, True, None)
    assert home.flush() == []


def test_connected_vehicles_are_woken(shared: Harness) -> None:
    shared.redis.hset(keys.presence("HERE"), mapping={"connected": "yes", "heard": "0"})

    async def scenario() -> None:
        async with platform(shared.broker.port) as vehicle_platform:
            await vehicle_platform.trigger(["HERE", "AWAY"], "wake")

    asyncio.run(scenario())
    assert shared.woken() == ["HERE"]


def test_bad_input_is_answered_and_archived_and_does_not_stop_good_input(shared: Harness) -> None:
    bodies = [b"{bad", b"?bad", b"x" * (1 << 20) + b"x", trigger(["BAD1", "bad vin"], "r")]
    places = [topics.TRIGGER, f"{topics.FANOUT}/else", topics.data_topic("big"), topics.TRIGGER]

    async def scenario() -> None:
        async with platform(shared.broker.port) as vehicle_platform:
            refused = [await vehicle_platform.send(*each) for each in zip(places, bodies, strict=True)]
            assert [receipt["status"] for receipt in refused] == ["refused"] * 4
            assert all(receipt["reason"] for receipt in refused)
            assert (await vehicle_platform.trigger(["BAD1"], "good"))["status"] == "recorded"

    asyncio.run(scenario())
    assert len(shared.pending("BAD1")) == 1
    shared.flush()
    envelopes = shared.archived(Stream.TRIGGER) + shared.archived(Stream.DATA)
    assert set(bodies) <= {e.payload for e in envelopes if e.refused_because}
    assert 'messages_total{status="refused",stream="data"}' in shared.get("/metrics").text


def test_every_recorder_is_asked_to_flush_even_if_one_does_not_answer(shared: Harness) -> None:
    async def scenario() -> int:
        async with platform(shared.broker.port) as vehicle_platform:
            return int((await vehicle_platform.trigger(["FLUSHED"], "several"))["seq"])

    seq = asyncio.run(scenario())
    here, nowhere = (f"http://127.0.0.1:{port}" for port in (shared.running.port, free_port()))
    assert not flush(Settings(recorder_urls=f"{nowhere},{here}"))
    assert seq in [e.seq for e in shared.archived(Stream.TRIGGER)]
    assert flush(Settings(recorder_urls=f"{here},{here}"))


def test_a_repeated_trigger_is_a_duplicate_across_a_crash_and_a_flush(home: Harness) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as vehicle_platform:
            first = await vehicle_platform.trigger(["V1", "V2"], "r")
            again = await vehicle_platform.trigger(["V2", "V1"], "r")
            assert (again["status"], again["duplicate_of"]) == ("duplicate", first["seq"])
            for crash in range(2):
                home.running.kill()
                home.redis.delete("dedupe:none", *home.keys("dedupe:*"))  # only the recorder's own memory is left
                await asyncio.to_thread(home.start)
                await asyncio.to_thread(home.wait_direct_enqueue)
                again = await vehicle_platform.trigger(["V1", "V2"], "r")
                assert (again["status"], again["duplicate_of"]) == ("duplicate", first["seq"]), crash
                await asyncio.to_thread(home.flush)
            assert home.pending("V1") == [first["seq"]]

    asyncio.run(scenario())
    assert len([e for e in home.archived(Stream.TRIGGER) if e.duplicate_of is None]) == 1


def test_a_trigger_registered_by_another_recorder_is_a_duplicate(home: Harness) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as vehicle_platform:
            probe = await vehicle_platform.trigger(["V1"], "probe")
            (key,) = home.keys("dedupe:*")
            home.redis.delete(key)
            home.flush()
            home.running.stop()
            for segment in (home.folder / "home" / "archive").rglob("*.parquet"):
                segment.unlink()
            home.redis.set(key, 4711, px=60_000)
            await asyncio.to_thread(home.start)
            await asyncio.to_thread(home.wait_direct_enqueue)
            receipt = await vehicle_platform.trigger(["V1"], "probe")
            assert (receipt["status"], receipt["duplicate_of"]) == ("duplicate", 4711)
            third = await vehicle_platform.trigger(["V1"], "probe")
            assert third["duplicate_of"] == 4711
            assert home.pending("V1") == [probe["seq"]]

    asyncio.run(scenario())
    home.flush()
    assert [e.duplicate_of for e in home.archived(Stream.TRIGGER)] == [4711, 4711]


def test_other_bytes_under_a_known_data_id_are_refused_and_equal_ones_accepted(shared: Harness) -> None:
    async def scenario() -> None:
        async with platform(shared.broker.port) as vehicle_platform:
            inline = {"ids": ["SAME1"], "request_id": "r", "data": base64.b64encode(b"inline").decode()}
            assert (await vehicle_platform.send(topics.TRIGGER, json.dumps(inline).encode()))["status"] == "recorded"
            assert shared.redis.get(keys.data(sha1_hex(b"inline"))) == b"inline"
            bodies = (b"1", b"1", b"2", b"1")
            statuses = [(await vehicle_platform.send(topics.data_topic("same"), body))["status"] for body in bodies]
            assert statuses == ["recorded", "recorded", "refused", "recorded"]
            await vehicle_platform.send(topics.data_topic(sha1_hex(b"late")), b"not what the name says")
            inline = {"ids": ["SAME2"], "request_id": "r", "data": base64.b64encode(b"late").decode()}
            assert (await vehicle_platform.send(topics.TRIGGER, json.dumps(inline).encode()))["status"] == "refused"
            assert shared.pending("SAME2") == []

    asyncio.run(scenario())
    shared.flush()
    archived = [e for e in shared.archived(Stream.DATA) if e.topic == topics.data_topic("same")]
    assert [bool(e.refused_because) for e in archived] == [False, False, True, False]


def test_data_known_only_to_the_lake_is_not_replaced(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home")
    catalog = new_lake(settings)
    append_payloads(catalog, {"old": b"1"}, at=datetime(2026, 8, 1, tzinfo=UTC))

    async def scenario(home: Harness) -> None:
        async with platform(home.broker.port) as vehicle_platform:
            other = await vehicle_platform.send(topics.data_topic("old"), b"2")
            same = await vehicle_platform.send(topics.data_topic("old"), b"1")
            assert (other["status"], same["status"]) == ("refused", "recorded")
            assert home.redis.get(keys.data("old")) == b"1"

    with running_harness(tmp_path) as home:
        asyncio.run(scenario(home))


def test_a_receipt_goes_only_to_allowed_topics(shared: Harness) -> None:
    url = f"mqtt://127.0.0.1:{shared.broker.port}"

    async def scenario() -> None:
        async with platform(shared.broker.port) as vehicle_platform, Mqtt(url, "RECEIPT1") as vehicle:
            got: list[bytes] = []
            vehicle.on_message = lambda message: got.append(message.payload)
            await vehicle.subscribe("agent/RECEIPT1/#")
            await vehicle.publish(topics.TRIGGER, trigger(["RECEIPT1"], "r"), response_topic="agent/RECEIPT1/proxy/request/1")
            await vehicle.publish(topics.TRIGGER, trigger(["RECEIPT1"], "r2"), response_topic="elsewhere")
            await vehicle_platform.trigger(["RECEIPT2"], "r3")  # the previous ones were handled
            assert got == []

    asyncio.run(scenario())
    assert 'receipts_total{result="foreign_topic"} 2.0' in shared.get("/metrics").text
    assert len(shared.pending("RECEIPT1")) == 2


def test_outcomes_move_from_redis_to_the_archive(shared: Harness) -> None:
    wires = [OutcomeRecord(f"OUT{n}", n, Outcome.DELIVERED, 1000 + n).to_wire() for n in range(3)]
    for wire in wires:
        shared.redis.xadd(keys.OUTCOMES, {"o": wire})
    wait_until(lambda: shared.redis.xlen(keys.OUTCOMES) == 0, what="outcomes to be drained")
    shared.flush()
    assert [(e.topic, e.payload) for e in shared.archived(Stream.OUTCOME)] == [(f"outcomes/OUT{n}", wires[n]) for n in range(3)]


def test_a_superseded_entry_gets_its_outcome(tmp_path: Path) -> None:
    async def scenario(home: Harness) -> list[int]:
        async with platform(home.broker.port) as vehicle_platform:
            seqs = [(await vehicle_platform.trigger(["V1"], "r", data_id))["seq"] for data_id in ("a", "b")]
            assert home.pending("V1") == seqs[1:]
            return seqs

    with running_harness(tmp_path, compaction="request_id") as home:
        seqs = asyncio.run(scenario(home))
        wait_until(lambda: home.redis.xlen(keys.OUTCOMES) == 0, what="outcomes to be drained")
        home.flush()
        (outcome,) = [OutcomeRecord.from_wire(e.payload) for e in home.archived(Stream.OUTCOME)]
        assert (outcome.vin, outcome.seq, outcome.outcome) == ("V1", seqs[0], Outcome.SUPERSEDED)


def test_a_clean_shutdown_seals_the_segments_and_leaves_no_journal(home: Harness) -> None:
    async def scenario() -> int:
        async with platform(home.broker.port) as vehicle_platform:
            receipts = [await vehicle_platform.publish(topics.TRIGGER, trigger(["V1"], f"r{n}")) for n in range(100)]
            await receipts[0]
            home.running.process.terminate()
            await asyncio.to_thread(home.running.process.wait, 20)
            return sum(receipt.done() for receipt in receipts)

    done = asyncio.run(scenario())
    assert home.running.process.returncode == 0
    assert home.journal_files() == []
    assert len(home.archived(Stream.TRIGGER)) >= done >= 1


def test_a_port_in_use_ends_the_recorder_without_a_traceback(home: Harness) -> None:
    first = home.running
    with pytest.raises(RuntimeError, match=r"(?s)ended with 2.*recorder: cannot listen on 127.0.0.1:\d+ .*choose another port"):
        home.start(recorder_port=first.port, node=1)
    assert "Traceback" not in first.log.read_text()
