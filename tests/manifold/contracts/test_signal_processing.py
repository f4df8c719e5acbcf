"""From payloads to readings and anomalies, case by case."""

import hashlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifold.contracts.signals.bounds import DEFAULT_BOUNDS, read_bounds
from manifold.contracts.signals.processing import ANOMALIES, NO_DATA, RULES, process
from manifold.contracts.signals.tracks import Point, haversine_m

BOUNDS = read_bounds(DEFAULT_BOUNDS)


def said(value: Any) -> dict[str, Any]:
    return process(json.dumps(value).encode(), BOUNDS).to_builtins()


def reading(value: object, kind: object = "temperature", unit: object = "celsius", **more: object) -> dict[str, Any]:
    return {"type": kind, "value": value, "unit": unit, **more}


@pytest.mark.parametrize(
    ("value", "anomaly"),
    [
        (20.5, None),
        (85, None),
        (-40, None),
        (86, ("temperature_high", "low")),
        (97.5, ("temperature_high", "low")),
        (98, ("temperature_high", "medium")),
        (150, ("temperature_high", "high")),
        (1000, ("temperature_high", "critical")),
        (-41, ("temperature_low", "low")),
    ],
)
def test_a_reading_out_of_bounds_is_an_anomaly(value: float, anomaly: tuple[str, str] | None) -> None:
    found = said({"readings": [reading(value)]})
    assert [r["value"] for r in found["readings"]] == [value]
    assert [(a["type"], a["severity"]) for a in found["anomalies"]] == ([anomaly] if anomaly else [])


@pytest.mark.parametrize(
    ("unit", "judged"), [("celsius", True), ("°C", True), ("C", True), ("fahrenheit", False), ("kelvin", False)]
)
def test_bounds_apply_to_one_unit(unit: str, judged: bool) -> None:
    assert bool(said({"readings": [reading(500, unit=unit)]})["anomalies"]) is judged


@pytest.mark.parametrize(
    "entry",
    [
        None,
        7,
        {},
        reading("20"),
        reading(True),
        reading(None),
        reading(10**400),
        reading(1, kind="radiation"),
        reading(1, kind=["temperature"]),
        reading(1, unit=7),
        reading(1, unit="secret 123 text"),
        reading(1, confidence=2),
        reading(1, confidence="0.5"),
    ],
)
def test_invalid_readings_are_skipped_and_reported(entry: object) -> None:
    found = said({"readings": [entry, reading(1, confidence=0.5)]})
    assert [r["value"] for r in found["readings"]] == [1]
    assert [(a["type"], a["severity"], a["description"]) for a in found["anomalies"]] == [
        ("reading_unreadable", "low", "1 of 2 entries are left out")
    ]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"a",
        b"\xff\x00",
        b"[]",
        b"7",
        b'"x"',
        b"{}",
        b'{"readings": {}}',
        b'{"data": []}',
        b'{"data": 3, "time": 1}',
        b"[" * 9999,
    ],
)
def test_other_payloads_have_no_readings(payload: bytes) -> None:
    assert process(payload, BOUNDS) == NO_DATA


def test_a_track_yields_points_speeds_and_distance() -> None:
    track = [[762, [51.339764, 12.339223833333334, 1.2]], [1766, [51.33977733333333, 12.339211833333334, 1.6]]]
    found = said({"data": track, "time": 1735683480000})
    named = {r["name"]: (r["value"], r["unit"]) for r in found["readings"]}
    assert named["points"] == (2, "points")
    assert named["speed max"] == (1.6, "km/h")
    assert named["speed mean"] == (pytest.approx(1.4), "km/h")
    assert named["distance"] == (pytest.approx(1.70086, abs=1e-5), "m")
    assert {r["type"] for r in found["readings"]} == {"motion"}
    assert found["anomalies"] == []


@pytest.mark.parametrize(
    ("data", "points", "anomalies"),
    [
        ([], 0, []),
        ([[1, [0, 0, 301]]], 1, ["motion_high", "motion_high"]),
        ([[1, [91, 0, 1]], [1, [0, 181, 1]], [1, [0, 0, -1]], [1, [0, 0]], [1], [1, [0, 0, 1]]], 1, ["point_unreadable"]),
        ([["t", [0, 0, 1]], [True, [0, 0, 1]]], 0, ["point_unreadable"]),
        ([[10**400, [0, 0, 1]], [1, [0, -(10**400), 1]], [1, [0, 0, 10**400]], [1, [0, 0, 1]]], 1, ["point_unreadable"]),
    ],
)
def test_invalid_points_are_skipped_and_reported(data: list[Any], points: int, anomalies: list[str]) -> None:
    found = said({"data": data, "time": 1})
    assert found["readings"][0]["value"] == points
    assert [a["type"] for a in found["anomalies"]] == anomalies


@pytest.mark.parametrize(
    ("a", "b", "metres"),
    [
        ((0, 0), (0, 0), 0),
        ((0, 0), (0, 180), math.pi * 6_371_000),
        ((90, 0), (-90, 0), math.pi * 6_371_000),
        ((0, 0), (0, 1), math.pi * 6_371_000 / 180),
        ((52.52, 13.405), (48.8566, 2.3522), 877_463),
    ],
)
def test_distance_is_haversine(a: tuple[float, float], b: tuple[float, float], metres: float) -> None:
    assert haversine_m(Point(*a, 0), Point(*b, 0)) == pytest.approx(metres, rel=1e-5)


NUMBERS = st.integers() | st.integers(-(10**400), 10**400) | st.floats()
TRACKS = st.lists(st.tuples(NUMBERS, st.tuples(NUMBERS, NUMBERS, NUMBERS)), max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["type", "value", "unit", "data", "time"]), inner)
    ),
    max_leaves=12,
)


@given(st.binary() | st.fixed_dictionaries({"readings": JSON}) | st.fixed_dictionaries({"data": JSON | TRACKS, "time": JSON}))
def test_processing_never_fails_and_is_deterministic(value: object) -> None:
    payload = value if isinstance(value, bytes) else json.dumps(value).encode()
    found = process(payload, BOUNDS)
    assert found == process(payload, BOUNDS)
    assert all(math.isfinite(r.value) for r in found.readings)
    assert {a.type for a in found.anomalies} <= set(ANOMALIES)


@pytest.mark.parametrize("text", ["x", "heat=1..2 c", "temperature=2..1 c", "temperature=1..2", "temperature=nan..1 c"])
def test_an_invalid_bound_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"bound|smaller"):
        read_bounds(text)


def test_bounds_are_a_table_by_type() -> None:
    assert {k: (r.least, r.most, r.unit) for k, r in read_bounds("temperature=-1.5..2.5 °C, humidity=0..1 %").items()} == {
        "temperature": (-1.5, 2.5, "celsius"),
        "humidity": (0, 1, "percent"),
    }
    assert read_bounds("") == {}


def test_the_table_suite_knows_every_anomaly() -> None:
    import re

    from expectations import load_suites
    from expectations._rules import Holds
    from manifold.contracts.tables import XRAY_PROCESSED

    (rule,) = (r for r in load_suites()[XRAY_PROCESSED.name].rules if r.name == "anomalies_are_known")
    assert isinstance(rule, Holds)
    (words,) = re.findall(r"\^\(\(([a-z_|]+)\),\)\+\$", rule.sql)
    assert set(words.split("|")) == set(ANOMALIES)


CORPUS = (
    b"no JSON",
    b"[]",
    b'{"readings": 7}',
    b'{"readings": []}',
    b'{"readings": [{"type": "temperature", "value": 86, "unit": "celsius", "confidence": 0.5}, {"type": "x"}, null]}',
    b'{"readings": [{"type": "humidity", "value": -3, "unit": "%"}, {"type": "pressure", "value": 5000, "unit": "hpa"}]}',
    b'{"data": [[0, [48.1, 11.5, 30]], [1, [48.2, 11.6, 400]], [2, "none"]], "time": "2026-01-01T00:00:00Z"}',
    b'{"data": [], "time": 0}',
)
RESULTS = {1: "7c13abd91b4a39b9a6bb6e52608f9a74e77100b5eecb48bcf15f8718e047d71b"}  # digest of the corpus by version of the rules


def test_rules_with_different_results_have_a_new_version() -> None:
    """`rules` in the lake identifies the version: if this digest changes, raise RULES and add a line above."""
    made = json.dumps([process(payload, BOUNDS).to_builtins() for payload in CORPUS])
    rounded = json.loads(made, parse_float=lambda text: round(float(text), 6))  # maths libraries differ in the last digits
    assert RESULTS[RULES] == hashlib.sha256(json.dumps(rounded, sort_keys=True).encode()).hexdigest()
