"""Makes dashboards: from `boards/<name>.yml`, which people edit, to `dashboards/<name>.json`, which Grafana reads.

    python infra/grafana/build.py

A panel is a title, queries (PromQL, and a legend for each series), a unit of Grafana's, and a word about it; a `stat` shows one
number. `limits` are where it becomes orange, or red: those of the alert rules. A `flag` is 0 or 1, shown as no or yes, and says
which of them is well. Panels are laid out in the order in which they stand.
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
    """Each board by its name, as people wrote it."""
    return {path.stem: YAML(typ="safe").load(path) for path in sorted((HERE / "boards").glob("*.yml"))}


def dashboard(name: str, board: Json) -> Json:
    """What Grafana reads; the source of data is chosen on the page."""
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


def text(made: Json) -> str:
    """The text of a dashboard's file."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _panels(written: list[Json]) -> list[Json]:
    panels, x, y, row = [], 0, 0, 0
    for number, panel in enumerate(written, 1):
        kind = panel.get("kind", "timeseries")
        width, height = SIZES[kind]
        if x + width > COLUMNS or (x and height != row):
            x, y = 0, y + row
        row = height
        panels.append(_panel(number, kind, panel) | {"gridPos": {"x": x, "y": y, "w": width, "h": height}})
        x += width
    return panels


def _panel(number: int, kind: str, panel: Json) -> Json:
    targets = [
        {"refId": chr(ord("A") + n), "datasource": SOURCE, "expr": query["expr"], "legendFormat": query.get("legend", "__auto")}
        for n, query in enumerate(panel["queries"])
    ]
    return {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "description": panel.get("about", ""),
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.get("unit", "short"), "min": 0, **_judged(kind, panel)}, "overrides": []},
        "targets": targets,
    }


def _judged(kind: str, panel: Json) -> Json:
    """From which value on it is well or not."""
    if "flag" in panel:
        well, ill = {"color": "green"}, {"color": "red"}
        steps = [ill | {"value": None}, well | {"value": 1}] if panel["flag"] else [well | {"value": None}, ill | {"value": 1}]
        return {"max": 1, "mappings": WORDS, "thresholds": {"mode": "absolute", "steps": steps}}
    limits = [{"color": color, "value": value} for color, value in panel.get("limits", {}).items()]
    steps = [{"color": "green", "value": None}, *limits]
    shown = {"custom": {"thresholdsStyle": {"mode": "line"}}} if limits and kind == "timeseries" else {}
    return {"thresholds": {"mode": "absolute", "steps": steps}, **shown}


if __name__ == "__main__":
    for name, board in boards().items():
        (HERE / "dashboards" / f"{name}.json").write_text(text(dashboard(name, board)))
    sys.stdout.write(f"{len(boards())} dashboards in {HERE / 'dashboards'}\n")
