"""What vehicles and people put on record neither fills the reader's memory nor makes a campaign seem over."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from manifold.archive.journal import Journal
from manifold.campaigns.decided import Stage
from manifold.campaigns.fold import Campaign
from manifold.campaigns.record import CampaignRecord, read_campaigns
from manifold.campaigns.standing import Status
from manifold.contracts import campaigns as r
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import NEVER_MS, seq_of
from manifold.contracts.topics import TRIGGER
from manifold.settings import Settings
from tests.manifold.campaigns.service.test_record import recorded, refresh, started, two_journals
from tests.manifold.campaigns.service.worlds import plan_for
from tests.support.wire import release


def answer(place: int, seq: int) -> Envelope:
    """An answer of vehicle A to the message `seq`, recorded by recorder 0."""
    payload = json.dumps({"seq": str(seq), "status": "done"}).encode()
    return replace(recorded(place, 0, Stream.ANSWER, payload), topic="agent/A/proxy/response/c")


def test_answers_to_seqs_that_nobody_has_given_are_forgotten(tmp_path: Path) -> None:
    campaigns, orders = dict[str, Campaign](), started()
    released = recorded(3, 1, Stream.TRIGGER, release(["A"], "c", "data-c"))

    async def scenario() -> tuple[CampaignRecord, list[Journal]]:
        async with two_journals(tmp_path) as (settings, journals):
            record = CampaignRecord(settings)
            await journals[0].append([*orders, *(answer(10 + n, seq_of(NEVER_MS, 1, n)) for n in range(50))])
            await asyncio.to_thread(refresh, campaigns, record)
            assert record.awaiting_release == 50  # the other recorder may have recorded their releases meanwhile
            ended = recorded(100, 0, Stream.OUTCOME, OutcomeRecord("A", released.seq, Outcome.DELIVERED, 0).to_wire())
            await journals[0].append([ended])
            await asyncio.to_thread(refresh, campaigns, record)
            assert record.awaiting_release == 1
            await journals[1].append([released])
            await asyncio.to_thread(refresh, campaigns, record)
            assert record.awaiting_release == 0
            return record, journals

    asyncio.run(scenario())

    assert campaigns["c"].status_of("A") is Status.DELIVERED


def test_an_order_to_another_version_ends_no_campaign_at_the_first_read(tmp_path: Path) -> None:
    plan: dict[str, Any] = plan_for("c", []) | {"targets": {"file": "fleet.csv"}}
    first, last = {"name": "first", "size": 1}, {"name": "last", "size": "rest"}
    amended = plan | {"waves": [first, {"name": "second", "size": 1}, last]}
    orders: tuple[r.Command, ...] = (
        r.Propose("c", "ann", plan=plan | {"waves": [first, last]}),
        r.AddTargets("c", "ann", targets=tuple(map(r.Target, "ABC"))),
        r.Amend("c", "ann", plan=amended),  # of the first vehicle alone, three waves cannot be made
        r.Cancel("c", "ann", if_version=2),
    )

    async def scenario(settings: Settings, journals: list[Journal]) -> dict[str, Campaign]:
        await journals[0].append([recorded(place, 0, Stream.CAMPAIGN, r.encode(order)) for place, order in enumerate(orders)])
        return dict(await asyncio.to_thread(read_campaigns, settings))

    async def run() -> dict[str, Campaign]:
        async with two_journals(tmp_path) as (settings, journals):
            return await scenario(settings, journals)

    found = asyncio.run(run())

    assert {name: campaign.decided.stage for name, campaign in found.items()} == {"c": Stage.PROPOSED}


def test_a_publishers_trigger_that_claims_to_be_a_release_is_none(tmp_path: Path) -> None:
    campaigns, orders = dict[str, Campaign](), started()
    forged = replace(recorded(3, 0, Stream.TRIGGER, release(["A"], "c", "other-data")), topic=TRIGGER)

    async def scenario() -> None:
        async with two_journals(tmp_path) as (settings, journals):
            await journals[0].append([*orders, forged])
            record = CampaignRecord(settings)
            await asyncio.to_thread(refresh, campaigns, record)

    asyncio.run(scenario())

    assert campaigns["c"].status_of("A") is Status.WAITING
    assert not campaigns["c"].releases


def test_a_release_stays_a_fact_when_a_limit_is_lowered_after_it(tmp_path: Path) -> None:
    campaigns, orders = dict[str, Campaign](), started()
    released = recorded(3, 0, Stream.TRIGGER, release(["A", "B", "C"], "c", "data-c"))

    async def scenario() -> None:
        async with two_journals(tmp_path) as (settings, journals):
            await journals[0].append([*orders, released])
            lowered = settings.model_copy(update={"max_ids": 2})
            await asyncio.to_thread(refresh, campaigns, CampaignRecord(lowered))

    asyncio.run(scenario())

    assert campaigns["c"].status_of("A") is Status.RELEASED
