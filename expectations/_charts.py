"""The values and texts of a chart of quality over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class AuditPoint:
    """An audit as a point on the x-axis of a chart: run and instant."""

    run_id: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with one value per audit, oldest first. It shows how often a rule was broken, or how many rows a table got.

    A value is None if the audit did not check the table or the rule.
    """

    suite: str  # name of the table
    rule: str | None  # None: the chart shows row counts
    severity: str  # the rule's severity in its newest audit; empty for row counts
    values: Sequence[float | None]  # for a rule, the fraction of rows that broke it; otherwise, the number of rows
    severities: Sequence[str]  # the rule's severity in each audit; empty where it was not checked, and for row counts
    is_current: bool = True  # whether the newest audit of the table checked the rule

    @property
    def broken(self) -> Sequence[int]:
        """The indices of the audits in which rows broke the rule; empty for row counts."""
        if not self.rule:
            return []
        return [index for index, value in enumerate(self.values) if value]

    @property
    def highest(self) -> float:
        """The highest value."""
        return max((value for value in self.values if value is not None), default=0)

    def format_value(self, value: float | None) -> str:
        """Format one of `values` for readers of the page."""
        if value is None:
            return "not judged"
        if self.rule is None:
            return f"{value:,.0f} rows"
        if value >= 0.0001:
            return f"{value:.2%}"
        return "under 0.01%" if value else "none"

    @property
    def summary(self) -> str:
        """The chart in words."""
        known_values = [value for value in self.values if value is not None]
        last = self.format_value(known_values[-1] if known_values else None)
        highest = self.format_value(self.highest)
        if self.rule is None:
            return f"at most {highest} in a run, last {last}"
        summary = f"broken in {len(self.broken)} of {len(known_values)} judgements, by at most {highest} of the rows"
        return f"{summary}, last {last}" if self.is_current else f"{summary}; not a rule any more"
