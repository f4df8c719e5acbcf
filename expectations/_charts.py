"""A chart of quality over time: one value per audit, and its texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class AuditPoint:
    """The audit of one run at one time."""

    run_id: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Chart:
    """One value per audit, in order; None for an audit without one."""

    suite: str
    rule: str | None  # None: the chart shows how many rows the table got
    severity: str  # in the newest audit; empty for row counts
    values: Sequence[float | None]  # of a rule: the fraction of rows that broke it; otherwise: rows
    severities: Sequence[str]  # by value
    judged_now: bool = True  # whether the newest audit of the table has the rule

    @property
    def broken(self) -> Sequence[int]:
        """The indices of the audits in which rows broke the rule."""
        return [place for place, value in enumerate(self.values) if value and self.rule]

    @property
    def highest(self) -> float:
        """The highest value."""
        return max((value for value in self.values if value is not None), default=0)

    def format_value(self, value: float | None) -> str:
        """Format one of `values` for people."""
        if value is None:
            return "not judged"
        if self.rule is None:
            return f"{value:,.0f} rows"
        return f"{value:.2%}" if value >= 0.0001 else "under 0.01%" if value else "none"

    @property
    def summary(self) -> str:
        """The chart as text."""
        last = next((value for value in reversed(self.values) if value is not None), None)
        if self.rule is None:
            return f"at most {self.format_value(self.highest)} in a run, last {self.format_value(last)}"
        asked = sum(value is not None for value in self.values)
        summary = f"broken in {len(self.broken)} of {asked} judgements, by at most {self.format_value(self.highest)} of the rows"
        return f"{summary}, last {self.format_value(last)}" if self.judged_now else f"{summary}; not a rule any more"
