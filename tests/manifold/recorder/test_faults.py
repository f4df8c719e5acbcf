"""The recorder's promises under kills, full disks and outages."""

import asyncio
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

from manifold.contracts import keys, topics
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import SeqSource, wall_clock_ms
from tests.manifold.recorder.harness import Harness, harness, put_back, take_away
from tests.manifold.recorder.publisher import Platform, platform
from tests.support.servers import stopping, wait_until
from tests.support.wire import trigger

DAY_MS = 86_400_000
RECEIPT_S = 10.0  # after which a publisher publishes again


def test_a_kill_at_any_moment_loses_no_acknowledged_message_and_queues_none_twice(home: Harness) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as vehicle_platform:
            sent = []
            for round_ in range(3):
                batches = [trigger(["V1"], f"r{round_}_{n}") for n in range(150)]
                sent += [(batch, await vehicle_platform.publish(topics.TRIGGER, batch)) for batch in batches]
                await sent[-150 + 40 * round_][1]
                home.running.kill()
                await home.start_enqueuing()
            answers = await asyncio.gather(*(answered(vehicle_platform, *each) for each in sent))
            originals = sorted({a["duplicate_of"] or a["seq"] for a in answers})
            assert {a["status"] for a in answers} <= {"recorded", "duplicate"}
            assert len(originals) == 450
            assert home.pending("V1") == originals
            await asyncio.to_thread(home.flush)
            archived = home.archived(Stream.TRIGGER)
            assert sorted(e.seq for e in archived if e.duplicate_of is None) == originals
            assert all(e.applied for e in archived if e.duplicate_of is None)
            assert len({e.seq for e in archived}) == len(archived)

    asyncio.run(scenario())


async def answered(publisher: Platform, batch: bytes, receipt: "asyncio.Future[dict[str, Any]]") -> dict[str, Any]:
    """The receipt of a batch, which is published again until one arrives.

    For a redelivered message the receipt follows the PUBACK; a recorder killed between the two leaves none.
    """
    while True:
        try:
            async with asyncio.timeout(RECEIPT_S):
                return await asyncio.shield(receipt)
        except TimeoutError:
            receipt = await publisher.publish(topics.TRIGGER, batch)


def test_a_trigger_in_the_journal_only_is_queued_at_the_next_start(home: Harness) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as vehicle_platform:
            home.redis_server.process.send_signal(signal.SIGSTOP)
            receipt = await vehicle_platform.publish(topics.TRIGGER, trigger(["V1"], "stuck"))
            await asyncio.to_thread(wait_until, lambda: home.journal_bytes() > 0, what="the trigger to be on disk")
            assert not receipt.done()
            home.running.kill()
            home.redis_server.process.send_signal(signal.SIGCONT)
            await home.start_enqueuing()
            answer = await receipt  # for the same message, redelivered by the broker
            assert answer["status"] == "duplicate"
            assert home.pending("V1") == [answer["duplicate_of"]]

    asyncio.run(scenario())


def test_a_kill_between_segment_and_journal_archives_nothing_twice(home: Harness) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as vehicle_platform:
            for n in range(5):
                await vehicle_platform.trigger(["V1"], f"r{n}")
        (file,) = home.journal_files()
        kept = home.folder / file.name
        shutil.copy(file, kept)
        home.flush()
        home.running.kill()
        shutil.copy(kept, file)
        await home.start_enqueuing()
        await asyncio.to_thread(wait_until, lambda: not home.journal_files(), what="the journal to be sealed")

    asyncio.run(scenario())
    assert len(home.archived(Stream.TRIGGER)) == 5
    assert home.pending("V1") == [e.seq for e in home.archived(Stream.TRIGGER)]


def test_a_clock_in_the_past_repeats_no_seq(home: Harness) -> None:
    home.running.stop()
    future = SeqSource(0, clock_ms=lambda: wall_clock_ms() + DAY_MS).next()
    state = home.folder / "home" / "journal" / "0" / "state.json"
    state.write_text(f'{{"last_seq": {future}}}')

    async def scenario() -> None:
        async with platform(home.broker.port) as vehicle_platform:
            await home.start_enqueuing()
            first = await vehicle_platform.trigger(["V1"], "r1")
            assert first["seq"] > future
            await asyncio.to_thread(home.flush)
            home.running.stop()
            state.unlink()  # the archive then provides it
            await home.start_enqueuing()
            assert (await vehicle_platform.trigger(["V1"], "r2"))["seq"] > first["seq"]

    asyncio.run(scenario())


def test_a_redis_outage_loses_nothing_and_messages_are_queued_in_order_later(home: Harness) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as vehicle_platform:
            seqs = [(await vehicle_platform.trigger(["V1"], "r0"))["seq"]]
            home.redis_server.kill()
            await vehicle_platform.send(topics.data_topic("d"), b"payload")
            seqs += [(await vehicle_platform.trigger(["V1"], f"r{n}"))["seq"] for n in range(1, 4)]
            assert str(home.health()["direct_enqueue"]).startswith("suspended")
            assert "manifold_recorder_direct_enqueue 0.0" in home.get("/metrics").text
            await asyncio.to_thread(home.flush)
            seqs += [(await vehicle_platform.trigger(["V1"], f"r{n}"))["seq"] for n in range(4, 6)]
            assert [e.applied for e in home.archived(Stream.TRIGGER)] == [True, False, False, False]
            await asyncio.to_thread(home.restart_redis)
            await asyncio.to_thread(home.wait_direct_enqueue)
            seqs.append((await vehicle_platform.trigger(["V1"], "r6"))["seq"])
            assert home.pending("V1") == seqs
            assert home.redis.get(keys.data("d")) == b"payload"
            await asyncio.to_thread(home.flush)
            assert [e.applied for e in home.archived(Stream.TRIGGER)] == [True, False, False, False, True, True, True]

    asyncio.run(scenario())


def test_the_gap_survives_a_restart_of_the_recorder(home: Harness) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as vehicle_platform:
            home.redis_server.kill()
            seqs = [(await vehicle_platform.trigger(["V1"], f"r{n}"))["seq"] for n in range(3)]
            await asyncio.to_thread(home.flush)
            home.running.kill()
            await asyncio.to_thread(home.restart_redis)
            await home.start_enqueuing()
            seqs.append((await vehicle_platform.trigger(["V1"], "r9"))["seq"])
            assert home.pending("V1") == seqs

    asyncio.run(scenario())


def test_queues_that_are_not_loaded_get_nothing_until_a_rebuild(tmp_path: Path) -> None:
    async def scenario(home: Harness) -> None:
        async with platform(home.broker.port) as vehicle_platform:
            seqs = [(await vehicle_platform.trigger(["V1"], f"r{n}"))["seq"] for n in range(3)]
            assert "rebuild" in str(home.health()["direct_enqueue"])
            assert "recorder_rebuild_needed 1.0" in home.get("/metrics").text
            assert home.pending("V1") == []
            home.load()
            await asyncio.to_thread(home.wait_direct_enqueue)
            assert "recorder_rebuild_needed 0.0" in home.get("/metrics").text
            assert home.pending("V1") == seqs
            home.redis.flushall()
            await asyncio.to_thread(home.wait_direct_enqueue, "suspended")
            seqs = [(await vehicle_platform.trigger(["V1"], "r3"))["seq"]]
            assert home.pending("V1") == []

    with harness(tmp_path) as home:
        home.start()
        asyncio.run(scenario(home))


def test_a_corrupt_key_blocks_only_its_vehicle_and_health_names_it(home: Harness) -> None:
    home.redis.set(keys.pending("V1"), "something else")

    async def scenario() -> None:
        async with platform(home.broker.port) as vehicle_platform:
            seqs = [(await vehicle_platform.trigger(["V1", f"V{n}"], f"r{n}"))["seq"] for n in (2, 3)]
            assert [home.pending(f"V{n}") for n in (2, 3)] == [[seq] for seq in seqs]
            (problem,) = home.health()["problems"]
            assert problem.startswith(f"V1: {keys.pending('V1')} is a string")
            assert home.health()["direct_enqueue"] == "on"
            home.redis.delete(keys.pending("V1"))
            await asyncio.to_thread(wait_until, lambda: not home.health()["problems"], what="the fault to be repaired")

    asyncio.run(scenario())


def test_one_of_two_recorders_reports_the_same_trigger_as_a_duplicate(home: Harness) -> None:
    with stopping(home.running), stopping(home.start(node=1)):
        home.wait_direct_enqueue()

        async def scenario() -> None:
            async with platform(home.broker.port) as vehicle_platform:
                for n in range(10):
                    await vehicle_platform.trigger(["V1"], f"r{n}")

        asyncio.run(scenario())
    archived = home.archived(Stream.TRIGGER)
    originals = sorted(e.seq for e in archived if e.duplicate_of is None)
    assert len(archived) == 20
    assert home.pending("V1") == originals
    assert sorted(e.duplicate_of for e in archived if e.duplicate_of is not None) == originals


def test_a_full_disk_stops_acks_is_reported_and_recovers_by_itself(home: Harness) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as vehicle_platform:
            await vehicle_platform.trigger(["V1"], "r0")
            limit(home, 64)  # too small for any record
            receipt = await vehicle_platform.publish(topics.TRIGGER, trigger(["V1"], "r1"))
            await asyncio.to_thread(wait_until, lambda: home.get("/healthz").status_code == 503, what="the recorder to report it")
            assert any("journal" in problem for problem in home.health()["problems"])  # the lease cannot be written either
            assert "manifold_journal_writable 0.0" in home.get("/metrics").text
            assert not receipt.done()
            assert len(home.pending("V1")) == 1
            limit(home, resource.RLIM_INFINITY)
            assert (await receipt)["status"] == "recorded"
            await asyncio.to_thread(wait_until, home.is_healthy, what="the recorder to recover")
            assert len(home.pending("V1")) == 2

    asyncio.run(scenario())


def limit(home: Harness, size: int) -> None:
    """Let no file of the recorder grow beyond `size` bytes: a full disk, for root too."""
    resource.prlimit(home.running.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_an_unwritable_archive_delays_only_segments(home: Harness) -> None:
    archive = home.folder / "home" / "archive"

    async def scenario() -> None:
        async with platform(home.broker.port) as vehicle_platform:
            take_away(archive)
            for n in range(3):
                assert (await vehicle_platform.trigger(["V1"], f"r{n}"))["status"] == "recorded"
            flushed = asyncio.create_task(asyncio.to_thread(home.flush))
            await asyncio.to_thread(wait_until, lambda: home.health()["problems"], what="the recorder to report it")
            assert "archive" in home.health()["problems"][0]
            assert (await vehicle_platform.trigger(["V1"], "r3"))["status"] == "recorded"
            put_back(archive)
            assert len(await flushed) == 1

    asyncio.run(scenario())
    home.flush()
    assert [e.seq for e in home.archived(Stream.TRIGGER)] == home.pending("V1")


def test_the_recorder_resubscribes_at_a_broker_that_lost_its_state(home: Harness) -> None:
    async def scenario() -> None:
        async with platform(home.broker.port) as vehicle_platform:
            await vehicle_platform.trigger(["V1"], "r0")
            await asyncio.to_thread(home.restart_broker)
            await asyncio.to_thread(wait_until, home.is_healthy, what="the recorder to be subscribed again")
            await vehicle_platform.connected()
            await vehicle_platform.trigger(["V1"], "r1")
            assert len(home.pending("V1")) == 2

    asyncio.run(scenario())
