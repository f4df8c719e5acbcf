"""Derives readings and anomalies from a raw payload. Door and pipelines call the same pure function, which accepts any bytes.

`RULES` is the version of the rules. Each row of the lake records it, and `process_signals` recomputes rows of other versions.
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
MAX_UNIT_LENGTH = 16  # characters
_UNIT = re.compile(r"[A-Za-z°µ%/²³ ]+")  # units only, so that the field cannot carry other text
# By the maximum distance from the range, in multiples of its width; beyond the last one, the severity is critical.
_SEVERITIES = ((0.1, "low"), (0.5, "medium"), (1.0, "high"))


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
        builtins: dict[str, Any] = msgspec.to_builtins(self)
        return builtins


NO_DATA = ProcessedData([], [])


def process(payload: bytes, bounds: Bounds) -> ProcessedData:
    """Return the readings in a decoded payload, and its anomalies. Both are empty if the payload is of an unknown format."""
    try:
        parsed = msgspec.json.decode(payload.removeprefix(BOM_UTF8))
    except (ValueError, RecursionError):
        return NO_DATA
    if not isinstance(parsed, dict):
        return NO_DATA
    if isinstance(parsed.get("readings"), list):
        readings, skipped, total = _valid_readings(parsed["readings"])
        type_of_skipped = AnomalyType.UNREADABLE
    elif is_track(parsed):
        summary, skipped, total = track_readings(parsed["data"])
        readings = [Reading(ReadingType.MOTION.value, value, unit, name=name) for name, value, unit in summary]
        type_of_skipped = AnomalyType.POINT
    else:
        return NO_DATA
    anomalies: list[Anomaly] = []
    if skipped:
        anomalies.append(_skipped_entries(type_of_skipped, skipped, total))
    checked = [_out_of_bounds(reading, bounds) for reading in readings]
    out_of_bounds = [anomaly for anomaly in checked if anomaly is not None]
    return ProcessedData(readings, anomalies + out_of_bounds[:MAX_ANOMALIES])


def _valid_readings(entries: list[Any]) -> tuple[list[Reading], int, int]:
    """Return the valid readings, the number of skipped entries (invalid, or over the limit), and the number of all entries."""
    parsed = map(_parse_reading, entries[:MAX_READINGS])
    readings = [reading for reading in parsed if reading is not None]
    return readings, len(entries) - len(readings), len(entries)


def _parse_reading(entry: Any) -> Reading | None:
    """Return the reading in an entry of the payload; None if the entry is invalid."""
    if not isinstance(entry, dict):
        return None
    kind, unit, value = entry.get("type"), entry.get("unit"), number(entry.get("value"))
    if not isinstance(kind, str) or kind not in _TYPES or value is None:
        return None
    if not isinstance(unit, str) or len(unit) > MAX_UNIT_LENGTH or not _is_unit(unit):
        return None
    if entry.get("confidence") is None:
        return Reading(kind, value, unit)
    confidence = number(entry["confidence"])
    if confidence is None or not 0 <= confidence <= 1:
        return None
    return Reading(kind, value, unit, confidence)


@lru_cache(maxsize=1000)
def _is_unit(text: str) -> bool:
    return _UNIT.fullmatch(text) is not None


def _out_of_bounds(reading: Reading, bounds: Bounds) -> Anomaly | None:
    """Return the anomaly of a reading outside its bounds.

    None if it is within them, or if no bounds apply to its type and unit.
    """
    normal = bounds.get(_TYPES[reading.type])
    if normal is None or unit_of(reading.unit) != normal.unit or normal.least <= reading.value <= normal.most:
        return None
    if reading.value > normal.most:
        side, word, limit = "high", "above", normal.most
    else:
        side, word, limit = "low", "below", normal.least
    description = f"{reading.name or reading.type} {reading.value:g} {reading.unit} is {word} {limit:g}"
    return Anomaly(f"{reading.type}_{side}", _severity(reading.value, limit, normal), description)


def _severity(value: float, limit: float, normal: Range) -> str:
    """Return the severity by the distance of `value` from `limit`, the exceeded end of the range `normal`."""
    distance_in_widths = abs(value - limit) / (normal.most - normal.least)
    for maximum, severity in _SEVERITIES:
        if distance_in_widths <= maximum:
            return severity
    return "critical"


def _skipped_entries(kind: str, skipped: int, total: int) -> Anomaly:
    """Return the anomaly that entries of a payload, or of its track, are left out: invalid, or beyond the maximum."""
    return Anomaly(kind, "low", f"{skipped} of {total} entries are left out")
