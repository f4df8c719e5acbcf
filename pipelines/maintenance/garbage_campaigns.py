"""Finds data that an open campaign will still release. Such data is needed, although no entry refers to it yet. No Spark."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import In

from manifold.campaigns.decided import OVER, Decided
from manifold.campaigns.decisions import decide
from manifold.contracts.campaigns import Command, decode
from manifold.contracts.messages import Refused
from manifold.contracts.tables import CAMPAIGN_EVENTS, CAMPAIGNS


def campaigns_by_data_id(catalog: Catalog, base: Mapping[str, int]) -> dict[str, set[str]]:
    """The campaigns that were ever proposed, by the data_id that they send. Plans without a data_id are left out."""
    campaigns = defaultdict[str, set[str]](set)
    scan = catalog.load_table(CAMPAIGNS.identifier).scan(
        selected_fields=("campaign", "data_id"), snapshot_id=base[CAMPAIGNS.name]
    )
    for row in scan.to_arrow().to_pylist():
        if row["data_id"] is not None:
            campaigns[row["data_id"]].add(row["campaign"])
    return campaigns


def open_campaigns(catalog: Catalog, base: Mapping[str, int], campaigns: Collection[str], *, since: datetime) -> set[str]:
    """Return the campaigns among `campaigns` that were proposed and have not ended.

    A campaign whose plan ends before `since` counts as ended, even if its end is not recorded, because it releases nothing more.
    """
    orders_of_campaign = defaultdict[str, dict[int, Command]](dict)  # campaign → seq → order
    scan = catalog.load_table(CAMPAIGN_EVENTS.identifier).scan(
        In(term="campaign", literals=set(campaigns)), ("campaign", "seq", "record"), snapshot_id=base[CAMPAIGN_EVENTS.name]
    )
    for row in scan.to_arrow().to_pylist():
        order = decode(row["record"])
        if not isinstance(order, Refused):  # another release may have recorded an order that this release does not know
            orders_of_campaign[row["campaign"]][row["seq"]] = order
    since_ms = round(since.timestamp() * 1000)
    return {campaign for campaign, orders in orders_of_campaign.items() if _is_open(decide(orders), since_ms)}


def _is_open(decided: Decided, since_ms: int) -> bool:
    """Whether a campaign with these decisions has a plan that ends at or after `since_ms`, and is not over."""
    if decided.plan is None or decided.stage in OVER:
        return False
    plans = [decided.plan]
    if decided.amendment is not None:  # it is not approved yet, but may be
        plans.append(decided.amendment.plan)
    return max(plan.ends_ms for plan in plans) >= since_ms
