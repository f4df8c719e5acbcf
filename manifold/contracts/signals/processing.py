"""Processes a raw payload into readings and anomalies: one pure function that never fails, for door and pipelines.

`RULES` is the number of its version: each row of the lake has it, and `process_signals` makes rows of other versions again.
"""

import re
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from manifold.contracts.signals.bounds import Bounds, Range, ReadingType, unit_of
from manifold.contracts.signals.numbers import number
from manifold.contracts.signals.tracks import is_track, track_readings

RULES = 1
MAX_READINGS = 10_000  # of one signal; what is beyond is left in the payload
MAX_ANOMALIES = 1_000
_TYPES = {kind.value: kind for kind in ReadingType}
LONGEST_UNIT = 16
_UNIT = re.compile(r"[A-Za-z°µ%/²³ ]+")  # so that a unit is one, and no place for text
_SEVERITIES = ((0.1, "low"), (0.5, "medium"), (1.0, "high"))  # by how many widths of the range a value is outside of it


class AnomalyType:
    """The anomalies that there are: `<type>_high`, `<type>_low`, and these."""

    UNREADABLE = "reading_unreadable"  # entries that are no readings, or too many; they stay in the payload
    POINT = "point_unreadable"  # points of a track that are none


ANOMALIES = (*(f"{kind}_{side}" for kind in ReadingType for side in ("high", "low")), AnomalyType.UNREADABLE, AnomalyType.POINT)


class Reading(Struct, frozen=True, omit_defaults=True, gc=False):
    """One value."""

    type: str
    value: float
    unit: str
    confidence: float | None = None
    name: str | None = None  # of readings that are computed: what it is


class Anomaly(Struct, frozen=True, gc=False):
    """Something that is not as it should be."""

    type: str
    severity: str  # low, medium, high, critical
    description: str


class ProcessedData(Struct, frozen=True):
    """What a payload says, in the order in which it says it."""

    readings: list[Reading]
    anomalies: list[Anomaly]

    def to_builtins(self) -> dict[str, Any]:
        """The same as JSON's objects."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


NO_DATA = ProcessedData([], [])


def process(payload: bytes, bounds: Bounds) -> ProcessedData:
    """Readings and anomalies of a decoded payload; none of a payload of any other form."""
    try:
        said = msgspec.json.decode(payload)
    except (ValueError, RecursionError):
        return NO_DATA
    if not isinstance(said, dict):
        return NO_DATA
    if isinstance(said.get("readings"), list):
        readings, left_out, of = _taken_over(said["readings"])
        missing = [_unreadable(AnomalyType.UNREADABLE, left_out, of)] if left_out else []
    elif is_track(said):
        summary, left_out, of = track_readings(said["data"])
        readings = [Reading(ReadingType.MOTION.value, value, unit, name=name) for name, value, unit in summary]
        missing = [_unreadable(AnomalyType.POINT, left_out, of)] if left_out else []
    else:
        return NO_DATA
    outside = [anomaly for reading in readings if (anomaly := _outside(reading, bounds)) is not None]
    return ProcessedData(readings, [*missing, *outside[:MAX_ANOMALIES]])


def _taken_over(entries: list[Any]) -> tuple[list[Reading], int, int]:
    """The readings, how many entries are left out, and of how many."""
    readings = [reading for entry in entries[:MAX_READINGS] if (reading := _reading(entry)) is not None]
    return readings, len(entries) - len(readings), len(entries)


def _reading(entry: Any) -> Reading | None:
    if not isinstance(entry, dict):
        return None
    kind, unit, value = entry.get("type"), entry.get("unit"), number(entry.get("value"))
    if not isinstance(kind, str) or kind not in _TYPES or value is None:
        return None
    if not isinstance(unit, str) or len(unit) > LONGEST_UNIT or not _is_unit(unit):
        return None
    if (confidence := entry.get("confidence")) is None:
        return Reading(kind, value, unit)
    sure = number(confidence)
    return None if sure is None or not 0 <= sure <= 1 else Reading(kind, value, unit, sure)


@lru_cache(maxsize=1000)
def _is_unit(text: str) -> bool:
    return _UNIT.fullmatch(text) is not None


def _outside(reading: Reading, bounds: Bounds) -> Anomaly | None:
    within = bounds.get(_TYPES[reading.type])
    if within is None or unit_of(reading.unit) != within.unit or within.least <= reading.value <= within.most:
        return None
    side = "high" if reading.value > within.most else "low"
    limit = within.most if side == "high" else within.least
    word = "above" if side == "high" else "below"
    described = f"{reading.name or reading.type} {reading.value:g} {reading.unit} is {word} {limit:g}"
    return Anomaly(f"{reading.type}_{side}", _severity(reading.value, limit, within), described)


def _severity(value: float, limit: float, within: Range) -> str:
    widths = abs(value - limit) / (within.most - within.least)
    return next((name for most, name in _SEVERITIES if widths <= most), "critical")


def _unreadable(kind: str, left_out: int, of: int) -> Anomaly:
    return Anomaly(kind, "low", f"{left_out} of {of} entries are left out")
