"""Days that lie close together, as spans: a filter asks for a few of these, and not for each day."""

from collections.abc import Iterable
from datetime import date, timedelta

ONE_DAY = timedelta(days=1)


def day_spans(days: Iterable[date], apart: timedelta = ONE_DAY) -> list[tuple[date, date]]:
    """The first and the last day of each span, in order; days that are farther apart than this have spans of their own."""
    spans: list[tuple[date, date]] = []
    for day in sorted(days):
        if spans and day - spans[-1][1] <= apart:
            spans[-1] = (spans[-1][0], day)
        else:
            spans.append((day, day))
    return spans
