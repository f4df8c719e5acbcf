"""A finished campaign, and its record as rows of the lake."""

from collections.abc import Iterable
from typing import Any

from pyiceberg.catalog import Catalog

from manifold.campaigns.facts import Ended, Fact, Recorded, Released
from manifold.contracts.campaigns import encode
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import CAMPAIGN_EVENTS, IDS, OUTCOMES
from tests.manifold.campaigns.plans import NOW, document, fleet_here, proposed, vins
from tests.support.lake_rows import append

NAME = "maps-47"
PLAN = document(number=9, waves=[{"name": "first", "size": 3}, {"name": "rest", "size": "rest"}], rate=2)


def finished() -> list[Fact]:
    """The record of a campaign for nine vehicles, of which one fails."""
    world = proposed(PLAN, fleet_here(9, failing=frozenset({vins(9)[4]})))
    world.run(NOW + 2 * 3_600_000)
    return list(world.facts)


def write(catalog: Catalog, facts: Iterable[Fact]) -> None:
    """Write the rows that ingest makes of these facts."""
    orders, entries, ends = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    for fact in facts:
        at = datetime_of(fact.seq)
        if isinstance(fact, Recorded):
            order = fact.command
            named = {"campaign": NAME, "seq": fact.seq, "at": at, "do": "order", "by": order.by, "epoch": order.epoch}
            orders.append(named | {"seen": order.seen, "record": encode(order)})
        elif isinstance(fact, Released):
            named = {"ts": at, "request_id": NAME, "seq": fact.seq, "data_id": "map_47", "applied": True, "campaign": NAME}
            entries.extend(named | {"vin": vin, "wave": fact.wave, "step": fact.step} for vin in fact.vins)
        elif isinstance(fact, Ended):
            ended = {"vin": fact.vin, "seq": fact.release, "outcome": fact.ending, "accepted_at": datetime_of(fact.release)}
            ends.append(ended | {"ended_at": at, "recorded_seq": fact.seq})
    for table, rows in ((CAMPAIGN_EVENTS, orders), (IDS, entries), (OUTCOMES, ends)):
        append(catalog, table, rows)
