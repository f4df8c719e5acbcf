"""Compares what segments of orders to campaigns should have brought with the tables. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from manifold.contracts.tables import CAMPAIGN_EVENTS, CAMPAIGN_TARGETS, CAMPAIGNS
from pipelines.maintenance.ecq_check import Expected

Count = Callable[..., Counter[tuple[Any, ...]]]  # as `Comparison.counted`


@dataclass(slots=True)
class BroughtOrders:
    """Orders that a segment brought, by seq."""

    events: Counter[int] = field(default_factory=Counter)
    plans: Counter[int] = field(default_factory=Counter)
    targets: Counter[int] = field(default_factory=Counter)  # number of vehicles that each lists

    def note(self, accepted: pa.RecordBatch) -> None:
        """Add these parsed messages."""
        self.events.update(accepted["seq"].to_pylist())
        self.plans.update(accepted.filter(pc.is_valid(accepted["plan"]))["seq"].to_pylist())
        sizes = zip(accepted["seq"].to_pylist(), pc.list_value_length(accepted["targets"]).to_pylist(), strict=True)
        self.targets.update({seq: size for seq, size in sizes if size})


@dataclass(slots=True)
class FoundOrders:
    """Rows in the tables, by seq."""

    events: Counter[int] = field(default_factory=Counter)
    plans: Counter[int] = field(default_factory=Counter)
    targets: Counter[int] = field(default_factory=Counter)

    def add(self, other: "FoundOrders") -> None:
        """Merge the rows found for other segments; a seq in both counts the same rows."""
        self.events |= other.events
        self.plans |= other.plans
        self.targets |= other.targets


def found_orders(group: Iterable[BroughtOrders], counted: Count) -> FoundOrders:
    """The rows in the tables that these segments should have brought."""
    seqs = {seq for one in group for seq in one.events}
    tables = (CAMPAIGN_EVENTS, CAMPAIGNS, CAMPAIGN_TARGETS)
    rows = (counted(table, ("seq",), "seq", seqs, table.day_of) for table in tables)
    return FoundOrders(*(Counter({key[0]: n for key, n in of_table.items()}) for of_table in rows))


def expected_orders(of: BroughtOrders, found: FoundOrders, accounted: Collection[int]) -> Iterator[Expected]:
    """Yield the rows that each table should have of the segment. Messages in `accounted` are in quarantine."""
    for table, brought, there in (
        (CAMPAIGN_EVENTS, of.events, found.events),
        (CAMPAIGNS, of.plans, found.plans),
        (CAMPAIGN_TARGETS, of.targets, found.targets),
    ):
        yield Expected(table.name, {seq: n for seq, n in brought.items() if seq not in accounted}, there)
