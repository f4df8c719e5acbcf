"""Compares segments of campaign orders and vehicles' answers with the rows that ingest makes of them. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from manifold.contracts.envelope import Stream
from manifold.contracts.tables import CAMPAIGN_ANSWERS, CAMPAIGN_EVENTS, CAMPAIGN_TABLES, CAMPAIGN_TARGETS, CAMPAIGNS
from pipelines.maintenance.ecq_check import TableComparison

CountRows = Callable[..., Counter[tuple[Any, ...]]]  # the signature of `Comparison.count_rows`


@dataclass(slots=True)
class CampaignRows:
    """The number of rows per message (seq) in each campaign table, as expected from segments or as found in the tables."""

    rows: dict[str, Counter[int]] = field(default_factory=lambda: {table.name: Counter() for table in CAMPAIGN_TABLES})

    def seqs(self) -> set[int]:
        """The seqs of all messages: orders to campaigns, and vehicles' answers."""
        return {*self.rows[CAMPAIGN_EVENTS.name], *self.rows[CAMPAIGN_ANSWERS.name]}

    def add_messages(self, stream: Stream, accepted: pa.RecordBatch) -> None:
        """Add the rows that ingest makes of these parsed messages."""
        seqs = accepted["seq"].to_pylist()
        if stream is Stream.ANSWER:
            self.rows[CAMPAIGN_ANSWERS.name].update(seqs)
            return
        self.rows[CAMPAIGN_EVENTS.name].update(seqs)
        # An order with a plan is also a row of `sdv_campaigns`. Each target of an order is a row of `sdv_campaign_targets`.
        with_plan = accepted.filter(pc.is_valid(accepted["plan"]))
        self.rows[CAMPAIGNS.name].update(with_plan["seq"].to_pylist())
        target_counts = zip(seqs, pc.list_value_length(accepted["targets"]).to_pylist(), strict=True)
        self.rows[CAMPAIGN_TARGETS.name].update({seq: count for seq, count in target_counts if count})

    def add(self, other: "CampaignRows") -> None:
        """Merge the counts of other segments. If both have a seq, both have counted the same rows, so nothing is summed."""
        for name, rows in other.rows.items():
            self.rows[name] |= rows


def find_campaign_rows(expected: Iterable[CampaignRows], count_rows: CountRows) -> CampaignRows:
    """Count the rows in the tables that have the seq of an expected row."""
    seqs = {seq for rows in expected for seq in rows.seqs()}
    found = CampaignRows()
    for table in CAMPAIGN_TABLES:
        counts = count_rows(table, ("seq",), "seq", seqs, table.day_of)
        found.rows[table.name].update({seq: count for (seq,), count in counts.items()})
    return found


def compare_campaign_rows(
    expected: CampaignRows, found: CampaignRows, quarantined: Collection[int], *, since: int
) -> Iterator[TableComparison]:
    """Yield a comparison for each campaign table. Messages before the seq `since` or in `quarantined` need no rows."""
    for name, counts in expected.rows.items():
        required = {seq: count for seq, count in counts.items() if seq >= since and seq not in quarantined}
        yield TableComparison(name, required, found.rows[name])
