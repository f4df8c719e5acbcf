"""The API keeps campaigns that may still change in memory, and reads others when somebody asks for them by name."""

import asyncio
from dataclasses import replace
from pathlib import Path

from manifold.api._campaign_record import Campaigns
from manifold.campaigns.decided import Stage
from manifold.campaigns.fold import Campaign
from manifold.contracts import campaigns as r
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.seq import TIME_SHIFT
from tests.manifold.campaigns.service.test_record import recorded, started, two_journals

DAY_MS = 86_400_000


def ended(days_ago: int) -> list[Envelope]:
    """The orders of campaign `c`, which was cancelled so long ago."""
    orders = started()
    orders.append(recorded(len(orders), 0, Stream.CAMPAIGN, r.encode(r.Cancel("c", "ann"))))  # afterwards: it takes the time
    return [replace(order, seq=order.seq - (days_ago * DAY_MS << TIME_SHIFT)) for order in orders]


def read(home: Path, orders: list[Envelope]) -> tuple[set[str], Campaign | None, Campaign | None]:
    """The names of the campaigns in memory; the campaign `c`; and one that nobody has proposed."""

    async def scenario() -> tuple[set[str], Campaign | None, Campaign | None]:
        async with two_journals(home) as (settings, journals):
            await journals[0].append(orders)
            campaigns = Campaigns(settings)
            return set(await campaigns.all()), await campaigns.one("c"), await campaigns.one("other")

    return asyncio.run(scenario())


def test_a_campaign_that_was_over_before_the_retention_is_read_by_name_alone(tmp_path: Path) -> None:
    names, found, other = read(tmp_path, ended(40))

    assert (names, other) == (set(), None)
    assert found is not None
    assert found.decided.stage is Stage.CANCELLED


def test_a_campaign_that_was_over_within_the_retention_is_kept(tmp_path: Path) -> None:
    assert read(tmp_path, ended(20))[0] == {"c"}


def test_a_campaign_leaves_memory_when_the_retention_is_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_journals(tmp_path) as (settings, journals):
            await journals[0].append(ended(20))
            campaigns = Campaigns(settings)
            assert set(await campaigns.all()) == {"c"}
            campaigns.kept_ms = 10 * DAY_MS  # as if ten days had passed
            assert set(await campaigns.all()) == set()
            found = await campaigns.one("c")
            assert found is not None
            assert found.decided.stage is Stage.CANCELLED

    asyncio.run(scenario())
