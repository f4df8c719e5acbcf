"""Brakes through a recorder process: in force with the receipt, whatever else is or is not handed over."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis as AsyncRedis
from structlog.testing import capture_logs

from manifold.archive.recorded import RecordedSegments
from manifold.archive.store import Archive
from manifold.contracts import keys, topics
from manifold.contracts.brakes import OFF, Brake, Braking
from manifold.contracts.campaigns import Cancel, Command, Note, Pause, Resume, encode
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.seq import SeqSource, seq_of, wall_clock_ms
from manifold.queues import Queues
from manifold.recorder import _braking
from manifold.recorder._braking import LATER_ORDER_IN_FORCE, Brakes
from manifold.recorder._parser import Incoming
from manifold.recorder._replay import ReplaySource
from manifold.settings import Settings
from tests.manifold.archive.test_journal import journal
from tests.manifold.queues.conftest import POLICY
from tests.manifold.recorder.harness import Harness
from tests.manifold.recorder.publisher import platform
from tests.support.servers import Server, start_redis, wait_until
from tests.support.wire import release

DAY_MS = 86_400_000


def brakes(harness: Harness) -> dict[str, str]:
    """The words of the brakes in Redis, by campaign."""
    found: Any = harness.redis.hgetall(keys.BRAKES)
    return {campaign.decode(): Brake.from_wire(value).word for campaign, value in found.items()}


def give(harness: Harness, *commands: Command) -> list[dict[str, Any]]:
    """Publish orders, and return their receipts."""

    async def scenario() -> list[dict[str, Any]]:
        async with platform(harness.broker.port, "sdv-campaigns-x") as client:
            return [await client.send(topics.CAMPAIGN, encode(command)) for command in commands]

    return asyncio.run(scenario())


def test_an_order_that_stops_a_campaign_is_in_force_with_its_receipt(home: Harness) -> None:
    for command in (Pause("a", "ann"), Cancel("b", "ann")):
        (receipt,) = give(home, command)
        assert (receipt["status"], receipt["reason"]) == ("recorded", None)
        assert command.campaign in brakes(home)
    give(home, Note("c", "ann"), Resume("a", "ann"))
    assert brakes(home) == {"a": "pause", "b": "cancel"}  # nobody but the campaigner knows whether a resume is accepted


def test_a_pause_that_a_later_clock_has_overtaken_says_that_it_is_not_in_force(home: Harness) -> None:
    ahead = Brake(seq_of(wall_clock_ms() + 60_000, 1, 0), OFF)
    home.redis.hset(keys.BRAKES, "a", ahead.to_wire())

    late, other = give(home, Pause("a", "ann"), Pause("b", "ann"))

    assert (late["status"], late["reason"]) == ("recorded", LATER_ORDER_IN_FORCE)
    assert (other["reason"], brakes(home)) == (None, {"a": OFF, "b": "pause"})


def test_a_brake_needs_no_loaded_queues(home: Harness) -> None:
    home.redis.flushall()
    home.wait_direct_enqueue("suspended")

    (receipt,) = give(home, Pause("a", "ann"))

    assert (receipt["status"], receipt["reason"], brakes(home)) == ("recorded", None, {"a": "pause"})


def test_an_emptied_redis_has_all_brakes_before_it_is_loaded(home: Harness) -> None:
    give(home, Pause("archived", "ann"))
    home.flush()
    give(home, Pause("journaled", "ann"))

    home.redis.flushall()

    wait_until(lambda: brakes(home) == {"archived": "pause", "journaled": "pause"}, what="the brakes to be handed over again")
    assert not home.redis.exists(keys.LOADED)


def test_without_redis_the_receipt_says_that_the_brake_is_not_in_force(home: Harness) -> None:
    home.redis_server.kill()

    (receipt,) = give(home, Pause("a", "ann"))

    assert receipt["status"] == "recorded"
    assert receipt["reason"].startswith("recorded, but not in force yet: the queues are away (")
    home.restart_redis()
    wait_until(lambda: brakes(home) == {"a": "pause"}, what="the brake to be handed over")


def test_a_brake_not_handed_over_before_a_crash_is_in_force_before_the_next_enqueue(home: Harness) -> None:
    home.redis_server.kill()
    give(home, Pause("a", "ann"))
    home.running.kill()
    home.restart_redis()

    home.start()
    home.wait_direct_enqueue()

    assert brakes(home) == {"a": "pause"}


def test_a_recorder_without_direct_enqueue_hands_brakes_over(home: Harness) -> None:
    home.stop_recorder()
    home.start(direct_enqueue=False)
    wait_until(lambda: home.redis.exists(keys.BRAKES_VERSION), what="the brakes to be loaded")

    (receipt,) = give(home, Pause("a", "ann"))

    assert (receipt["reason"], brakes(home)) == (None, {"a": "pause"})


def test_a_release_is_queued_as_one_and_a_trigger_that_claims_so_is_not(home: Harness) -> None:
    async def scenario() -> list[int]:
        async with platform(home.broker.port, "sdv-campaigns-x") as client:
            payload = release(["V1"], "c", "d", until_ms=77)
            return [int((await client.send(topic, payload))["seq"]) for topic in (topics.RELEASE, topics.TRIGGER)]

    seq, forged = asyncio.run(scenario())

    assert home.pending("V1") == [seq, forged]
    assert home.redis.hgetall(keys.trigger(forged)) == {b"request_id": b"c", b"data_id": b"d"}
    trigger = {b"request_id": b"c", b"data_id": b"d", b"campaign": b"c", b"until": b"77"}
    assert home.redis.hgetall(keys.trigger(seq)) == trigger


def test_each_recorder_hands_its_journal_over_though_another_was_first(tmp_path: Path, redis_server: Server) -> None:
    archive = RecordedSegments(Archive(f"file://{tmp_path}/archive", Settings(home=tmp_path).s3))

    async def scenario() -> Mapping[str, Brake]:
        async with AsyncRedis(port=redis_server.port) as client, AsyncExitStack() as stack:
            recorders, queues = [], Queues(client, POLICY)
            for node in (0, 1):
                kept = journal(tmp_path / str(node))
                stack.callback(kept.stop)
                kept.recover()
                seq = seq_of(wall_clock_ms(), node, 0)
                payload = encode(Pause(f"of-{node}", "ann"))
                await kept.append([Envelope(seq, datetime.now(UTC), Stream.CAMPAIGN, topics.CAMPAIGN, payload)])
                recorders.append(Brakes(queues, ReplaySource(archive, kept, node)))
            for _ in range(2):
                await client.flushall()
                for recorder in recorders:
                    await recorder.recheck()
            return (await queues.brakes()).brakes

    assert asyncio.run(scenario()).keys() == {"of-0", "of-1"}


def test_an_order_in_an_emptied_redis_does_not_pass_for_all_brakes(tmp_path: Path, redis_server: Server) -> None:
    """While the archive, which has another campaign's brake, is unreadable."""
    folder, moved, seqs = tmp_path / "archive" / Stream.CAMPAIGN, tmp_path / "moved", SeqSource(0)
    archive = RecordedSegments(Archive(f"file://{tmp_path}/archive", Settings(home=tmp_path).s3))
    archived, given = (
        Envelope(seqs.next(), datetime.now(UTC), Stream.CAMPAIGN, topics.CAMPAIGN, encode(Pause(name, "ann")))
        for name in ("archived", "given")
    )
    archive.seal([archived], 0)
    folder.rename(moved)
    folder.touch()  # no folder, so it cannot be listed

    async def scenario() -> None:
        async with AsyncRedis(port=redis_server.port) as client:
            await client.flushall()
            queues, kept, order = Queues(client, POLICY), journal(tmp_path), Incoming(given)
            kept.recover()
            orders = Brakes(queues, ReplaySource(archive, kept, 0))
            order.braking = Braking("given", Brake(given.seq, "pause"))
            await orders.hand_over([order])
            with pytest.raises(OSError, match="campaign"):
                await orders.recheck()
            found = await queues.brakes()
            assert (found.version, set(found.brakes)) == (b"", {"given"}), "dispatchers send nothing of a campaign"
            folder.unlink()
            moved.rename(folder)
            await orders.recheck()
            found = await queues.brakes()
            assert (bool(found.version), set(found.brakes)) == (True, {"archived", "given"})
            kept.stop()

    asyncio.run(scenario())


def test_a_foreign_value_among_the_brakes_stops_no_recorder(home: Harness) -> None:
    home.stop_recorder()
    home.redis.hset(keys.BRAKES, "foreign", "no brake")
    home.start()
    home.wait_direct_enqueue()

    (receipt,) = give(home, Pause("a", "ann"))

    assert (receipt["status"], receipt["reason"]) == ("recorded", None)


def test_brakes_that_are_older_than_any_entry_are_forgotten(tmp_path: Path, redis_server: Server) -> None:
    archive = RecordedSegments(Archive(f"file://{tmp_path}/archive", Settings(home=tmp_path).s3))
    now_ms = wall_clock_ms()
    old, young = (Brake(seq_of(now_ms - ms, 0, 0), "cancel") for ms in (POLICY.retention_ms + 2 * DAY_MS, POLICY.retention_ms))

    async def scenario() -> Mapping[str, Brake]:
        async with AsyncRedis(port=redis_server.port) as client:
            await client.flushall()
            queues, kept = Queues(client, POLICY), journal(tmp_path)
            kept.recover()
            await queues.load_brakes([Braking("old", old), Braking("young", young)])
            await Brakes(queues, ReplaySource(archive, kept, 0)).recheck()
            kept.stop()
            return (await queues.brakes()).brakes

    assert asyncio.run(scenario()) == {"young": young}


def test_an_order_that_redis_missed_is_handed_over_before_anybody_looks(tmp_path: Path) -> None:
    seq = seq_of(wall_clock_ms(), 0, 0)
    envelope = Envelope(seq, datetime.now(UTC), Stream.CAMPAIGN, topics.CAMPAIGN, encode(Pause("c", "ann")))
    archive = RecordedSegments(Archive(f"file://{tmp_path}/archive", Settings(home=tmp_path).s3))
    server = start_redis(tmp_path / "redis")

    async def scenario() -> None:
        async with AsyncRedis(port=server.port) as client, asyncio.timeout(30):
            queues, kept = Queues(client, POLICY), journal(tmp_path)
            orders, missed = Brakes(queues, ReplaySource(archive, kept, 0)), Incoming(envelope)
            missed.braking = Braking("c", Brake(seq, "pause"))
            work = asyncio.create_task(orders.run())
            server.kill()
            await orders.hand_over([missed])
            assert missed.not_in_force
            again = await asyncio.to_thread(start_redis, tmp_path / "redis", port=server.port)
            try:
                while not (await queues.brakes()).brakes:  # noqa: ASYNC110  # bounded above
                    await asyncio.sleep(0.01)
            finally:
                work.cancel()
                again.kill()
                kept.stop()

    asyncio.run(scenario())


def test_the_archives_brakes_are_handed_over_as_soon_as_it_is_readable(
    tmp_path: Path, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_braking, "ARCHIVE_RETRY_S", 0.01)
    folder, moved, seqs = tmp_path / "archive" / Stream.CAMPAIGN, tmp_path / "moved", SeqSource(0)
    archive = RecordedSegments(Archive(f"file://{tmp_path}/archive", Settings(home=tmp_path).s3))
    archived, journaled = (
        Envelope(seqs.next(), datetime.now(UTC), Stream.CAMPAIGN, topics.CAMPAIGN, encode(Pause(name, "ann")))
        for name in ("archived", "journaled")
    )
    archive.seal([archived], 0)
    folder.rename(moved)
    folder.touch()  # no folder, so it cannot be listed

    async def scenario() -> None:
        async with AsyncRedis(port=redis_server.port) as client, asyncio.timeout(30):
            await client.flushall()
            queues, kept = Queues(client, POLICY), journal(tmp_path)
            kept.recover()
            await kept.append([journaled])
            await queues.load_brakes([])  # another recorder was first
            orders = Brakes(queues, ReplaySource(archive, kept, 0))
            work = asyncio.create_task(orders.run())
            try:
                for _ in range(3):
                    await orders.recheck()
                assert (await queues.brakes()).brakes.keys() == {"journaled"}
                folder.unlink()
                moved.rename(folder)
                while (await queues.brakes()).brakes.keys() != {"archived", "journaled"}:  # noqa: ASYNC110  # bounded above
                    await asyncio.sleep(0.01)
            finally:
                work.cancel()
                kept.stop()

    with capture_logs() as lines:
        asyncio.run(scenario())
    assert sum("archive unreadable" in line["event"] for line in lines) == 1
