"""A dashboard of Grafana's as one picture: each panel in its place, with what Prometheus answers to its expressions."""

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import LinearLocator
from PIL import Image

from infra.grafana.pictures._units import SUFFIX, shown, ticks

Json = Mapping[str, Any]
Ask = Callable[[str], list[Any]]  # the series of an expression: labels, and (instant, value) of each
Series = list[tuple[str, list[Any]]]  # by name

COLUMNS, WIDTH_IN, ROW_IN, HEAD_IN = 24, 12.0, 0.27, 0.5
INK, QUIET, PANEL, PAGE = "#1c2430", "#66717f", "#ffffff", "#eef1f4"
# Eight that can be told apart also without seeing all colours; then the same ones again, as dashes.
COLORS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#7a5195", "#56b4e9", "#a3a500", "#444444")
JUDGED = {"green": "#1a7f4b", "orange": "#b35c00", "red": "#b3261e"}
SHADES = 17  # of each colour in a picture
MAX_NAMED = 8  # series in a legend
STYLE = {"font.size": 7.5, "text.color": INK, "axes.edgecolor": QUIET, "xtick.color": QUIET, "ytick.color": QUIET}


def draw(board: Json, ask: Ask, file: Path, *, during: tuple[float, float], said: str) -> list[str]:
    """Write the picture, with `said` at its foot; returns the titles of the panels that have nothing to show.

    `during` are the first and the last instant, in seconds since 1970.
    """
    first, last = date2num([datetime.fromtimestamp(at, UTC) for at in during])
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    height, empty = rows * ROW_IN + 2 * HEAD_IN, []
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, height), facecolor=PAGE, dpi=100)
        head, foot = 1 - 0.22 / height, 0.22 / height
        figure.text(0.01, head, board["title"], fontsize=13, weight="bold", va="center")
        figure.text(0.99, head, board["description"], fontsize=8, color=QUIET, va="center", ha="right")
        figure.text(0.01, foot, said, fontsize=7.5, color=QUIET, va="center")
        for panel in board["panels"]:
            series = [(_legend(target, one), one["values"]) for target in panel["targets"] for one in ask(target["expr"])]
            _panel(figure, panel, series, height, (first, last))
            empty += [] if series else [panel["title"]]
        drawn = BytesIO()
        figure.savefig(drawn, facecolor=PAGE)
    # A third of the size, and looks the same.
    Image.open(drawn).convert("RGB").quantize(palette=_palette(), dither=Image.Dither.NONE).save(file, optimize=True)
    return empty


def _palette() -> Image.Image:
    """Every colour that is used, and on its way to white as edges need it: 256 at most."""
    used = [tuple(int(color[at : at + 2], 16) for at in (1, 3, 5)) for color in (*COLORS, *JUDGED.values(), INK, QUIET, PAGE)]
    shades = [round(255 - (255 - part) * step / SHADES) for color in used for step in range(1, SHADES + 1) for part in color]
    palette = Image.new("P", (1, 1))
    palette.putpalette([255, 255, 255, *shades])
    return palette


def _panel(figure: Figure, panel: Json, series: Series, height: float, during: tuple[float, float]) -> None:
    place = panel["gridPos"]
    across, up = place["w"] / COLUMNS - 0.01, (place["h"] * ROW_IN - 0.12) / height
    bottom = (height - HEAD_IN - (place["y"] + place["h"]) * ROW_IN + 0.06) / height
    axes = figure.add_axes((place["x"] / COLUMNS + 0.005, bottom, across, up), facecolor=PANEL)
    axes.set(xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_visible(False)
    inch = 1 / (across * WIDTH_IN), 1 / (up * height)
    axes.text(0.08 * inch[0], 1 - 0.14 * inch[1], panel["title"], fontsize=8.5, weight="bold", va="center")
    if not series:
        axes.text(0.5, 0.42, "No data", ha="center", va="center", color=QUIET)
    elif panel["type"] == "stat":
        _stat(axes, panel, series[0][1])
    else:
        _lines(axes, panel, series, inch).set_xlim(*during)


def _legend(target: Json, series: Json) -> str:
    """The name of a series, as the panel makes it of its labels."""
    if target["legendFormat"] == "__auto":
        return ""
    return re.sub(r"\{\{(\w+)\}\}", lambda label: str(series["metric"].get(label[1], "")), target["legendFormat"])


def _stat(axes: Axes, panel: Json, values: list[Any]) -> None:
    """The last value, in the colour that the panel's thresholds give it."""
    last = float(values[-1][1])
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    color = [step["color"] for step in steps if step["value"] is None or last >= step["value"]][-1]
    axes.text(0.5, 0.4, _words(panel)(last), ha="center", va="center", fontsize=20, color=JUDGED[color])


def _words(panel: Json) -> Callable[[float], str]:
    """How the panel writes a value."""
    defaults = panel["fieldConfig"]["defaults"]
    named = {key: each["text"] for mapping in defaults.get("mappings", []) for key, each in mapping["options"].items()}
    return lambda value: "–" if math.isnan(value) else named.get(f"{value:g}", shown(value, defaults["unit"]))


def _lines(axes: Axes, panel: Json, series: Series, inch: tuple[float, float]) -> Axes:
    """The chart inside the panel, below its title and above its legend."""
    rows = -(-min(len(series), MAX_NAMED) // 2)
    foot = (0.3 + 0.15 * rows) * inch[1]
    defaults, words = panel["fieldConfig"]["defaults"], _words(panel)
    left = (0.9 if defaults["unit"].startswith(SUFFIX) else 0.62) * inch[0]
    inner = axes.inset_axes((left, foot, 1 - left - 0.18 * inch[0], 1 - foot - 0.32 * inch[1]))
    for place, (name, values) in enumerate(series):
        at = date2num([datetime.fromtimestamp(instant, UTC) for instant, _ in values])
        color, dash = COLORS[place % len(COLORS)], "-" if place < len(COLORS) else "--"
        inner.plot(at, [float(value) for _, value in values], dash, color=color, linewidth=1.2, label=name)
    most = max((float(value) for _, values in series for _, value in values if not math.isnan(float(value))), default=0.0)
    most = defaults.get("max", most) or 1.0
    inner.set_ylim(0, most * 1.05)
    for step in defaults["thresholds"]["steps"] if "custom" in defaults else ():
        if step["value"] is not None and step["value"] <= most:
            inner.axhline(step["value"], color=JUDGED[step["color"]], linestyle=":", linewidth=1)
    at_values = [0, 1] if "mappings" in defaults else ticks(most, defaults["unit"])
    inner.set_yticks(at_values, [words(value) for value in at_values])
    inner.xaxis.set_major_locator(LinearLocator(6))
    inner.xaxis.set_major_formatter(DateFormatter("%H:%M"))
    inner.tick_params(length=2, labelsize=7)
    inner.grid(color="#e3e7ec", linewidth=0.6)
    for side in ("top", "right"):
        inner.spines[side].set_visible(False)
    handles, names = inner.get_legend_handles_labels()
    more = len(handles) - MAX_NAMED
    names = [*names[: MAX_NAMED - 1], f"… and {more + 1} more"] if more > 0 else names
    options = {"ncols": 2, "frameon": False, "fontsize": 7, "handlelength": 1.2, "columnspacing": 1.2, "labelspacing": 0.25}
    at_foot = {"loc": "lower left", "bbox_to_anchor": (0.02, -0.02), "borderaxespad": 0.3}
    legend = axes.legend(handles[:MAX_NAMED], names, **at_foot, **options)
    for line in legend.get_lines():
        line.set_linewidth(3)  # whose colour is seen
    return inner
