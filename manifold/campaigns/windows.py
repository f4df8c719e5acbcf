"""Daily windows in local time: computes when the window of a zone is open, and until when.

Whether a window is open depends on the wall clock alone. So on the day when the clock goes forward, a window within the skipped
hour does not open. On the day when the clock goes back, a window within the repeated hour opens twice.
"""

import re
from datetime import UTC, date, datetime, time, timedelta
from functools import cache, lru_cache
from typing import Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

from msgspec import Struct

VEHICLE = "vehicle"
# Nothing is sent in the last second of a window, because MQTT counts the expiry of a message in whole seconds.
UNSENT_MS = 1000
_WALL_TIME = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9]")  # accepts exactly one spelling for each minute
_DAY_MS = 86_400_000
_HORIZON_DAYS = 15  # a window opens within this time, even if it has a single weekday and the clock skips it once
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = get_args(Day)


class Window(Struct, frozen=True, forbid_unknown_fields=True, rename={"opens": "from", "closes": "to", "otherwise": "else"}):
    """The hours of the day in which messages may be sent to a vehicle. A window may cross midnight."""

    opens: str
    closes: str
    days: tuple[Day, ...] = DAYS  # the weekdays on which the window begins
    zone: str = VEHICLE  # "vehicle" for each target's own zone, or the name of one zone for all targets
    otherwise: str = "UTC"  # the zone for targets whose own zone is unknown

    def __post_init__(self) -> None:
        for field, text in (("from", self.opens), ("to", self.closes)):
            if not _WALL_TIME.fullmatch(text):
                raise ValueError(f"{field}: must be a time of day from 00:00 to 23:59")
        if self.opens == self.closes:
            raise ValueError("to: must differ from the beginning; leave the window out to send at any time")
        if not self.days:
            raise ValueError("days: must name at least one day; leave it out for every day")
        if self.zone != VEHICLE:
            _check_zone("zone", self.zone)
        _check_zone("else", self.otherwise)

    def zone_of(self, target_zone: str | None) -> str:
        """Return the zone whose clock counts for a target that is listed with `target_zone`."""
        if self.zone != VEHICLE:
            return self.zone
        return target_zone if target_zone and is_zone(target_zone) else self.otherwise

    @property
    def opens_ms(self) -> int:
        """When the window opens, in milliseconds after midnight."""
        return _minutes(self.opens) * 60_000

    @property
    def length_ms(self) -> int:
        """How long the window is open, in milliseconds, on a day without a change of time."""
        length_minutes = (_minutes(self.closes) - _minutes(self.opens)) % (24 * 60)  # modulo a day: it may cross midnight
        return length_minutes * 60_000


class Span(Struct, frozen=True):
    """Whether a window is open at an instant, and when that changes next (Unix ms)."""

    is_open: bool
    until_ms: int


def span_at(window: Window, zone: str, now_ms: int) -> Span:
    """Return whether the window is open in `zone` at `now_ms` (Unix ms), and when that changes next.

    If it does not change within the horizon, the end of the horizon is returned instead, at which the caller calls again.
    """
    is_open = _is_open(window, zone, now_ms)
    first_day = now_ms // _DAY_MS
    horizon_day = first_day + _HORIZON_DAYS
    for day in range(first_day, horizon_day):
        for at_ms in _possible_changes(window, zone, day):
            if at_ms > now_ms and _is_open(window, zone, at_ms) != is_open:
                return Span(is_open, at_ms)
    return Span(is_open, horizon_day * _DAY_MS)


def is_sent(at_ms: int, until_ms: int | None) -> bool:
    """Whether an entry whose window ends at `until_ms` is sent to a vehicle that connects at `at_ms` (Unix ms)."""
    return until_ms is None or at_ms <= until_ms - UNSENT_MS


def is_skipped(window: Window, zone: str, day: date) -> bool:
    """Whether the window does not open on a local day, although its weekday is one of `days`, because the clock skips it."""
    if DAYS[day.weekday()] not in window.days:
        return False
    unix_day = (day - date(1970, 1, 1)).days
    for utc_day in (unix_day - 1, unix_day, unix_day + 1):  # a local day overlaps up to three UTC days
        for at_ms in _possible_changes(window, zone, utc_day):
            if _is_open(window, zone, at_ms) and _begins_on(window, _local(zone, at_ms), day):
                return False
    return True


@cache
def _zones() -> frozenset[str]:
    """Return the names of the IANA zones that this machine knows, without "localtime", which differs between machines."""
    return frozenset(available_timezones() - {"localtime"})


def is_zone(name: str) -> bool:
    """Whether this is the name of a zone that this machine knows."""
    return name in _zones()


def _is_open(window: Window, zone: str, now_ms: int) -> bool:
    """Whether the window is open in `zone` at `now_ms` (Unix ms)."""
    local = _local(zone, now_ms)
    clock = local.hour * 60 + local.minute  # this and the next two in minutes after midnight
    opens, closes = _minutes(window.opens), _minutes(window.closes)
    today, yesterday = DAYS[local.weekday()], DAYS[local.weekday() - 1]
    if opens < closes:
        return opens <= clock < closes and today in window.days
    # The window crosses midnight: before midnight it began today, after midnight it began yesterday.
    if clock >= opens:
        return today in window.days
    return clock < closes and yesterday in window.days


def _begins_on(window: Window, local: datetime, day: date) -> bool:
    """Whether the window that is open at the local time `local` began on `day`, and not on the day before it."""
    return local.date() == day and local.hour * 60 + local.minute >= _minutes(window.opens)


@lru_cache(maxsize=4096)
def _possible_changes(window: Window, zone: str, day: int) -> tuple[int, ...]:
    """Return the instants of a UTC day (Unix ms, ascending) at which the window may open or close.

    At these instants the wall clock of the zone shows `opens` or `closes`, or is changed. `day` counts from 1970-01-01.
    """
    start_ms, end_ms = day * _DAY_MS, (day + 1) * _DAY_MS
    instants = set(_clock_changes(zone, start_ms, end_ms))
    utc_date = date(1970, 1, 1) + timedelta(days=day)
    for offset_days in (-1, 0, 1):  # every local date that may overlap the UTC day
        local_date = utc_date + timedelta(days=offset_days)
        for text in (window.opens, window.closes):
            for fold in (0, 1):  # both passes through a repeated hour
                local = datetime.combine(local_date, time.fromisoformat(text), ZoneInfo(zone)).replace(fold=fold)
                instants.add(int(local.timestamp() * 1000))
    return tuple(sorted(at_ms for at_ms in instants if start_ms <= at_ms < end_ms))


def _clock_changes(zone: str, start_ms: int, end_ms: int) -> list[int]:
    """Return when the UTC offset of `zone` changes, after `start_ms` and up to `end_ms` inclusive (Unix ms, to the second).

    Spans are halved until they contain no change. A span of at most six hours with equal offsets at both ends is taken to
    contain none.
    """
    is_same_offset = _offset(zone, start_ms) == _offset(zone, end_ms)
    if end_ms - start_ms <= 1000:
        return [] if is_same_offset else [end_ms]
    if is_same_offset and end_ms - start_ms <= 6 * 3_600_000:
        return []
    middle_ms = (start_ms + end_ms) // 2000 * 1000  # rounded down to a whole second
    return _clock_changes(zone, start_ms, middle_ms) + _clock_changes(zone, middle_ms, end_ms)


def _offset(zone: str, now_ms: int) -> timedelta | None:
    """Return the UTC offset of `zone`."""
    return _local(zone, now_ms).utcoffset()


def _local(zone: str, now_ms: int) -> datetime:
    return (_EPOCH + timedelta(milliseconds=now_ms)).astimezone(ZoneInfo(zone))


def _check_zone(field: str, zone: str) -> None:
    if not is_zone(zone):
        raise ValueError(f'{field}: must be a zone of the IANA database, such as "Europe/Berlin"')


@lru_cache(maxsize=4096)
def _minutes(text: str) -> int:
    """Return a time of day such as `06:30` in minutes after midnight."""
    time_of_day = time.fromisoformat(text)
    return time_of_day.hour * 60 + time_of_day.minute
