"""Parses shares, durations and instants as they are written in a plan, and compares counts with shares."""

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from manifold.contracts.messages import LATEST_MS

BASIS_POINTS = 10_000  # 100% in hundredths of a per cent; shares are integers of this unit, so that all arithmetic is exact
_SHARE = re.compile(r"(\d{1,3})(?:\.(\d{1,2}))?%", re.ASCII)
_DURATION = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def share(text: str) -> int:
    """Parse a share and return it in hundredths of a per cent: `"2.5%"` is 250.

    Raises:
        ValueError: `text` is not a share from 0% to 100%.
    """
    match = _SHARE.fullmatch(text)
    if match is not None:
        per_cent, decimals = match.groups(default="")
        basis_points = int(per_cent) * 100 + int(decimals.ljust(2, "0"))
        if basis_points <= BASIS_POINTS:
            return basis_points
    raise ValueError('must be a share from "0%" to "100%", with at most two decimals, such as "2.5%"')


def duration_ms(text: str) -> int:
    """Parse a duration such as `"30m"` and return it in milliseconds.

    Raises:
        ValueError: `text` is not a duration.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError('must be a whole number and a unit (s, m, h, d), such as "30m"')
    return int(match[1]) * _UNIT_MS[match[2]]


def instant_ms(text: str) -> int:
    """Parse an ISO 8601 instant with a zone and return it in Unix milliseconds.

    Raises:
        ValueError: `text` is not such an instant, or is before 1970 or after `LATEST_MS`.
    """
    with suppress(ValueError):
        instant = datetime.fromisoformat(text)
        if instant.tzinfo is not None:
            unix_ms = int(instant.timestamp() * 1000)
            # In a zone far from UTC, even a valid date may be an instant that a UTC date cannot represent.
            if 0 <= unix_ms <= LATEST_MS:
                return unix_ms
    raise ValueError("must be an ISO 8601 instant with its zone, such as 2026-12-01T06:00:00Z")


def reaches(part: int, whole: int, at_least: int) -> bool:
    """Whether `part` of `whole` is at least the share `at_least`, in hundredths of a per cent; always if `whole` is 0."""
    return part * BASIS_POINTS >= at_least * whole


def exceeds(part: int, whole: int, limit: int) -> bool:
    """Whether `part` of `whole` is more than the share `limit`, in hundredths of a per cent; never if `whole` is 0."""
    return part * BASIS_POINTS > limit * whole


def checked(name: str, parse: Callable[[str], int], text: str, *, remedy: str | None = None) -> int:
    """Parse the text of the field `name` with `parse`, and return the number.

    Raises:
        ValueError: `parse` raised one. The message names the field, followed by `remedy` if it is given, else by the message
            of `parse`.
    """
    try:
        return parse(text)
    except ValueError as exc:
        raise ValueError(f"{name}: {remedy or exc}") from None
