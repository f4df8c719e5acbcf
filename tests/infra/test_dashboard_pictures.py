"""Dashboards drawn from their files, each panel with unit, limits and description; limits are those of the alert rules."""

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from infra.grafana.pictures._draw import draw
from infra.grafana.pictures._units import SCALES, SUFFIX, shown, ticks
from tests.infra.seen import dashboards, names, rules

PANELS = {f"{name}, {panel['title']}": panel for name, board in dashboards().items() for panel in board["panels"]}


def answer(expression: str) -> list[Any]:
    """A response with two series for any query."""
    values = [[at, f"{at % 7 / 7}"] for at in range(1_000_000, 1_000_600, 15)]
    return [{"metric": {"instance": place, "service": "s"}, "values": values} for place in ("a", "b")]


def test_a_dashboard_is_drawn_completely_and_names_panels_without_data(tmp_path: Path) -> None:
    board, file, empty = dashboards()["recorder"], tmp_path / "board.png", tmp_path / "empty.png"
    during = (1_000_000.0, 1_000_600.0)
    assert draw(board, answer, file, period=during, footer="of a test") == []
    assert draw(board, lambda _: [], empty, period=during, footer="of a test") == [panel["title"] for panel in board["panels"]]
    with Image.open(file) as picture:
        assert picture.width == 1200
    assert empty.stat().st_size < file.stat().st_size < 200_000


def test_every_panel_has_a_known_unit() -> None:
    units = {where: panel["fieldConfig"]["defaults"]["unit"] for where, panel in PANELS.items()}
    assert {where for where, unit in units.items() if unit not in SCALES and not unit.startswith(SUFFIX)} == set()


def test_a_panel_changes_colour_at_the_alert_threshold() -> None:
    watched = [str(rule["expr"]) for rule in rules()]
    for where, panel in PANELS.items():
        defaults = panel["fieldConfig"]["defaults"]
        asked = set().union(*(names(target["expr"]) for target in panel["targets"]))
        firing = " ".join(expression for expression in watched if names(expression) & asked)
        numbers = {float(number) for number in re.findall(r"[<>=]=? (\d+(?:\.\d+)?)", firing)}
        limits = {step["value"] for step in defaults["thresholds"]["steps"] if "mappings" not in defaults} - {None}
        assert limits <= numbers | {1.0 for number in numbers if number == 0}, where


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0012, "s", "1.2 ms"),
        (0, "s", "0 s"),
        (300, "s", "5 min"),
        (3 << 19, "bytes", "1.5 MiB"),
        (0.5, "percentunit", "50 %"),
        (1234, "ops", "1.23k/s"),
        (7, "short", "7"),
        (0.25, "suffix: cores", "0.25 cores"),
    ],
)
def test_values_are_shown_with_their_units(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_axes_have_few_round_ticks_and_counts_have_no_fractions() -> None:
    assert ticks(3, "short") == [0, 1, 2, 3]
    assert ticks(229 << 20, "bytes") == [0, 64 << 20, 128 << 20, 192 << 20]
    assert ticks(0.19, "ops") == pytest.approx([0, 0.05, 0.1, 0.15])
