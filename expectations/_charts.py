"""A chart of quality over time: one number for each judgement, and its words."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of one run at one time."""

    run_id: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Chart:
    """A number for each judgement, in their order; None for a judgement without one."""

    suite: str
    rule: str | None  # None: how many rows the table got
    severity: str  # of the newest row; of rows, the empty word
    values: Sequence[float | None]
    severities: Sequence[str]  # of each value
    judged_now: bool = True  # whether the newest judgement of the table knows the rule

    @property
    def broken(self) -> Sequence[int]:
        """The indices of the judgements in which rows broke the rule."""
        return [place for place, value in enumerate(self.values) if value and self.rule]

    @property
    def most(self) -> float:
        """The greatest value."""
        return max((value for value in self.values if value is not None), default=0)

    def says(self, value: float | None) -> str:
        """A value as text."""
        if value is None:
            return "not judged"
        if self.rule is None:
            return f"{value:,.0f} rows"
        return f"{value:.2%}" if value >= 0.0001 else "under 0.01%" if value else "none"

    @property
    def summary(self) -> str:
        """The picture as text."""
        last = next((value for value in reversed(self.values) if value is not None), None)
        if self.rule is None:
            return f"at most {self.says(self.most)} in a run, last {self.says(last)}"
        asked = sum(value is not None for value in self.values)
        summary = f"broken in {len(self.broken)} of {asked} judgements, by at most {self.says(self.most)} of the rows"
        return f"{summary}, last {self.says(last)}" if self.judged_now else f"{summary}; not a rule any more"
