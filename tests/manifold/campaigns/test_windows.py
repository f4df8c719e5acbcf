"""A window is open by the wall clock of its zone, and a span ends exactly where that changes."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifold.campaigns.quantities import instant_ms
from manifold.campaigns.windows import DAYS, Window, span_at

ZONES = ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Havana", "UTC"]


def at(instant_or_wall: str, zone: str = "UTC") -> int:
    if instant_or_wall.endswith("Z"):
        return instant_ms(instant_or_wall)
    return int(datetime.fromisoformat(instant_or_wall).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


NIGHT = Window("22:00", "05:00")
# window, zone, instant, open, until
SPANS = [
    (NIGHT, "Europe/Berlin", "2026-12-01T20:59:59Z", False, "2026-12-01T21:00:00Z"),
    (NIGHT, "Europe/Berlin", "2026-12-01T21:00:00Z", True, "2026-12-02T04:00:00Z"),
    (NIGHT, "Asia/Kolkata", "2026-12-01T21:00:00Z", True, "2026-12-01T23:30:00Z"),
    (NIGHT, "Europe/Berlin", "2027-03-27T23:00:00Z", True, "2027-03-28T03:00:00Z"),  # an hour shorter
    (NIGHT, "Europe/Berlin", "2026-10-24T22:00:00Z", True, "2026-10-25T04:00:00Z"),  # an hour longer
    # the skipped hour: no window on that day
    (Window("02:00", "03:00"), "Europe/Berlin", "2027-03-27T02:30:00Z", False, "2027-03-29T00:00:00Z"),
    # a window entered by the clock's jump opens with the jump
    (Window("02:30", "05:00"), "Europe/Berlin", "2027-03-28T00:59:59Z", False, "2027-03-28T01:00:00Z"),
    # a repeated hour belongs to it twice
    (Window("02:00", "02:30"), "Europe/Berlin", "2026-10-25T00:10:00Z", True, "2026-10-25T00:30:00Z"),
    (Window("02:00", "02:30"), "Europe/Berlin", "2026-10-25T00:40:00Z", False, "2026-10-25T01:00:00Z"),
    # the day on which the window begins counts
    (Window("22:00", "05:00", days=("fri",)), "UTC", "2026-12-05T04:59:00Z", True, "2026-12-05T05:00:00Z"),
    (Window("22:00", "05:00", days=("fri",)), "UTC", "2026-12-05T22:00:00Z", False, "2026-12-11T22:00:00Z"),
]


@pytest.mark.parametrize(("window", "zone", "now", "is_open", "until"), SPANS)
def test_a_window_is_open_by_the_wall_clock_of_the_zone(window: Window, zone: str, now: str, is_open: bool, until: str) -> None:
    span = span_at(window, zone, at(now))

    assert (span.is_open, datetime.fromtimestamp(span.until_ms / 1000, UTC)) == (is_open, datetime.fromisoformat(until))


def is_inside(window: Window, zone: str, now_ms: int) -> bool:
    """An independent implementation over wall-clock minutes, counted from the beginning of the window."""
    local = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(ZoneInfo(zone))
    minute = local.hour * 60 + local.minute
    first, last = (int(text[:2]) * 60 + int(text[3:]) for text in (window.opens, window.closes))
    began_yesterday = first > last and minute < last
    day = DAYS[(local.weekday() - began_yesterday) % 7]
    return (minute - first) % 1440 < (last - first) % 1440 and day in window.days


minutes = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.sampled_from([0, 1, 30, 59]))
days = st.sets(st.sampled_from(DAYS), min_size=1).map(lambda names: tuple(sorted(names)))
windows = st.tuples(minutes, minutes, days).filter(lambda it: it[0] != it[1]).map(lambda it: Window(it[0], it[1], days=it[2]))
around_changes = st.sampled_from(["2027-03-28T00:00:00Z", "2026-10-25T00:00:00Z", "2026-11-01T00:00:00Z", "2027-04-04T00:00:00Z"])


@settings(deadline=None)
@given(windows, st.sampled_from(ZONES), around_changes, st.integers(-200_000, 200_000), st.data())
def test_a_span_has_one_answer_throughout_and_another_after_it(
    window: Window, zone: str, day: str, second: int, data: st.DataObject
) -> None:
    now = instant_ms(day) + second * 1000

    span = span_at(window, zone, now)

    within = data.draw(st.integers(now, span.until_ms - 1))
    assert span.is_open == is_inside(window, zone, now) == is_inside(window, zone, within)
    if span.until_ms - now < 14 * 86_400_000:
        assert is_inside(window, zone, span.until_ms) != span.is_open
