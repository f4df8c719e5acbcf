"""The record of campaigns is read completely, wherever its parts lie: in journals, in the archive, or on the way between."""

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from manifold.archive.journal import Journal
from manifold.archive.recorded import RecordedSegments
from manifold.archive.records import read_journal
from manifold.archive.store import Archive
from manifold.archive.tail import Tail
from manifold.campaigns.decided import Stage
from manifold.campaigns.fold import Campaign
from manifold.campaigns.proposals import target_orders
from manifold.campaigns.record import CampaignRecord, fold_into, read_campaigns
from manifold.campaigns.service._book import Book
from manifold.campaigns.standing import Status
from manifold.contracts import campaigns as r
from manifold.contracts import topics
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.errors import Retryable
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import datetime_of, node_of, seq_of, wall_clock_ms
from manifold.contracts.topics import RELEASE
from manifold.runtime.http import Health, serve
from manifold.settings import Settings
from tests.manifold.archive.test_journal import journal
from tests.manifold.campaigns.service.worlds import World, a_world, order, plan_for
from tests.support.servers import free_port, wait_until
from tests.support.wire import release


def flush(world: World) -> None:
    """Let the recorder close its segments, so that its journal is empty."""
    request = urllib.request.Request(f"{world.settings.recorders[0]}/flush", method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


def refresh(campaigns: dict[str, Campaign], record: CampaignRecord) -> list[str]:
    """Fold what is new; returns the kinds of orders that the campaign has."""
    for facts in record.read():
        fold_into(campaigns, facts)
    found = campaigns.get("c", Campaign())
    return [type(command).__name__ for _, command in sorted(found.orders.items())]


def test_a_follower_finds_each_order_in_journal_or_archive(tmp_path: Path) -> None:
    with a_world(tmp_path) as world:
        campaigns: dict[str, Campaign] = {}
        record = CampaignRecord(world.settings)
        assert refresh(campaigns, record) == []

        asyncio.run(order(world.settings, r.Propose("c", "author", plan=plan_for("c", ["A", "B"]))))
        assert refresh(campaigns, record) == ["Propose"]
        flush(world)
        assert refresh(campaigns, record) == ["Propose"]

        asyncio.run(order(world.settings, r.Approve("c", "approver")))
        flush(world)  # unread
        assert refresh(campaigns, record) == ["Propose", "Approve"]

        asyncio.run(order(world.settings, r.Start("c", "campaigner/x")))
        assert world.platform.recorder is not None
        world.platform.recorder.kill()
        with pytest.raises(Retryable, match="does not tell its journal"):
            refresh(campaigns, record)
        world.platform.start_recorder()
        assert refresh(campaigns, record) == ["Propose", "Approve", "Start"]
        assert campaigns == read_campaigns(world.settings)


def test_a_campaign_that_is_over_is_read_by_name_alone(tmp_path: Path) -> None:
    with a_world(tmp_path) as world:
        for name in ("over", "open"):
            asyncio.run(order(world.settings, r.Propose(name, "author", plan=plan_for(name, ["A"]))))
        asyncio.run(order(world.settings, r.Cancel("over", "author")))
        for _ in range(2):  # in the journal, then in the archive
            assert read_campaigns(world.settings).keys() == {"open"}
            assert read_campaigns(world.settings, ["over"])["over"].decided.stage is Stage.CANCELLED
            flush(world)


def test_a_pause_is_folded_while_the_long_list_of_another_campaign_is_drawn(tmp_path: Path) -> None:
    names = [f"VIN{number:07}" for number in range(400_000)]
    plan = plan_for("long", []) | {"targets": {"file": "fleet.csv"}}
    with a_world(tmp_path) as world:
        book = Book(world.settings)

        def both() -> list[Campaign]:
            book.refresh()
            return [campaign for _, campaign in book.proposed()]

        listed = target_orders("long", "author", [r.Target(vin) for vin in names])
        segments = RecordedSegments(Archive(world.settings.archive))
        orders: list[r.Command] = [r.Propose("long", "author", plan=plan), *listed]
        at_ms = wall_clock_ms() - 60_000
        messages = [
            Envelope(seq := seq_of(at_ms, 7, n), datetime_of(seq), Stream.CAMPAIGN, topics.CAMPAIGN, r.encode(command))
            for n, command in enumerate(orders)
        ]
        segments.seal(messages, node=7)
        for command in (
            r.Propose("short", "author", plan=plan_for("short", ["A"])),
            r.Approve("short", "approver"),
            r.Start("short", "x"),
        ):
            asyncio.run(order(world.settings, command))
        long, short = both()
        assert (len(long.decided.targets), short.decided.stage) == (len(names), Stage.RUNNING)

        asyncio.run(order(world.settings, r.Approve("long", "approver")))
        asyncio.run(order(world.settings, r.Pause("short", "operator")))
        long, short = both()
        assert (short.decided.stage, len(long.roster), book.is_behind("long")) == (Stage.PAUSED, 0, True)
        asyncio.run(order(world.settings, r.Start("long", "x")))
        wait_until(lambda: len(both()[0].roster) == len(names), what="the list to be drawn")
        wait_until(lambda: both()[0].decided.stage is Stage.RUNNING, what="what came meanwhile to be folded")
        assert not book.is_behind("long")


@asynccontextmanager
async def two_journals(home: Path) -> AsyncIterator[tuple[Settings, list[Journal]]]:
    """The journals of recorders 0 and 1, told over HTTP, and settings that name both."""
    ports = [free_port(), free_port()]
    urls = ",".join(f"http://127.0.0.1:{port}" for port in ports)
    journals = [journal(home / str(node)) for node in range(2)]
    async with AsyncExitStack() as stack:
        for node, (kept, port) in enumerate(zip(journals, ports, strict=True)):
            kept.recover()
            stack.callback(kept.stop)
            tail = Tail(kept, node)
            tail.recovered = True
            routes = [web.get("/journal", tail.answer)]
            await stack.enter_async_context(serve("127.0.0.1", port, lambda: Health(True, {}), routes))
        yield Settings(home=home, archive_url=f"file://{home}/archive", recorder_urls=urls), journals


def recorded(place: int, node: int, stream: Stream, payload: bytes) -> Envelope:
    """What a recorder has recorded, each a little later than the one at the place before."""
    now = datetime.now(UTC)
    topic = RELEASE if stream is Stream.TRIGGER else "t"
    return Envelope(seq_of(round(now.timestamp() * 1000) + place, node, 0), now, stream, topic, payload)


def started() -> list[Envelope]:
    """The orders by which campaign `c` runs, whose only target is `A`."""
    propose = r.Propose("c", "author", plan=plan_for("c", ["A"]))
    orders: tuple[r.Command, ...] = (propose, r.Approve("c", "approver"), r.Start("c", "campaigner/x"))
    return [recorded(place, 0, Stream.CAMPAIGN, r.encode(order)) for place, order in enumerate(orders)]


def test_an_outcome_of_one_recorder_finds_the_release_of_another_in_the_archive(tmp_path: Path) -> None:
    campaigns, orders = dict[str, Campaign](), started()
    released = recorded(3, 1, Stream.TRIGGER, release(["A"], "c", "data-c"))
    ended = recorded(4, 0, Stream.OUTCOME, OutcomeRecord("A", released.seq, Outcome.WITHDRAWN, 0).to_wire())

    async def scenario() -> None:
        async with two_journals(tmp_path) as (settings, journals):
            await journals[0].append(orders)
            record = CampaignRecord(settings)
            await asyncio.to_thread(refresh, campaigns, record)
            for kept, envelope in zip(journals, (ended, released), strict=True):  # unread, and gone from the journals
                await kept.append([envelope])
                kept.rotate()
                for file in list(kept.files):
                    envelopes = read_journal(file.path).envelopes(file.annotations)
                    RecordedSegments(Archive(settings.archive, settings.s3)).seal(envelopes, node_of(envelope.seq))
                    await kept.finish_writing(file)
                    await kept.remove(file, [])
            await asyncio.to_thread(refresh, campaigns, record)

    asyncio.run(scenario())

    assert campaigns["c"].status_of("A") is Status.WAITING
    assert campaigns["c"].releases == {released.seq: 1}


@pytest.mark.parametrize("queued", [0, 1])
def test_a_release_that_two_recorders_have_recorded_is_one_whichever_was_queued(tmp_path: Path, queued: int) -> None:
    campaigns, orders = dict[str, Campaign](), started()
    twins = [recorded(3 + node, node, Stream.TRIGGER, release(["A"], "c", "data-c")) for node in range(2)]
    ended = recorded(5, 0, Stream.OUTCOME, OutcomeRecord("A", twins[queued].seq, Outcome.WITHDRAWN, 0).to_wire())

    async def scenario() -> None:
        async with two_journals(tmp_path) as (settings, journals):
            await journals[0].append([*orders, twins[0], ended])
            await journals[1].append([twins[1]])
            await asyncio.to_thread(refresh, campaigns, CampaignRecord(settings))

    asyncio.run(scenario())

    assert campaigns["c"].status_of("A") is Status.WAITING
    assert campaigns["c"].releases.keys() == {twin.seq for twin in twins}


def test_the_name_of_a_campaign_whose_record_is_gone_can_be_used_again(tmp_path: Path) -> None:
    def proposal(place: int) -> Envelope:
        return recorded(place, 0, Stream.CAMPAIGN, r.encode(r.Propose("c", "ben", plan=plan_for("c", ["B"]))))

    async def scenario() -> list[list[tuple[str, str]]]:
        found: list[list[tuple[str, str]]] = []
        async with two_journals(tmp_path) as (settings, journals):
            book = Book(settings)

            async def look() -> None:
                await asyncio.to_thread(book.refresh)
                found.append([(name, campaign.decided.because) for name, campaign in book.proposed()])

            await journals[0].append(started())
            await look()
            await journals[0].append([recorded(10, 0, Stream.CAMPAIGN, r.encode(r.Cancel("c", "ann")))])
            await look()
            await journals[0].append([proposal(20)])
            await look()
            journals[0].rotate()
            for file in list(journals[0].files):
                await journals[0].finish_writing(file)
                await journals[0].remove(file, [])
            await journals[0].append([proposal(30)])
            await look()
        return found

    assert asyncio.run(scenario()) == [[("c", "it is approved")], [], [], [("c", "ben proposed it")]]
