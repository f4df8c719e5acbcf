"""Writes, rewinds and acknowledgements of compacted queues through the recorder: a real broker, MQTT 3.1.1 and 5."""

import asyncio
import math
import signal
from pathlib import Path
from typing import Any

import pytest

from manifold.contracts import keys
from manifold.contracts.ecq import MAX_KEY_BYTES, EcqAck
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.topics import ecq_rewind_topic, ecq_write_topic
from manifold.messaging.mqtt import Mqtt
from manifold.queues import Loader, Policy
from manifold.recorder._rate_limit import BURST
from manifold.settings import Settings
from tests.manifold.recorder.cabled import through_cable
from tests.manifold.recorder.harness import Harness, harness, metric
from tests.manifold.recorder.publisher import Platform, platform
from tests.manifold.recorder.test_redis_goes_back import mark_of
from tests.manifold.sandbox.tap.raw_connection import PUBACK, RawConnection, publish
from tests.support.careless import GOOD
from tests.support.servers import wait_until

RECEIVE_MAXIMUM = 20


def recorded(home: Harness, client_id: str) -> list[Envelope]:
    """The envelopes of one client in the archive, in seq order."""
    home.flush()
    return [e for e in home.archived(Stream.ECQ) if client_id in e.topic.split("/")]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1])
def test_messages_of_either_protocol_are_recorded_unchanged(shared: Harness, version: int, qos: int) -> None:
    client_id = f"AS-IT-CAME-{version}-{qos}"
    sent = [
        (ecq_write_topic(client_id, "a"), b"\0\xff"),
        (ecq_write_topic(client_id, "a"), b"\0\xff"),
        (ecq_write_topic(client_id, "a/b//c"), b""),
        (ecq_rewind_topic(client_id), b"earliest"),
        (ecq_write_topic(client_id, "é" * (MAX_KEY_BYTES // 2)), b"x" * (1 << 20)),
    ]
    with RawConnection(shared.broker.port, version=version) as publisher:
        publisher.open(f"sdv-pub-{client_id}")
        for mid, (topic, payload) in enumerate(sent, 1):
            publisher.send(publish(topic, payload, version, mid=mid, qos=qos))
            if qos:
                publisher.expect(PUBACK)
        wait_until(lambda: len(recorded(shared, client_id)) == len(sent), what="everything to be archived")
    found = recorded(shared, client_id)
    assert [(e.topic, e.payload) for e in found] == sent
    assert all(e.refused_because is None and e.qos == qos for e in found)


def test_a_publisher_gets_the_seq_once_its_message_is_on_disk(shared: Harness) -> None:
    async def scenario() -> list[int]:
        async with platform(shared.broker.port) as publisher:
            sent = [(ecq_write_topic("TOLD", "a"), b"1"), (ecq_write_topic("TOLD", "a"), b"1"), (ecq_rewind_topic("TOLD"), b"0")]
            receipts = [await publisher.send(*each) for each in sent]
            assert [receipt["status"] for receipt in receipts] == ["recorded"] * 3
            return [receipt["seq"] for receipt in receipts]

    seqs = asyncio.run(scenario())
    assert [e.seq for e in recorded(shared, "TOLD")] == seqs
    assert 'messages_total{status="recorded",stream="ecq"}' in shared.get("/metrics").text


BAD = [
    ("$ECQ/w/BAD", b"no key"),
    ("$ECQ/w/BAD/", b"empty key"),
    ("$ECQ/w//BAD", b"no client id"),
    ("$ECQ/w", b"BAD"),
    ("$ECQ/w/w/BAD", b"w"),
    ("$ECQ/w/r/BAD", b"r"),
    ("$ECQ/w/sdv-BAD/a", b"a service"),
    ("$ECQ/w/no owner/BAD", b"no owner"),
    (f"$ECQ/w/{'V' * 65}/BAD", b"client id too long"),
    ("$ECQ/w/BAD/" + "k" * (MAX_KEY_BYTES + 1), b"key too long"),
    ("$ECQ/w/BAD/" + "/" * 150, b"key of too many levels"),
    ("$ECQ/w/BAD/large", b"x" * ((1 << 20) + 1)),
    ("$ECQ/r/BAD", b"yesterday"),
    ("$ECQ/r/BAD", b""),
    ("$ECQ/r/BAD", b"9" * 1_000),
    ("$ECQ/r/BAD/a", b"earliest"),
    ("$ECQ/r", b"earliest"),
]


def test_a_refused_message_is_answered_kept_with_its_reason_and_stops_nothing(shared: Harness) -> None:
    async def scenario() -> None:
        async with platform(shared.broker.port) as publisher:
            for topic, payload in BAD:
                receipt = await publisher.send(topic, payload)
                assert receipt["status"] == "refused", topic
                assert 0 < len(receipt["reason"]) < 1000
                assert (await publisher.send("$ECQ/w/GOOD/a", b"x"))["status"] == "recorded"

    asyncio.run(scenario())
    assert [e.refused_because for e in recorded(shared, "GOOD")] == [None] * len(BAD)
    refused = [(e.topic, e.payload) for e in shared.archived(Stream.ECQ) if e.refused_because]
    assert [each for each in refused if each in BAD] == BAD
    assert shared.health()["direct_enqueue"] == "on"


def test_dispatcher_records_of_a_compacted_queue_are_kept_in_its_stream(shared: Harness) -> None:
    good = EcqAck("ACKED", 5, 1000, epoch=3).to_wire()
    for payload in (good, b'{"client_id": "ACKED-BADLY", "seq": -1}'):
        shared.redis.xadd(keys.OUTCOMES, {"o": payload})
    wait_until(lambda: not shared.redis.xlen(keys.OUTCOMES), what="the outcomes to be taken")
    (envelope,) = recorded(shared, "ACKED")
    assert (envelope.topic, envelope.payload, envelope.refused_because) == ("outcomes/ecq/ACKED", good, None)
    (bad,) = (e for e in shared.archived(Stream.OUTCOME) if b"ACKED-BADLY" in e.payload)
    assert "not an acknowledgement of a compacted queue" in str(bad.refused_because)


def test_a_retained_message_is_recorded_once(tmp_path: Path) -> None:
    async def scenario(home: Harness) -> None:
        async with platform(home.broker.port) as publisher:
            assert (await publisher.send("$ECQ/w/RETAINED/a", b"x", retain=True))["status"] == "recorded"
            home.env["MANIFOLD_MQTT_SESSION_EXPIRY_SECONDS"] = "1"
            home.stop_recorder()
            async with Mqtt(f"mqtt://127.0.0.1:{home.broker.port}", "sdv-recorder-0", clean_start=True) as other:
                await other.wait_connected()  # this ends the recorder's session
            await asyncio.to_thread(home.start)
            assert (await publisher.send("$ECQ/w/RETAINED/b", b"x"))["status"] == "recorded"

    with harness(tmp_path) as home:
        home.load()
        home.start()
        asyncio.run(scenario(home))
        assert [e.topic[-1] for e in recorded(home, "RETAINED")] == ["a", "b"]


@pytest.mark.parametrize("flushed", [False, True], ids=["in the journal", "in the archive"])
@pytest.mark.parametrize("killed", [False, True], ids=["cut", "killed"])
def test_a_message_whose_puback_was_lost_is_recorded_once_and_answered_again(tmp_path: Path, killed: bool, flushed: bool) -> None:
    """The proxy drops the recorder's PUBACKs, so the broker redelivers everything with DUP."""
    sent = [
        ("$ECQ/w/LOST/a", b"1"),
        ("$ECQ/w/LOST/a", b"2"),
        ("$ECQ/w/LOST/a", b"1"),
        *[("$ECQ/r/LOST", b"0")] * (BURST - 1),
        ("$ECQ/r/LOST", b"?"),
        ("$ECQ/r/LOST", b"1"),  # one too many
    ]

    async def scenario(home: Harness) -> None:
        async with through_cable(home) as (cable, publisher):
            before = await publisher.send("$ECQ/w/LOST/before", b"x")
            cable.deaf = True
            receipts = [await publisher.publish(*each) for each in sent]
            await asyncio.to_thread(wait_until, lambda: taken(home) == 1 + len(sent), what="all messages to be recorded")
            if flushed:
                await asyncio.to_thread(home.flush)
            if killed:
                home.running.kill()
            cable.cut()
            cable.deaf = False
            if killed:
                await asyncio.to_thread(home.start)
            answers = [await receipt for receipt in receipts]
            after = await publisher.send("$ECQ/w/LOST/a", b"1")
            archived = await asyncio.to_thread(recorded, home, "LOST")
            assert [e.seq for e in archived] == [before["seq"], *(answer["seq"] for answer in answers), after["seq"]]
            assert [(e.topic, e.payload) for e in archived[1:-1]] == sent
            assert [answer["status"] for answer in answers] == ["recorded"] * (3 + BURST - 1) + ["refused"] * 2
            assert "ecq_rewinds_per_hour" in answers[-1]["reason"]
            assert metric(home, 'manifold_recorder_messages_total{status="resent",stream="ecq"}') == len(sent)
            assert metric(home, "manifold_recorder_held_bytes") == 0

    with harness(tmp_path, mqtt_shared="off") as home:
        home.load()
        asyncio.run(scenario(home))


def taken(home: Harness) -> int:
    """The number of messages of the stream that this process has recorded."""
    counts = (
        metric(home, f'manifold_recorder_messages_total{{status="{each}",stream="ecq"}}') for each in ("recorded", "refused")
    )
    return int(sum(count for count in counts if not math.isnan(count)))


def test_any_number_of_unreadable_packets_is_kept_and_acknowledged(tmp_path: Path) -> None:
    many = 3 * RECEIVE_MAXIMUM

    async def scenario(home: Harness) -> None:
        async with through_cable(home) as (_, publisher):
            for n in range(many):
                await publisher.client.publish(f"$ECQ/w/SPOILT/{GOOD}", b"%d" % n)
            assert (await publisher.send("$ECQ/w/SPOILT/good", b"x"))["status"] == "recorded"
            await asyncio.to_thread(home.flush)

    with harness(tmp_path, mqtt_receive_maximum=str(RECEIVE_MAXIMUM), mqtt_shared="off") as home:
        home.load()
        asyncio.run(scenario(home))
        *refused, good = home.archived(Stream.ECQ)
        assert (len(refused), good.topic, good.refused_because) == (many, "$ECQ/w/SPOILT/good", None)
        assert all("cannot be read (a text in it is not UTF-8)" in str(e.refused_because) for e in refused)


def queued(home: Harness, client_id: str) -> dict[str, int]:
    """The live messages of a queue: key → seq."""
    found: Any = home.redis.hgetall(keys.ecq_keys(client_id)[3])
    return {key.decode(): int(seq) for key, seq in found.items()}


def of_set(home: Harness, client_id: str, place: int) -> list[int]:
    """The seqs in one of a queue's sorted sets: 0 is pending, 4 is acknowledged."""
    found: Any = home.redis.zrange(keys.ecq_keys(client_id)[place], 0, -1)
    return [int(seq) for seq in found]


async def send(publisher: Platform, topic: str, payload: bytes = b"x") -> int:
    receipt = await publisher.send(topic, payload)
    assert receipt["status"] == "recorded"
    return int(receipt["seq"])


def test_a_redis_outage_loses_nothing_and_the_newest_of_each_key_is_queued_later(home: Harness) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as publisher:
            seqs = [await send(publisher, "$ECQ/w/AWAY/a")]
            assert queued(home, "AWAY") == {"a": seqs[0]}
            home.redis_server.kill()
            seqs += [await send(publisher, f"$ECQ/w/AWAY/{key}") for key in "abab"]
            await asyncio.to_thread(home.flush)
            seqs.append(await send(publisher, "$ECQ/w/AWAY/c"))
            await asyncio.to_thread(home.restart_redis)
            await asyncio.to_thread(home.wait_direct_enqueue)
            seqs.append(await send(publisher, "$ECQ/w/AWAY/d"))
            assert queued(home, "AWAY") == {"a": seqs[3], "b": seqs[4], "c": seqs[5], "d": seqs[6]}
            assert of_set(home, "AWAY", 0) == seqs[3:]
            assert [e.applied for e in await asyncio.to_thread(recorded, home, "AWAY")] == [True, *[False] * 4, True, True]

    asyncio.run(scenario())


def test_a_write_recorded_before_a_kill_is_queued_once_at_the_next_start(home: Harness) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as publisher:
            first = await send(publisher, "$ECQ/w/STUCK/a", b"1")
            home.redis_server.process.send_signal(signal.SIGSTOP)
            before = home.journal_bytes()
            receipts = [await publisher.publish("$ECQ/w/STUCK/a", payload) for payload in (b"2", b"1")]
            await asyncio.to_thread(wait_until, lambda: home.journal_bytes() > before, what="the message to be on disk")
            home.running.kill()
            home.redis_server.process.send_signal(signal.SIGCONT)
            await home.start_enqueuing()
            seqs = [int((await receipt)["seq"]) for receipt in receipts]
            assert queued(home, "STUCK") == {"a": seqs[1]}
            archived = await asyncio.to_thread(recorded, home, "STUCK")
            assert [(e.seq, e.payload) for e in archived] == [(first, b"1"), (seqs[0], b"2"), (seqs[1], b"1")]

    asyncio.run(scenario())


@pytest.mark.parametrize("flushed", [False, True], ids=["in the journal", "in the archive"])
def test_a_rolled_back_redis_gets_writes_rewinds_and_acks_again(home: Harness, flushed: bool) -> None:
    def acknowledge(seq: int, epoch: int = 0) -> None:
        home.redis.xadd(keys.OUTCOMES, {"o": EcqAck("BACK", seq, 1, epoch).to_wire()})
        wait_until(lambda: not home.redis.xlen(keys.OUTCOMES), what="the acknowledgement to be recorded")

    async def scenario() -> None:
        async with platform(home.broker.port) as publisher:
            kept = await send(publisher, "$ECQ/w/BACK/kept")
            await asyncio.to_thread(wait_until, lambda: mark_of(home) >= kept, what="the mark to advance")
            written = home.written()
            acknowledge(kept)
            a = await send(publisher, "$ECQ/w/BACK/a")
            acknowledge(a)
            epoch = await send(publisher, "$ECQ/r/BACK", b"earliest")
            b = await send(publisher, "$ECQ/w/BACK/b")
            acknowledge(b, epoch)
            acknowledge(kept, epoch)
            if flushed:
                await asyncio.to_thread(home.flush)
            last = await send(publisher, "$ECQ/w/BACK/last")
            await asyncio.to_thread(wait_until, lambda: mark_of(home) >= last, what="the mark to advance")
            await asyncio.to_thread(home.take_redis_back, written)
            newest = await send(publisher, "$ECQ/w/BACK/newest")
            await asyncio.to_thread(home.wait_direct_enqueue)
            assert queued(home, "BACK") == {"kept": kept, "a": a, "b": b, "last": last, "newest": newest}
            assert of_set(home, "BACK", 0) == [a, last, newest]
            assert of_set(home, "BACK", 4) == [kept, b]
            assert home.redis.hmget(keys.ecq_keys("BACK")[7], "epoch", "acked_seq") == [b"%d" % epoch, b"%d" % b]

    asyncio.run(scenario())


@pytest.mark.parametrize("some_in_lake", [True, False], ids=["some of it in the lake", "none of it in the lake"])
def test_writes_that_a_rebuild_missed_are_queued_after_it(home: Harness, some_in_lake: bool) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as publisher:
            in_lake = await send(publisher, "$ECQ/w/REBUILT/old")
            seqs = [await send(publisher, f"$ECQ/w/REBUILT/{key}") for key in "ab"]
            trigger_seq = (await publisher.trigger(["REBUILT"], "r"))["seq"]
            home.redis.flushall()
            await asyncio.to_thread(home.wait_direct_enqueue, "suspended")
            with home.redis as client:  # the lake had the trigger, but not `a` and `b`
                Loader(client, Policy.of(Settings(home=home.folder))).mark_loaded(
                    1, {0: trigger_seq}, {0: in_lake} if some_in_lake else {}
                )
            await asyncio.to_thread(home.wait_direct_enqueue)
            expected = dict(zip("ab", seqs, strict=True))
            assert queued(home, "REBUILT") == (expected if some_in_lake else {"old": in_lake} | expected)
            assert home.pending("REBUILT") == []

    asyncio.run(scenario())
