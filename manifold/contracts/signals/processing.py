"""Derives readings and anomalies from a raw payload: one pure, total function for door and pipelines.

`RULES` is its version: each row of the lake records it, and `process_signals` recomputes rows of other versions.
"""

import re
from codecs import BOM_UTF8
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from manifold.contracts.signals.bounds import Bounds, Range, ReadingType, unit_of
from manifold.contracts.signals.numbers import number
from manifold.contracts.signals.tracks import is_track, track_readings

RULES = 1
MAX_READINGS = 10_000  # per signal; the rest stays in the payload only
MAX_ANOMALIES = 1_000
_TYPES = {kind.value: kind for kind in ReadingType}
LONGEST_UNIT = 16
_UNIT = re.compile(r"[A-Za-z°µ%/²³ ]+")  # units only, so that the field cannot carry other text
_SEVERITIES = ((0.1, "low"), (0.5, "medium"), (1.0, "high"))  # distance outside the range, in multiples of its width


class AnomalyType:
    """Anomaly types besides `<type>_high` and `<type>_low`."""

    UNREADABLE = "reading_unreadable"  # entries that are not readings, or exceed the limit; they stay in the payload
    POINT = "point_unreadable"  # invalid points of a track


ANOMALIES = (*(f"{kind}_{side}" for kind in ReadingType for side in ("high", "low")), AnomalyType.UNREADABLE, AnomalyType.POINT)


class Reading(Struct, frozen=True, omit_defaults=True, gc=False):
    """One measured or computed value."""

    type: str
    value: float
    unit: str
    confidence: float | None = None
    name: str | None = None  # name of a computed reading


class Anomaly(Struct, frozen=True, gc=False):
    """A deviation from the expected values or format."""

    type: str
    severity: str  # low, medium, high, critical
    description: str


class ProcessedData(Struct, frozen=True):
    """Readings and anomalies of a payload, in its order."""

    readings: list[Reading]
    anomalies: list[Anomaly]

    def to_builtins(self) -> dict[str, Any]:
        """Return the data as JSON-compatible builtins."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


NO_DATA = ProcessedData([], [])


def process(payload: bytes, bounds: Bounds) -> ProcessedData:
    """Return readings and anomalies of a decoded payload; empty for an unknown format."""
    try:
        said = msgspec.json.decode(payload.removeprefix(BOM_UTF8))
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
    """Return the valid readings, the number of skipped entries, and the total."""
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
