"""The bounds of readings, as a setting: a value outside its bounds is an anomaly."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

DEFAULT_BOUNDS = "temperature=-40..85 celsius, humidity=0..100 percent, pressure=300..1100 hpa, motion=0..300 km/h"
_ENTRY = re.compile(r"(\w+)=([^.\s]+(?:\.\d+)?)\.\.(\S+) (\S+)")
# Units under more than one name; bounds are compared in the unit that they name, and a reading in another unit is not judged.
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
    """What a reading is of."""

    TEMPERATURE = "temperature"
    HUMIDITY = "humidity"
    PRESSURE = "pressure"
    MOTION = "motion"


@dataclass(frozen=True, slots=True)
class Range:
    """The values of one type of reading that are no anomaly, in one unit."""

    least: float
    most: float
    unit: str


Bounds = Mapping[ReadingType, Range]


@lru_cache(maxsize=1000)
def unit_of(text: str) -> str:
    """The unit's one name: lower case, and long."""
    plain = text.strip().lower()
    return _UNITS.get(plain, plain)


def read_bounds(text: str) -> dict[ReadingType, Range]:
    """The bounds in `text`, such as `temperature=-40..85 celsius, humidity=0..100 percent`.

    Raises:
        ValueError: an entry is none; the message names it and says how one looks.
    """
    bounds: dict[ReadingType, Range] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        found = _ENTRY.fullmatch(entry)
        try:
            if found is None:
                raise ValueError
            kind, least, most = ReadingType(found[1]), float(found[2]), float(found[3])
        except ValueError:
            kinds = ", ".join(ReadingType)
            raise ValueError(f"{entry!r} is no bound; write <type>=<least>..<most> <unit>, with a type of {kinds}") from None
        if not (math.isfinite(least) and math.isfinite(most) and least < most):
            raise ValueError(f"{entry!r}: the least value must be smaller than the most, and both finite")
        bounds[kind] = Range(least, most, unit_of(found[4]))
    return bounds
