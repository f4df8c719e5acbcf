"""Tracks (points with time, position and speed), and the readings computed from them. Pure."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from manifold.contracts.signals.numbers import number

EARTH_RADIUS_M = 6_371_000
MAX_KMH = 1e6  # prevents overflow of sums; plausible speeds are a matter of bounds


class Point(NamedTuple):
    """A point of a track: degrees, and km/h."""

    latitude: float
    longitude: float
    speed: float


def is_track(payload: dict[str, Any]) -> bool:
    """Whether the payload has the shape `{"data": [[t, [lat, lon, speed]], …], "time": …}`; points are not validated."""
    data = payload.get("data")
    return "time" in payload and isinstance(data, list) and all(isinstance(entry, list) for entry in data)


def track_readings(data: list[Any]) -> tuple[list[tuple[str, float, str]], int, int]:
    """Return (name, value, unit) of each computed reading, the number of invalid points, and the number of all points.

    `data` are the points of the track, as `[t, [lat, lon, speed]]`. A track without valid points has no readings of speed.
    """
    points = list(_points(data))
    readings: list[tuple[str, float, str]] = [("points", float(len(points)), "points")]
    if points:
        speeds = [point.speed for point in points]
        readings += [("speed max", max(speeds), "km/h"), ("speed mean", math.fsum(speeds) / len(speeds), "km/h")]
    readings.append(("distance", distance_m(points), "m"))
    return readings, len(data) - len(points), len(data)


def distance_m(points: Iterable[Point]) -> float:
    """Return the length of the track in metres, by haversine."""
    previous: Point | None = None
    legs = []
    for point in points:
        if previous is not None:
            legs.append(haversine_m(previous, point))
        previous = point
    return math.fsum(legs)


def haversine_m(a: Point, b: Point) -> float:
    """Return the great-circle distance of two points in metres."""
    phi_a, phi_b = math.radians(a.latitude), math.radians(b.latitude)
    half_phi, half_lambda = (phi_b - phi_a) / 2, math.radians(b.longitude - a.longitude) / 2
    h = math.sin(half_phi) ** 2 + math.cos(phi_a) * math.cos(phi_b) * math.sin(half_lambda) ** 2
    return 2 * EARTH_RADIUS_M * math.asin(math.sqrt(min(1.0, h)))


def _points(data: list[Any]) -> Iterator[Point]:
    """Yield the points in valid entries."""
    for entry in data:
        point = _parse_point(entry)
        if point is not None:
            yield point


def _parse_point(entry: list[Any]) -> Point | None:
    """Return the point in an entry, `[t, [lat, lon, speed]]`; None if the entry is invalid."""
    if len(entry) != 2:
        return None
    time, values = entry
    if number(time) is None or not isinstance(values, list) or len(values) != 3:
        return None
    latitude, longitude, speed = map(number, values)
    if latitude is None or longitude is None or speed is None:
        return None
    if abs(latitude) > 90 or abs(longitude) > 180 or not 0 <= speed <= MAX_KMH:
        return None
    return Point(latitude, longitude, speed)
