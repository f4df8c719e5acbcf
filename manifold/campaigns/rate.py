"""How many targets may be released now, so that no 60 s, wherever they begin, hold more than the rate."""

from collections.abc import Iterable

MINUTE_MS = 60_000
KEPT_MS = 2 * MINUTE_MS  # a minute for the rate, and one for clocks of recorders that differ

Recent = tuple[tuple[int, int, int], ...]  # when (Unix ms), seq, how many targets; oldest first


def recent_of(releases: Iterable[tuple[int, int, int]]) -> Recent:
    """Return the releases of the last `KEPT_MS` before the newest one, each once, oldest first.

    The rate looks back one minute. The second minute is for a `now_ms` that is up to a minute before the newest release, since
    the clocks of recorders differ.
    """
    known = sorted(set(releases))
    return tuple(release for release in known if release[0] > known[-1][0] - KEPT_MS)


def allowance(recent: Recent, per_minute: int, now_ms: int) -> int:
    """How many targets may be released at `now_ms`; 0 or more."""
    spent = sum(number for at_ms, _, number in recent if at_ms > now_ms - MINUTE_MS)
    return max(0, per_minute - spent)


def next_allowance_ms(recent: Recent, now_ms: int) -> int:
    """When the allowance grows again, after it is used up; `now_ms`, where nothing counts against it."""
    return min((at_ms + MINUTE_MS for at_ms, _, _ in recent if at_ms > now_ms - MINUTE_MS), default=now_ms)
