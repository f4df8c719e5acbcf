"""One number, one recorder: two processes, a paused one, failing stores. For interleavings see `test_lease_orders`."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from manifold.archive.claims import ArchiveClaims, Claim
from manifold.archive.recorded import RecordedSegments
from manifold.archive.store import Archive
from manifold.contracts import keys, topics
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import node_of, unix_ms_of, wall_clock_ms
from manifold.contracts.storage import S3
from tests.manifold.recorder.harness import Harness, put_back, running_harness, take_away
from tests.manifold.recorder.publisher import platform
from tests.stores.servers import BUCKET, object_storage
from tests.support.servers import wait_until
from tests.support.wire import trigger

LEASE_S = 10.0  # long enough for three renewals on a busy machine


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Harness]:
    """A recorder with a short lease, whose archive others may share."""
    with running_harness(tmp_path / "here", node_lease_seconds=str(LEASE_S), archive_url=f"file://{tmp_path}/archive") as it:
        yield it


def elsewhere(home: Harness) -> Harness:
    """A misconfigured recorder on another host: the same settings, another disk."""
    return Harness(home.folder.parent / "there", home.broker, home.redis_server, home.env, users=home.users)


def publish(home: Harness, *names: str) -> list[int]:
    """Publish one trigger each and return their seqs."""

    async def scenario() -> list[int]:
        async with platform(home.broker.port) as vehicle_platform:
            return [(await vehicle_platform.trigger(["V1"], name))["seq"] for name in names]

    return asyncio.run(scenario())


def seqs_in(home: Harness) -> list[int]:
    """Every seq in the shared archive."""
    archive = RecordedSegments(Archive(home.env["MANIFOLD_ARCHIVE_URL"]))
    return [envelope.seq for stream in (Stream.TRIGGER, Stream.OUTCOME) for envelope in archive.recorded_since(stream, 0)]


@pytest.mark.parametrize("knows", ["both", "the archive", "Redis"])
def test_a_second_recorder_with_the_same_number_refuses_to_start(home: Harness, knows: str) -> None:
    other = elsewhere(home)
    if knows == "the archive":
        home.redis.delete(keys.recorders(0))
    if knows == "Redis":
        other.env = other.env | {"MANIFOLD_ARCHIVE_URL": f"file://{home.folder.parent}/another"}
    with pytest.raises(
        RuntimeError, match=r"(?s)ended with 2.*node=0 is the number of another recorder.*give each recorder a node"
    ):
        other.start()
    assert "Traceback" not in (other.folder / "recorder.log").read_text()
    assert publish(home, "r")
    assert home.running.process.poll() is None


def test_a_second_recorder_on_the_same_journal_refuses_to_start(home: Harness) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ended with 2.*another recorder works on the journal"):
        home.start(recorder_port=home.running.port + 1)


def test_a_restart_after_a_kill_continues_without_a_pause_or_a_gap(home: Harness) -> None:
    before = publish(home, "r1")
    home.running.kill()
    home.start(node_lease_seconds=86400)  # its lease does not matter on its own disk
    home.wait_direct_enqueue()
    after = publish(home, "r2")
    assert after > before
    assert unix_ms_of(after[0]) <= wall_clock_ms(), "a seq of the reserved range"


def test_a_resumed_holder_finds_its_number_taken_and_exits(home: Harness) -> None:
    first = publish(home, "r1", "r2")
    home.running.process.send_signal(signal.SIGSTOP)
    other = elsewhere(home)
    try:
        wait_until(lambda: started(other), within_s=60, what="the number to be free")
        other.wait_direct_enqueue()
        second = publish(other, "r3", "r4")
        home.running.process.send_signal(signal.SIGCONT)
        assert home.running.process.wait(30) == 2
        assert "node=0 is the number of another recorder" in home.running.log.read_text()
        third = publish(other, "r5")
        other.flush()
        assert first + second + third == sorted({*first, *second, *third})
        assert len(seqs_in(home)) == len(set(seqs_in(home)))
        assert {node_of(seq) for seq in first + third} == {0}
        wait_until(lambda: home.pending("V1") == first + second + third, what="the last entry to be enqueued")
    finally:
        os.kill(home.running.pid, signal.SIGCONT) if home.running.process.poll() is None else None
        other.running.stop() if other.recorder else None


def started(harness: Harness) -> bool:
    """Whether this recorder got its number."""
    try:
        harness.start()
    except RuntimeError:
        return False
    return True


def test_a_clean_shutdown_frees_the_number_at_once(home: Harness) -> None:
    before = publish(home, "r1")
    home.running.stop()
    other = elsewhere(home)
    other.start(node_lease_seconds=86400)
    try:
        other.wait_direct_enqueue()
        assert publish(other, "r2") > before
    finally:
        other.running.stop()


def test_the_claim_survives_a_wiped_and_an_unreachable_redis(home: Harness) -> None:
    home.restart_redis(wiped=True)
    wait_until(lambda: home.redis.hlen(keys.recorders(0)) == 1, what="the claim to be in Redis again")
    home.redis_server.kill()
    home.running.kill()
    home.start(node_lease_seconds=86400)
    assert publish(home, "r1")
    with pytest.raises(RuntimeError, match="node=0 is the number of another recorder"):
        elsewhere(home).start(node_lease_seconds=86400)
    home.restart_redis()


def renewed(home: Harness) -> None:
    """Wait until the claim in Redis changes."""
    before = home.redis.hgetall(keys.recorders(0))
    wait_until(lambda: home.redis.hgetall(keys.recorders(0)) != before, what="a renewal")


def test_while_the_archive_is_unreachable_the_claim_is_renewed_in_redis(home: Harness) -> None:
    archive = Path(home.env["MANIFOLD_ARCHIVE_URL"].removeprefix("file://"))
    home.flush()
    take_away(archive)

    async def scenario() -> None:
        async with platform(home.broker.port) as vehicle_platform:
            for n in range(3):
                await vehicle_platform.trigger(["V1"], f"r{n}")
                await asyncio.to_thread(renewed, home)

    asyncio.run(scenario())
    home.running.kill()
    home.start(node_lease_seconds=86400)
    assert publish(home, "r4")
    put_back(archive)


def test_without_any_store_the_recorder_runs_until_its_lease_expires(home: Harness) -> None:
    archive = Path(home.env["MANIFOLD_ARCHIVE_URL"].removeprefix("file://"))
    take_away(archive)
    home.redis_server.kill()
    wait_until(
        lambda: any("cannot be renewed" in problem for problem in home.health()["problems"]),
        what="the lease to be reported as a problem",
    )

    async def scenario() -> None:
        async with platform(home.broker.port) as vehicle_platform:
            receipts = [await vehicle_platform.publish(topics.TRIGGER, trigger(["V1"], f"r{n}")) for n in range(3)]
            put_back(archive)
            assert len({(await receipt)["seq"] for receipt in receipts}) == 3

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["a disk", "an object store"])
def test_a_claim_is_visible_to_everybody_as_soon_as_it_is_put(tmp_path: Path, kind: str) -> None:
    async def scenario(url: str, s3: S3) -> None:
        mine, other = ArchiveClaims(url, s3, 7), ArchiveClaims(url, s3, 7)
        claims = [Claim(place, "journal", "here", 1, 0, upto_ms, upto_ms) for place, upto_ms in (("a", 1), ("b", 2), ("a", 3))]
        assert await other.claims() == []
        for claim in claims:
            await mine.put(claim)
            assert claim in await other.claims()
        assert sorted(await other.claims(), key=lambda claim: claim.place) == [claims[2], claims[1]]
        await other.remove(claims[2])
        assert await mine.claims() == [claims[1]]
        assert await ArchiveClaims(url, s3, 8).claims() == []

    if kind == "a disk":
        asyncio.run(scenario(f"file://{tmp_path}/archive", S3()))
    else:
        with object_storage(tmp_path) as s3:
            asyncio.run(scenario(f"s3://{BUCKET}/archive", s3))
