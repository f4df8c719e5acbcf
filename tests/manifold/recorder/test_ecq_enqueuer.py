"""Enqueueing writes and rewinds into compacted queues: in seq order, repeatedly, and after a loss in Redis."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.ecq import Append, EcqAck, Rewind
from manifold.contracts.ecq_state import fold
from manifold.contracts.errors import Retryable
from manifold.contracts.events import Connected
from manifold.contracts.names import Owner
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import wall_clock_ms
from manifold.messaging.mqtt import Message
from manifold.queues import Queues, is_cluster
from manifold.queues.verbs.claims import UpdatePresence
from manifold.queues.verbs.ecq import Subscription
from manifold.queues.verbs.ecq_reads import Read, ReadReply
from manifold.recorder._dedupe import DedupeWindow
from manifold.recorder._direct_enqueuer import DirectEnqueuer
from manifold.recorder._ecq_enqueuer import EcqChange
from manifold.recorder._parser import Incoming, Parser
from manifold.settings import Settings
from tests.manifold.recorder.enqueuing import WINDOW_MS, Scenario, is_named_until_mended, load, run
from tests.support.servers import Server

Play = Callable[[Scenario], None]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


@pytest.fixture
def play(url: str, redis: Redis, settings: Settings) -> Play:
    """Run a scenario over empty queues that are marked as loaded."""
    return partial(run, url, settings)


@pytest.fixture
def parser(settings: Settings) -> Parser:
    return Parser(settings, DedupeWindow(WINDOW_MS))


def write(parser: Parser, key: str, payload: bytes = b"x", client_id: str = "C") -> Incoming:
    return parser.build(Message(f"$ECQ/w/{client_id}/{key}", payload))


def rewind(parser: Parser, to: int = 0) -> Incoming:
    return parser.build(Message("$ECQ/r/C", str(to).encode()))


async def look(queues: Queues, client_id: str = "C") -> ReadReply:
    batch = queues.batch()
    batch.add(ecq_queue(client_id), Read(), wall_clock_ms())
    (found,) = await batch.run()
    assert isinstance(found, ReadReply)
    return found


async def arrive(queues: Queues, client_id: str) -> None:
    """Connect the client and subscribe it to its queue."""
    batch, now_ms = queues.batch(), wall_clock_ms()
    batch.add(client_id, UpdatePresence(Connected(Owner(client_id), now_ms, True, 0), False), now_ms)
    batch.add(ecq_queue(client_id), Subscription(1, False), now_ms)
    await batch.run()


async def woken(queues: Queues) -> set[str]:
    return {owner for wake in await queues.read_wakes("a", count=1000, block_ms=1) for owner in wake.owners}


def test_the_newest_of_each_key_is_queued_with_its_bytes(play: Play, redis: Redis, parser: Parser) -> None:
    async def scenario(enqueuer: DirectEnqueuer, queues: Queues) -> None:
        group = [write(parser, "a", b"1"), write(parser, "b/c", b""), write(parser, "a", b"\0\xff")]
        for _ in range(2):
            await enqueuer.offer(group)
            assert all(incoming.applied for incoming in group)
            assert [(m.key, m.seq, m.size_bytes) for m in (await look(queues)).messages] == [
                ("b/c", group[1].seq, 0),
                ("a", group[2].seq, 2),
            ]
        assert redis.hget(keys.ecq_keys("C")[5], str(group[2].seq)) == b"a\0\0\xff"

    play(scenario)


def test_a_superseded_write_is_counted_once_in_any_batching(play: Play, parser: Parser) -> None:
    def counted() -> float:
        return REGISTRY.get_sample_value("manifold_recorder_ecq_superseded_total") or 0.0

    async def scenario(enqueuer: DirectEnqueuer, queues: Queues) -> None:
        before = counted()
        for group in ([write(parser, "a"), write(parser, "a"), write(parser, "b")], [write(parser, "a"), rewind(parser)]):
            for _ in range(2):
                again = [parser.read_back(incoming.envelope) for incoming in group]
                await enqueuer.offer(again if group[0].applied else group)
        assert counted() - before == 2

    play(scenario)


def test_a_connected_client_is_woken_for_a_write_and_for_a_rewind(play: Play, parser: Parser) -> None:
    async def scenario(enqueuer: DirectEnqueuer, queues: Queues) -> None:
        await arrive(queues, "C")
        first = write(parser, "a")
        await enqueuer.offer([first, write(parser, "a", client_id="AWAY")])
        assert await woken(queues) == {"ecq/C"}
        await enqueuer.ecq.replay([EcqAck("C", first.seq, 1)])
        assert (await look(queues)).messages[0].is_delivered
        await enqueuer.offer([rewind(parser)])
        assert await woken(queues) == {"ecq/C"}
        assert not (await look(queues)).messages[0].is_delivered

    play(scenario)


@pytest.mark.parametrize("what", ["write", "rewind", "both"])
def test_reloaded_queues_get_the_message_with_everything_they_lack(play: Play, redis: Redis, parser: Parser, what: str) -> None:
    async def scenario(enqueuer: DirectEnqueuer, queues: Queues) -> None:
        for mark in keys.loaded_marks(of_cluster=is_cluster(redis)):
            redis.set(mark, "another time")
        group = {"write": [write(parser, "a")], "rewind": [rewind(parser)], "both": [write(parser, "a"), rewind(parser)]}[what]
        with pytest.raises(Retryable, match="the queues were loaded again meanwhile"):
            await enqueuer.offer(group)
        assert not redis.exists(keys.ecq_keys("C")[0])
        await load(enqueuer, queues)
        await enqueuer.offer(group)
        assert all(incoming.applied for incoming in group)
        assert len((await look(queues)).messages) == (what != "rewind")

    play(scenario)


@pytest.mark.parametrize("place", range(8), ids=lambda place: keys.ecq_keys("V")[place].rpartition(":")[2])
def test_a_queue_with_corrupt_keys_is_named_and_blocks_no_other(play: Play, redis: Redis, parser: Parser, place: int) -> None:
    key = keys.ecq_keys("C")[place]

    async def scenario(enqueuer: DirectEnqueuer, queues: Queues) -> None:
        redis.set(key, "something else")
        group = [write(parser, "a"), write(parser, "a", client_id="D"), rewind(parser), write(parser, "b", client_id="D")]
        await enqueuer.offer(group)
        assert [m.key for m in (await look(queues, "D")).messages] == ["a", "b"]
        await is_named_until_mended(enqueuer, queues, "ecq/C", key)

    play(scenario)


def test_more_messages_than_one_batch_are_queued_in_order(play: Play, parser: Parser) -> None:
    async def scenario(enqueuer: DirectEnqueuer, queues: Queues) -> None:
        group = [write(parser, f"k{n % 700}", b"%d" % n) for n in range(2500)]
        await enqueuer.offer(group)
        newest = {incoming.envelope.topic: incoming.seq for incoming in group}
        assert [m.seq for m in (await look(queues)).messages] == sorted(newest.values())

    play(scenario)


def test_the_next_of_many_rewinds_does_not_scan_all_live_messages(
    redis_server: Server, parser: Parser, settings: Settings
) -> None:
    def looks() -> int:
        with Redis(port=redis_server.port) as client:
            found: Any = client.info("commandstats")
        return int(found.get("cmdstat_hvals", {"calls": 0})["calls"])

    async def scenario(enqueuer: DirectEnqueuer, queues: Queues) -> None:
        group = [write(parser, f"k{n}") for n in range(5)]
        await enqueuer.offer(group)
        await enqueuer.ecq.replay([EcqAck("C", group[0].seq, 1)])
        before = looks()
        await enqueuer.offer([rewind(parser) for _ in range(10)])
        assert looks() == before + 1

    with Redis(port=redis_server.port) as client:
        client.flushall()
    run(f"redis://127.0.0.1:{redis_server.port}/0", settings, scenario)


HISTORIES = {
    "acknowledged, rewound, acknowledged again": "wa ka wb kb r0 kb",
    "acknowledged for the first time after a rewind": "wa r0 ka",
    "written after a rewind of nothing": "r0 wa ka",
    "rewound twice, to different messages": "wa wb ka kb rb ka kb ra kb",
    "superseded before and after a rewind": "wa ka wa wb ka r0 wa ka kb",
    "the first one acknowledged last": "wa ka ra wb kb rb wc kc ka",
    "out of order": "wa wb wc kc rc kc ka r0 r0 kb",
    "written after a rewind that Redis did not remember": "r0 wa za",
    "the same, beside others": "wa ka r0 wb zb wc kc",
}


@pytest.mark.parametrize("kept", [0, 3])
@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_a_queue_lost_by_redis_is_restored_from_its_records(play: Play, parser: Parser, history: str, kept: int) -> None:
    """`wa` writes key a, `ka` acknowledges it (`za` in no epoch), `ra` rewinds to it, `r0` to earliest; Redis kept some."""
    live, known, records, epoch = dict[str, int](), list[EcqChange](), list[Incoming | EcqAck](), 0
    for step in history.split():
        verb, key = step[0], step[1]
        if verb == "w":
            records.append(incoming := write(parser, key))
            live[key] = incoming.seq
        elif verb in "kz":
            records.append(ack := EcqAck("C", live[key], 1, epoch if verb == "k" else 0))
            known.append(ack)
        else:
            records.append(incoming := rewind(parser, live.get(key, 0)))
            epoch = incoming.seq
            assert isinstance(incoming.ecq, Rewind)
            known.append((incoming.seq, incoming.ecq))
    writes = [each for each in records if isinstance(each, Incoming) and isinstance(each.ecq, Append)]
    state = fold(
        [(each.seq, each.ecq.key) for each in writes if isinstance(each.ecq, Append)],
        [(one.seq, one.epoch) for one in known if isinstance(one, EcqAck)],
        [(one[0], one[1].first_seq) for one in known if not isinstance(one, EcqAck)],
    )

    async def scenario(enqueuer: DirectEnqueuer, queues: Queues) -> None:
        for record in records[:kept]:
            await (enqueuer.ecq.replay([record]) if isinstance(record, EcqAck) else enqueuer.offer([record]))
        for _ in range(2):  # an interrupted enqueue is repeated
            await enqueuer.ecq.replay(reversed(known))
            await enqueuer.offer(writes)
            await enqueuer.ecq.replay(known)
            found = await look(queues)
            assert {m.key: m.seq for m in found.messages} == state.live
            assert {m.seq for m in found.messages if m.is_delivered} == state.acknowledged
            assert (found.epoch, found.acked_seq) == (state.epoch, state.position)

    play(scenario)
