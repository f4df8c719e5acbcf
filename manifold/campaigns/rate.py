"""Computes how many targets may be released now, so that no interval of 60 s contains more releases than the rate allows."""

from collections.abc import Iterable

MINUTE_MS = 60_000
# A decision at `now_ms` counts the releases of the minute before `now_ms`. Since the clocks of recorders differ, `now_ms` may be
# earlier than the newest release, by up to a minute. So releases are kept for two minutes before the newest one.
KEPT_MS = 2 * MINUTE_MS

Recent = tuple[tuple[int, int, int], ...]  # releases, oldest first: when (Unix ms), seq, how many targets


def recent_of(releases: Iterable[tuple[int, int, int]]) -> Recent:
    """Return the distinct releases of the last `KEPT_MS` before the newest release, oldest first."""
    distinct = sorted(set(releases))
    if not distinct:
        return ()
    newest_ms = distinct[-1][0]
    return tuple(release for release in distinct if release[0] > newest_ms - KEPT_MS)


def released_in_minute(recent: Recent, now_ms: int) -> int:
    """Return how many targets were released in the 60 s before `now_ms`."""
    return sum(number for at_ms, _, number in recent if at_ms > now_ms - MINUTE_MS)


def allowance(recent: Recent, per_minute: int, now_ms: int) -> int:
    """Return how many targets may be released at `now_ms`, at a rate of `per_minute` targets in any 60 s."""
    return max(0, per_minute - released_in_minute(recent, now_ms))


def next_allowance_ms(recent: Recent, now_ms: int) -> int:
    """Return when the oldest release of the last minute stops counting (Unix ms); `now_ms` if that minute has no release."""
    counting = [at_ms for at_ms, _, _ in recent if at_ms > now_ms - MINUTE_MS]
    return min(counting) + MINUTE_MS if counting else now_ms
