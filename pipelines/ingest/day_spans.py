"""Merges nearby days into spans, so that a filter needs a few ranges instead of every day."""

from collections.abc import Iterable
from datetime import date, timedelta

ONE_DAY = timedelta(days=1)


def day_spans(days: Iterable[date], max_step: timedelta = ONE_DAY) -> list[tuple[date, date]]:
    """The first and last day (inclusive) of each span, in order.

    Two successive days belong to the same span if they are at most `max_step` apart.
    """
    spans: list[tuple[date, date]] = []
    for day in sorted(days):
        if spans and day - spans[-1][1] <= max_step:
            first, _ = spans[-1]
            spans[-1] = (first, day)
        else:
            spans.append((day, day))
    return spans
