"""Shares, durations and instants, as a plan writes them."""

import re
from collections.abc import Callable
from datetime import datetime

from manifold.contracts.messages import LATEST_MS

BASIS_POINTS = 10_000  # of the whole: a share is counted in hundredths of a per cent, so that all arithmetic is exact
_SHARE = re.compile(r"(\d{1,3})(?:\.(\d{1,2}))?%", re.ASCII)
_DURATION = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def share(text: str) -> int:
    """The share in hundredths of a per cent: `"2.5%"` is 250.

    Raises:
        ValueError: `text` is not a share from 0% to 100%.
    """
    match = _SHARE.fullmatch(text)
    parts = 0 if match is None else int(match[1]) * 100 + int((match[2] or "").ljust(2, "0"))
    if match is None or parts > BASIS_POINTS:
        raise ValueError('must be a share from "0%" to "100%", with at most two decimals, such as "2.5%"')
    return parts


def duration_ms(text: str) -> int:
    """The duration in milliseconds.

    Raises:
        ValueError: `text` is not a duration.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError('must be a whole number and a unit (s, m, h, d), such as "30m"')
    return int(match[1]) * _UNIT_MS[match[2]]


def instant_ms(text: str) -> int:
    """The instant in Unix milliseconds.

    Raises:
        ValueError: `text` is not an instant with a zone.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    at_ms = -1 if at is None or at.tzinfo is None else int(at.timestamp() * 1000)
    if not 0 <= at_ms <= LATEST_MS:  # in UTC the year may differ from the text's, and be outside what a date can hold
        raise ValueError("must be an ISO 8601 instant with its zone, such as 2026-12-01T06:00:00Z")
    return at_ms


def reaches(part: int, whole: int, at_least: int) -> bool:
    """Whether `part` of `whole` is at least the share `at_least`, in hundredths of a per cent; true of nothing."""
    return part * BASIS_POINTS >= at_least * whole


def exceeds(part: int, whole: int, limit: int) -> bool:
    """Whether `part` of `whole` is more than the share `limit`, in hundredths of a per cent."""
    return part * BASIS_POINTS > limit * whole


def checked(name: str, parse: Callable[[str], int], text: str, *, otherwise: str | None = None) -> int:
    """The number that `parse` reads in the field `name`.

    Raises:
        ValueError: the field, and the remedy of `parse`, or `otherwise`.
    """
    try:
        return parse(text)
    except ValueError as exc:
        raise ValueError(f"{name}: {otherwise or exc}") from None
