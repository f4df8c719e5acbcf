"""Generates the dashboards `dashboards/<name>.json`, which Grafana reads, from `boards/<name>.yml`, which people edit.

    python infra/grafana/build.py

A panel has a title, queries (PromQL, with a legend for each series), one of Grafana's units, and a description; its kind is
`timeseries`, or `stat` for a single number. `limits` are the values, those of the alert rules, from which the panel is orange or
red. A panel with a `flag` shows 0 and 1 as no and yes; `flag` is the value that is good. Panels are laid out in their order in
the file.
"""

import json
import sys
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

HERE = Path(__file__).parent
COLUMNS = 24  # of Grafana's grid
SIZES = {"stat": (6, 4), "timeseries": (12, 8)}  # columns and rows of a panel
SOURCE = {"type": "prometheus", "uid": "${source}"}
WORDS = [{"type": "value", "options": {"0": {"text": "no"}, "1": {"text": "yes"}}}]
Json = dict[str, Any]


def boards() -> dict[str, Json]:
    """Return the content of each board file, by the board's name."""
    return {path.stem: YAML(typ="safe").load(path) for path in sorted((HERE / "boards").glob("*.yml"))}


def dashboard(name: str, board: Json) -> Json:
    """Return a dashboard in Grafana's format. Its data source is a variable, which is chosen on the dashboard's page."""
    source = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus", "hide": 0}
    return {
        "uid": f"manifold-{name}",
        "title": f"Manifold: {board['title']}",
        "description": board["about"],
        "tags": ["manifold"],
        "editable": False,
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source]},
        "links": [{"type": "dashboards", "tags": ["manifold"], "title": "Manifold", "asDropdown": True}],
        "panels": _panels(board["panels"]),
    }


def text(dashboard_json: Json) -> str:
    """Return the text of a dashboard's file."""
    return json.dumps(dashboard_json, indent=1, ensure_ascii=False) + "\n"


def _panels(panel_specs: list[Json]) -> list[Json]:
    """Lay out the panels from left to right in rows; all panels of a row have the same height."""
    panels = []
    x = y = row_height = 0
    for number, panel in enumerate(panel_specs, 1):
        kind = panel.get("kind", "timeseries")
        width, height = SIZES[kind]
        is_row_full = x + width > COLUMNS
        if is_row_full or (x and height != row_height):
            x = 0
            y += row_height
        row_height = height
        panels.append(_panel(number, kind, panel) | {"gridPos": {"x": x, "y": y, "w": width, "h": height}})
        x += width
    return panels


def _panel(number: int, kind: str, panel: Json) -> Json:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": SOURCE,
            "expr": query["expr"],
            "legendFormat": query.get("legend", "__auto"),
        }
        for index, query in enumerate(panel["queries"])
    ]
    return {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "description": panel.get("about", ""),
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.get("unit", "short"), "min": 0, **_thresholds(kind, panel)}, "overrides": []},
        "targets": targets,
    }


def _thresholds(kind: str, panel: Json) -> Json:
    """Return the options with the values from which a panel has another color; with limits, a chart also shows them as lines."""
    if "flag" in panel:
        color_of_0, color_of_1 = ("red", "green") if panel["flag"] else ("green", "red")
        steps = [{"color": color_of_0, "value": None}, {"color": color_of_1, "value": 1}]
        return {"max": 1, "mappings": WORDS, "thresholds": {"mode": "absolute", "steps": steps}}
    limits = [{"color": color, "value": value} for color, value in panel.get("limits", {}).items()]
    steps = [{"color": "green", "value": None}, *limits]
    options: Json = {"thresholds": {"mode": "absolute", "steps": steps}}
    if limits and kind == "timeseries":
        options["custom"] = {"thresholdsStyle": {"mode": "line"}}
    return options


if __name__ == "__main__":
    for name, board in boards().items():
        (HERE / "dashboards" / f"{name}.json").write_text(text(dashboard(name, board)))
    sys.stdout.write(f"{len(boards())} dashboards in {HERE / 'dashboards'}\n")
