"""Draws a dashboard as a picture: each panel at its position, with the series of its expressions."""

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
Query = Callable[[str], list[Any]]  # returns the series of an expression, each with `metric` (labels) and `values`
Series = list[tuple[str, list[Any]]]  # names of series, and their values: pairs of Unix seconds and value

COLUMNS, WIDTH_IN, ROW_IN, HEAD_IN = 24, 12.0, 0.27, 0.5
INK, QUIET, PANEL, PAGE = "#1c2430", "#66717f", "#ffffff", "#eef1f4"
# Colors of lines, which colour-blind people can distinguish too; the ninth line has the first color again, but is dashed.
COLORS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#7a5195", "#56b4e9", "#a3a500", "#444444")
THRESHOLD_COLORS = {"green": "#1a7f4b", "orange": "#b35c00", "red": "#b3261e"}
SHADES = 17  # number of shades of each color in a picture
MAX_LEGEND_SERIES = 8
STYLE = {"font.size": 7.5, "text.color": INK, "axes.edgecolor": QUIET, "xtick.color": QUIET, "ytick.color": QUIET}


def draw(board: Json, query: Query, file: Path, *, period: tuple[float, float], footer: str) -> list[str]:
    """Write the picture to `file`, with a footer; return the titles of the panels without data.

    `period` has the begin and the end of the time axis, in seconds since 1970.
    """
    first, last = date2num([datetime.fromtimestamp(instant, UTC) for instant in period])
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    height = rows * ROW_IN + 2 * HEAD_IN
    empty_panels = []
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, height), facecolor=PAGE, dpi=100)
        top, bottom = 1 - 0.22 / height, 0.22 / height
        figure.text(0.01, top, board["title"], fontsize=13, weight="bold", va="center")
        figure.text(0.99, top, board["description"], fontsize=8, color=QUIET, va="center", ha="right")
        figure.text(0.01, bottom, footer, fontsize=7.5, color=QUIET, va="center")
        for panel in board["panels"]:
            named_series = [
                (_legend(target, series), series["values"]) for target in panel["targets"] for series in query(target["expr"])
            ]
            _panel(figure, panel, named_series, height, (first, last))
            if not named_series:
                empty_panels.append(panel["title"])
        png = BytesIO()
        figure.savefig(png, facecolor=PAGE)
    # With a palette the file has a third of the size, and looks the same.
    Image.open(png).convert("RGB").quantize(palette=_palette(), dither=Image.Dither.NONE).save(file, optimize=True)
    return empty_panels


def _palette() -> Image.Image:
    """Return a palette with white, and shades of every color from light to full, for smooth edges: at most 256 colors."""
    palette_values = [255, 255, 255]
    for color in (*COLORS, *THRESHOLD_COLORS.values(), INK, QUIET, PAGE):
        rgb = bytes.fromhex(color.removeprefix("#"))
        for step in range(1, SHADES + 1):
            palette_values += [round(255 - (255 - component) * step / SHADES) for component in rgb]
    palette = Image.new("P", (1, 1))
    palette.putpalette(palette_values)
    return palette


def _panel(figure: Figure, panel: Json, series: Series, height_in: float, period: tuple[float, float]) -> None:
    """Draw a panel at its position. `height_in` is the height of the picture in inches, `period` the range of the time axis."""
    position = panel["gridPos"]
    width = position["w"] / COLUMNS - 0.01
    height = (position["h"] * ROW_IN - 0.12) / height_in
    left = position["x"] / COLUMNS + 0.005
    bottom = (height_in - HEAD_IN - (position["y"] + position["h"]) * ROW_IN + 0.06) / height_in
    axes = figure.add_axes((left, bottom, width, height), facecolor=PANEL)
    axes.set(xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_visible(False)
    inch = 1 / (width * WIDTH_IN), 1 / (height * height_in)  # an inch, horizontally and vertically, as a share of the panel
    axes.text(0.08 * inch[0], 1 - 0.14 * inch[1], panel["title"], fontsize=8.5, weight="bold", va="center")
    if not series:
        axes.text(0.5, 0.42, "No data", ha="center", va="center", color=QUIET)
    elif panel["type"] == "stat":
        _stat(axes, panel, series[0][1])
    else:
        _lines(axes, panel, series, inch).set_xlim(*period)


def _legend(target: Json, series: Json) -> str:
    """Return the name of a series, according to the legend format of its target."""
    if target["legendFormat"] == "__auto":
        return ""
    return re.sub(r"\{\{(\w+)\}\}", lambda label: str(series["metric"].get(label[1], "")), target["legendFormat"])


def _stat(axes: Axes, panel: Json, values: list[Any]) -> None:
    """Draw the last value, in the color of the panel's thresholds."""
    last = float(values[-1][1])
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    color = [step["color"] for step in steps if step["value"] is None or last >= step["value"]][-1]
    axes.text(0.5, 0.4, _formatter(panel)(last), ha="center", va="center", fontsize=20, color=THRESHOLD_COLORS[color])


def _formatter(panel: Json) -> Callable[[float], str]:
    """Return the function that formats the panel's values: with the text that the panel maps a value to, or with its unit."""
    defaults = panel["fieldConfig"]["defaults"]
    texts: dict[str, str] = {}
    for mapping in defaults.get("mappings", []):
        texts |= {value: option["text"] for value, option in mapping["options"].items()}
    return lambda value: "–" if math.isnan(value) else texts.get(f"{value:g}", shown(value, defaults["unit"]))


def _lines(axes: Axes, panel: Json, series: Series, inch: tuple[float, float]) -> Axes:
    """Draw the chart inside the panel, below the title and above the legend; return its axes."""
    legend_rows = math.ceil(min(len(series), MAX_LEGEND_SERIES) / 2)
    foot = (0.3 + 0.15 * legend_rows) * inch[1]
    defaults = panel["fieldConfig"]["defaults"]
    format_value = _formatter(panel)
    left = (0.9 if defaults["unit"].startswith(SUFFIX) else 0.62) * inch[0]
    inner = axes.inset_axes((left, foot, 1 - left - 0.18 * inch[0], 1 - foot - 0.32 * inch[1]))
    for index, (name, values) in enumerate(series):
        times = date2num([datetime.fromtimestamp(instant, UTC) for instant, _ in values])
        color = COLORS[index % len(COLORS)]
        line_style = "-" if index < len(COLORS) else "--"
        inner.plot(times, [float(value) for _, value in values], line_style, color=color, linewidth=1.2, label=name)
    numbers = [float(value) for _, values in series for _, value in values]
    highest = max((number for number in numbers if not math.isnan(number)), default=0.0)
    maximum = defaults.get("max", highest) or 1.0
    inner.set_ylim(0, maximum * 1.05)
    thresholds = defaults["thresholds"]["steps"] if "custom" in defaults else []
    for threshold in thresholds:
        if threshold["value"] is not None and threshold["value"] <= maximum:
            inner.axhline(threshold["value"], color=THRESHOLD_COLORS[threshold["color"]], linestyle=":", linewidth=1)
    tick_values = [0, 1] if "mappings" in defaults else ticks(maximum, defaults["unit"])
    inner.set_yticks(tick_values, [format_value(value) for value in tick_values])
    inner.xaxis.set_major_locator(LinearLocator(6))
    inner.xaxis.set_major_formatter(DateFormatter("%H:%M"))
    inner.tick_params(length=2, labelsize=7)
    inner.grid(color="#e3e7ec", linewidth=0.6)
    for side in ("top", "right"):
        inner.spines[side].set_visible(False)
    handles, names = inner.get_legend_handles_labels()
    if len(names) > MAX_LEGEND_SERIES:  # the last entry stands for all further series
        named = MAX_LEGEND_SERIES - 1
        names = [*names[:named], f"… and {len(names) - named} more"]
    options = {"ncols": 2, "frameon": False, "fontsize": 7, "handlelength": 1.2, "columnspacing": 1.2, "labelspacing": 0.25}
    position = {"loc": "lower left", "bbox_to_anchor": (0.02, -0.02), "borderaxespad": 0.3}
    legend = axes.legend(handles[:MAX_LEGEND_SERIES], names, **position, **options)
    for line in legend.get_lines():
        line.set_linewidth(3)  # so that its color can be seen
    return inner
