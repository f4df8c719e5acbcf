"""Merges nearby days into spans, so that a filter needs a few ranges instead of every day."""

from collections.abc import Iterable
from datetime import date, timedelta

ONE_DAY = timedelta(days=1)


def day_spans(days: Iterable[date], apart: timedelta = ONE_DAY) -> list[tuple[date, date]]:
    """The first and last day of each span, in order; a gap longer than `apart` starts a new span."""
    spans: list[tuple[date, date]] = []
    for day in sorted(days):
        if spans and day - spans[-1][1] <= apart:
            spans[-1] = (spans[-1][0], day)
        else:
            spans.append((day, day))
    return spans
