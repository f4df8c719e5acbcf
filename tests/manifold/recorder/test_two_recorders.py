"""Two recorders share the work: each publisher belongs to one of them, and its messages keep their order even if it dies.

EMQX's `hash_clientid` assigns whole publishers. Mosquitto cannot, so each recorder has its own broker here and each publisher
uses one of them: the same division without EMQX's hash. Queues and archive are shared.
"""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from manifold.archive.flush import flush
from manifold.archive.recorded import RecordedSegments
from manifold.archive.store import Archive
from manifold.console._doctor import examine
from manifold.contracts import topics
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import node_of
from manifold.settings import Settings
from tests.manifold.recorder.harness import Harness, harness
from tests.manifold.recorder.publisher import Platform, platform
from tests.support.servers import ROOT, start_mosquitto, stopping
from tests.support.wire import trigger

VINS = ["V1", "V2"]
ROUNDS = 20


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Harness, Harness]]:
    """Recorders 0 and 1, each at its own broker."""
    with (
        harness(tmp_path / "one", archive_url=f"file://{tmp_path}/archive") as one,
        stopping(start_mosquitto(tmp_path / "other-broker")) as broker,
    ):
        one.load()
        other = Harness(tmp_path / "other", broker, one.redis_server, one.env | {"MANIFOLD_NODE": "1"}, users=one.users)
        one.start()
        other.start()
        try:
            one.wait_direct_enqueue()
            other.wait_direct_enqueue()
            yield one, other
        finally:
            other.running.stop()


async def publish(publisher: Platform, name: str, rounds: range) -> "list[asyncio.Future[dict[str, object]]]":
    """Publish data and its trigger repeatedly without waiting for receipts; return the triggers' receipts."""
    receipts = []
    for n in rounds:
        await publisher.publish(topics.data_topic(f"{name}-{n}"), name.encode())
        receipts.append(await publisher.publish(topics.TRIGGER, trigger(VINS, f"{name}-{n}", f"{name}-{n}")))
    return receipts


def order_of(home: Harness, name: str, seqs: list[int]) -> list[int]:
    """The rounds of one publisher in the order of these seqs."""
    found = [str(home.redis.hget(f"t:{seq}", "request_id"), "ascii") for seq in seqs]  # type: ignore[arg-type]  # bytes
    return [int(request_id.rpartition("-")[2]) for request_id in found if request_id.startswith(f"{name}-")]


def test_messages_of_a_publisher_keep_their_order_if_its_recorder_dies(two: tuple[Harness, Harness]) -> None:
    one, other = two

    async def scenario() -> None:
        async with platform(one.broker.port, "sdv-pub-a") as a, platform(other.broker.port, "sdv-pub-b") as b:
            of_a, of_b = await asyncio.gather(publish(a, "a", range(ROUNDS)), publish(b, "b", range(ROUNDS)))
            await asyncio.gather(*of_a, of_b[0])
            other.running.kill()
            of_b += await publish(b, "b", range(ROUNDS, 2 * ROUNDS))  # the broker keeps them in the dead recorder's session
            of_a = await publish(a, "a", range(ROUNDS, 2 * ROUNDS))
            await asyncio.gather(*of_a)
            await asyncio.to_thread(other.start)  # with the same journal, before it receives anything
            await asyncio.gather(*of_b[ROUNDS:])

    asyncio.run(scenario())
    other.wait_direct_enqueue()
    for vin in VINS:
        assert order_of(one, "a", one.pending(vin)) == list(range(2 * ROUNDS))
        assert order_of(one, "b", one.pending(vin)) == list(range(2 * ROUNDS))
    assert one.keys("p:*") == [], "an entry waits for data that its publisher sent earlier"
    one.flush()
    other.flush()
    archive = RecordedSegments(Archive(one.env["MANIFOLD_ARCHIVE_URL"]))
    seqs = [e.seq for stream in (Stream.DATA, Stream.TRIGGER) for e in archive.recorded_since(stream, 0)]
    assert {node_of(seq) for seq in seqs} == {0, 1}
    assert len(seqs) == len(set(seqs))


def test_emqx_is_configured_to_assign_publishers_to_recorders() -> None:
    """EMQX's default for a group is random: data could go to one recorder and its trigger to another."""
    config = (ROOT / "infra" / "emqx" / "manifold.conf").read_text()
    groups = dict(re.findall(r"shared_subscription_group\.([\w-]+) \{ strategy = (\w+) \}", config))
    assert groups == {topics.RECORDER_GROUP: "hash_clientid"}


def test_a_recorder_missing_from_the_urls_is_noticed(two: tuple[Harness, Harness]) -> None:
    one, other = two
    archive = f"file://{one.folder.parent}/archive"
    here, there = (f"http://127.0.0.1:{each.running.port}" for each in two)

    def settings(urls: str) -> Settings:
        return Settings(recorder_urls=urls, archive_url=archive)

    with capture_logs() as logs:
        assert not flush(settings(here))
    assert [(line["service"], "MANIFOLD_RECORDER_URLS" in line["reason"]) for line in logs] == [("node=1", True)]
    assert {d.passed for d in examine(settings(here)) if d.check == "recorders"} == {False}
    assert {d.passed for d in examine(settings(f"{here},{there}")) if d.check == "recorders"} == {True}
    assert flush(settings(f"{here},{there}"))
    other.running.stop()  # it closes its segments and releases its number
    assert flush(settings(here))
