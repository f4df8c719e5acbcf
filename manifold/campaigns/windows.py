"""Daily windows in local wall time, as instants: when a zone's window is open, and until when.

Membership is judged on the wall clock alone. So on the day that the clock goes forward a window inside the missing hour does not
open, and on the day that it goes back both passes through the repeated hour belong to it.
"""

import re
from datetime import UTC, date, datetime, time, timedelta
from functools import cache, lru_cache
from typing import Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

from msgspec import Struct

VEHICLE = "vehicle"
UNSENT_MS = 1000  # at the end of a window, in which nothing is sent: the message would have to expire in whole seconds
_WALL_TIME = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9]")  # one spelling for each minute
_DAY_MS = 86_400_000
_HORIZON_DAYS = 15  # a window of one weekday that the clock skips once opens within two weeks
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = get_args(Day)


class Window(Struct, frozen=True, forbid_unknown_fields=True, rename={"opens": "from", "closes": "to", "otherwise": "else"}):
    """The hours in which a vehicle may be sent to. It may cross midnight; `days` name the day on which it begins."""

    opens: str
    closes: str
    days: tuple[Day, ...] = DAYS
    zone: str = VEHICLE  # the target's own zone, or one for all
    otherwise: str = "UTC"  # for a target without a zone

    def __post_init__(self) -> None:
        for name, text in (("from", self.opens), ("to", self.closes)):
            if _wall_time(text) is None:
                raise ValueError(f"{name}: must be a time of day from 00:00 to 23:59")
        if self.opens == self.closes:
            raise ValueError("to: must differ from the beginning; leave the window out to send at any time")
        if not self.days:
            raise ValueError("days: must name at least one day; leave it out for every day")
        for name, zone in (("zone", self.zone), ("else", self.otherwise)):
            if zone != VEHICLE or name == "else":
                _check_zone(name, zone)

    def zone_of(self, target_zone: str | None) -> str:
        """The zone whose clock counts for a target: its own, where it has one that is known here."""
        if self.zone != VEHICLE:
            return self.zone
        return target_zone if target_zone and is_zone(target_zone) else self.otherwise

    @property
    def opens_ms(self) -> int:
        """When it opens, in milliseconds after midnight."""
        return _minutes(self.opens) * 60_000

    @property
    def length_ms(self) -> int:
        """How long it is open on a day without a change of time."""
        opens, closes = _minutes(self.opens), _minutes(self.closes)
        return (closes - opens) % (24 * 60) * 60_000


class Span(Struct, frozen=True):
    """Whether a window is open at an instant, and until when that does not change."""

    is_open: bool
    until_ms: int


def span_at(window: Window, zone: str, now_ms: int) -> Span:
    """Whether the window is open in `zone` at `now_ms` (Unix milliseconds), and until when that does not change."""
    is_open = _is_open(window, zone, now_ms)
    first_day = now_ms // _DAY_MS
    for day in range(first_day, first_day + _HORIZON_DAYS):
        for at in _candidates(window, zone, day):
            if at > now_ms and _is_open(window, zone, at) != is_open:
                return Span(is_open, at)
    return Span(is_open, (first_day + _HORIZON_DAYS) * _DAY_MS)  # the window is examined again then


def is_sent(at_ms: int, until_ms: int | None) -> bool:
    """Whether an entry whose window ends at `until_ms` is sent to a vehicle that connects at `at_ms` (Unix ms)."""
    return until_ms is None or at_ms <= until_ms - UNSENT_MS


def is_skipped(window: Window, zone: str, day: date) -> bool:
    """Whether a change of time leaves no window on a local day that has one by its `days`."""
    first = (day - date(1970, 1, 1)).days
    openings = (at for utc_day in (first - 1, first, first + 1) for at in _candidates(window, zone, utc_day))
    return DAYS[day.weekday()] in window.days and not any(
        _is_open(window, zone, at) and _begins_on(window, _local(zone, at), day) for at in openings
    )


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones() - {"localtime"})  # that is another zone on another machine


def is_zone(name: str) -> bool:
    """Whether this is the name of a zone that this machine knows. A list may name as many others as it has targets."""
    return name in _zones()


def _is_open(window: Window, zone: str, now_ms: int) -> bool:
    local = _local(zone, now_ms)
    opens, closes, clock = _minutes(window.opens), _minutes(window.closes), local.hour * 60 + local.minute
    if opens < closes:
        return opens <= clock < closes and DAYS[local.weekday()] in window.days
    if clock >= opens:
        return DAYS[local.weekday()] in window.days
    return clock < closes and DAYS[local.weekday() - 1] in window.days


def _begins_on(window: Window, local: datetime, day: date) -> bool:
    return local.date() == day and local.hour * 60 + local.minute >= _minutes(window.opens)


@lru_cache(maxsize=4096)
def _candidates(window: Window, zone: str, day: int) -> tuple[int, ...]:
    """The instants of a UTC day at which the window may open or close: its hours on the wall clock, and changes of the clock."""
    start, end = day * _DAY_MS, (day + 1) * _DAY_MS
    found = set(_clock_changes(zone, start, end))
    today = date(1970, 1, 1) + timedelta(days=day)
    for local_day in (today + timedelta(days=shift) for shift in (-1, 0, 1)):
        for text in (window.opens, window.closes):
            for fold in (0, 1):
                wall = datetime.combine(local_day, _time(text), ZoneInfo(zone)).replace(fold=fold)
                found.add(int(wall.timestamp() * 1000))
    return tuple(sorted(at for at in found if start <= at < end))


def _clock_changes(zone: str, start: int, end: int) -> list[int]:
    """The instants after `start`, up to `end`, at which the offset of `zone` changes, to the second."""
    if end - start <= 1000:
        return [] if _offset(zone, start) == _offset(zone, end) else [end]
    if end - start <= 6 * 3_600_000 and _offset(zone, start) == _offset(zone, end):
        return []
    middle = (start + end) // 2000 * 1000
    return _clock_changes(zone, start, middle) + _clock_changes(zone, middle, end)


def _offset(zone: str, now_ms: int) -> timedelta | None:
    return _local(zone, now_ms).utcoffset()


def _local(zone: str, now_ms: int) -> datetime:
    return (_EPOCH + timedelta(milliseconds=now_ms)).astimezone(ZoneInfo(zone))


def _check_zone(name: str, zone: str) -> None:
    if not is_zone(zone):
        raise ValueError(f'{name}: must be a zone of the IANA database, such as "Europe/Berlin"')


def _wall_time(text: str) -> time | None:
    return time.fromisoformat(text) if _WALL_TIME.fullmatch(text) else None


def _time(text: str) -> time:
    return time.fromisoformat(text)


@lru_cache(maxsize=4096)
def _minutes(text: str) -> int:
    at = time.fromisoformat(text)
    return at.hour * 60 + at.minute
