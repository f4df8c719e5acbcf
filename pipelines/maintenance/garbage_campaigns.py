"""Finds data that an open campaign will still release: it is needed, although no entry refers to it yet. No Spark."""

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


def campaigns_with_data(catalog: Catalog, base: Mapping[str, int]) -> dict[str, set[str]]:
    """By data_id, the campaigns that were ever proposed for it."""
    found = defaultdict[str, set[str]](set)
    scan = catalog.load_table(CAMPAIGNS.identifier).scan(
        selected_fields=("campaign", "data_id"), snapshot_id=base[CAMPAIGNS.name]
    )
    for row in scan.to_arrow().to_pylist():
        if row["data_id"] is not None:
            found[row["data_id"]].add(row["campaign"])
    return found


def open_campaigns(catalog: Catalog, base: Mapping[str, int], campaigns: Collection[str], *, since: datetime) -> set[str]:
    """Return those of `campaigns` that were proposed and are not over.

    A campaign whose plan ends before `since` counts as over, even if its end is not recorded: it releases nothing any more.
    """
    orders = defaultdict[str, dict[int, Command]](dict)
    scan = catalog.load_table(CAMPAIGN_EVENTS.identifier).scan(
        In(term="campaign", literals=set(campaigns)), ("campaign", "seq", "record"), snapshot_id=base[CAMPAIGN_EVENTS.name]
    )
    for row in scan.to_arrow().to_pylist():
        order = decode(row["record"])
        if not isinstance(order, Refused):
            orders[row["campaign"]][row["seq"]] = order
    since_ms = round(since.timestamp() * 1000)
    return {campaign for campaign, given in orders.items() if _is_open(decide(given), since_ms)}


def _is_open(decided: Decided, since_ms: int) -> bool:
    if decided.plan is None or decided.stage in OVER:
        return False
    plans = [decided.plan] if decided.amendment is None else [decided.plan, decided.amendment.plan]
    return max(plan.ends_ms for plan in plans) >= since_ms
