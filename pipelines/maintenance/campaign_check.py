"""Compares what segments of orders to campaigns and of answers should have brought with the tables. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from manifold.contracts.envelope import Stream
from manifold.contracts.tables import CAMPAIGN_ANSWERS, CAMPAIGN_EVENTS, CAMPAIGN_TABLES, CAMPAIGN_TARGETS, CAMPAIGNS
from pipelines.maintenance.ecq_check import Expected

Count = Callable[..., Counter[tuple[Any, ...]]]  # as `Comparison.counted`


@dataclass(slots=True)
class OfCampaigns:
    """Numbers of rows by the seq of their message, in each table: as segments brought them, or as the tables have them."""

    rows: dict[str, Counter[int]] = field(default_factory=lambda: {table.name: Counter() for table in CAMPAIGN_TABLES})

    def seqs(self) -> set[int]:
        """The seqs of all messages."""
        return {*self.rows[CAMPAIGN_EVENTS.name], *self.rows[CAMPAIGN_ANSWERS.name]}

    def note(self, stream: Stream, accepted: pa.RecordBatch) -> None:
        """Add these parsed messages."""
        seqs = accepted["seq"].to_pylist()
        if stream is Stream.ANSWER:
            self.rows[CAMPAIGN_ANSWERS.name].update(seqs)
            return
        self.rows[CAMPAIGN_EVENTS.name].update(seqs)
        self.rows[CAMPAIGNS.name].update(accepted.filter(pc.is_valid(accepted["plan"]))["seq"].to_pylist())
        sizes = zip(seqs, pc.list_value_length(accepted["targets"]).to_pylist(), strict=True)
        self.rows[CAMPAIGN_TARGETS.name].update({seq: size for seq, size in sizes if size})

    def add(self, other: "OfCampaigns") -> None:
        """Merge what was found for other segments; a seq in both counts the same rows."""
        for name, rows in other.rows.items():
            self.rows[name] |= rows


def found_of_campaigns(group: Iterable[OfCampaigns], counted: Count) -> OfCampaigns:
    """The rows in the tables that these segments should have brought."""
    found, seqs = OfCampaigns(), {seq for one in group for seq in one.seqs()}
    for table in CAMPAIGN_TABLES:
        rows = counted(table, ("seq",), "seq", seqs, table.day_of)
        found.rows[table.name].update({key[0]: number for key, number in rows.items()})
    return found


def expected_of_campaigns(of: OfCampaigns, found: OfCampaigns, accounted: Collection[int], *, since: int) -> Iterator[Expected]:
    """Yield the rows from the seq `since` on that each table should have. Messages in `accounted` are in quarantine."""
    for name, brought in of.rows.items():
        kept = {seq: number for seq, number in brought.items() if seq >= since and seq not in accounted}
        yield Expected(name, kept, found.rows[name])
