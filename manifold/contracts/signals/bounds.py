"""Bounds of readings, parsed from a setting: a value outside its bounds is an anomaly."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

DEFAULT_BOUNDS = "temperature=-40..85 celsius, humidity=0..100 percent, pressure=300..1100 hpa, motion=0..300 km/h"
_ENTRY = re.compile(r"(\w+)=([^.\s]+(?:\.\d+)?)\.\.(\S+) (\S+)")
# Aliases of units. Bounds apply to readings in the same unit only; readings in another unit are not checked.
_UNITS = {
    "c": "celsius",
    "°c": "celsius",
    "f": "fahrenheit",
    "°f": "fahrenheit",
    "k": "kelvin",
    "%": "percent",
    "kmh": "km/h",
    "kph": "km/h",
}


class ReadingType(StrEnum):
    """The quantity that a reading measures."""

    TEMPERATURE = "temperature"
    HUMIDITY = "humidity"
    PRESSURE = "pressure"
    MOTION = "motion"


@dataclass(frozen=True, slots=True)
class Range:
    """The normal values of one reading type, inclusive, in one unit."""

    least: float
    most: float
    unit: str


Bounds = Mapping[ReadingType, Range]


@lru_cache(maxsize=1000)
def unit_of(text: str) -> str:
    """Return the canonical name of a unit: lower case, spelled out."""
    plain = text.strip().lower()
    return _UNITS.get(plain, plain)


def read_bounds(text: str) -> dict[ReadingType, Range]:
    """Parse bounds such as `temperature=-40..85 celsius, humidity=0..100 percent`.

    Raises:
        ValueError: an entry is invalid; the message names it and shows the format.
    """
    bounds: dict[ReadingType, Range] = {}
    for part in text.split(","):
        entry = part.strip()
        if entry:
            kind, normal = _parse_entry(entry)
            bounds[kind] = normal
    return bounds


def _parse_entry(entry: str) -> tuple[ReadingType, Range]:
    match = _ENTRY.fullmatch(entry)
    kinds = ", ".join(ReadingType)
    problem = f"{entry!r} is not a bound; write <type>=<least>..<most> <unit>, with a type of {kinds}"
    if match is None:
        raise ValueError(problem)
    try:
        kind, least, most = ReadingType(match[1]), float(match[2]), float(match[3])
    except ValueError:
        raise ValueError(problem) from None
    if not (math.isfinite(least) and math.isfinite(most) and least < most):
        raise ValueError(f"{entry!r}: the least value must be smaller than the most, and both finite")
    return kind, Range(least, most, unit_of(match[4]))
