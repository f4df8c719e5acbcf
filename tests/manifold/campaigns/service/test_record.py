"""The record of campaigns is read completely, wherever its parts lie: in journals, in the archive, or on the way between."""

import asyncio
import urllib.request
from pathlib import Path

import pytest

from manifold.campaigns.decided import Stage
from manifold.campaigns.fold import Campaign
from manifold.campaigns.record import CampaignRecord, fold_into, read_campaigns
from manifold.contracts import campaigns as r
from manifold.contracts.errors import Retryable
from tests.manifold.campaigns.service.worlds import World, a_world, order, plan_for


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
