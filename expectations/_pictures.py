"""Renders a chart as an SVG without scripts, embedded in the page."""

import base64
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from expectations._charts import AuditPoint, Chart
from expectations._rules import Severity

INCHES = (3.6, 1.25)
INK, QUIET, ROWS = "#1c2430", "#9aa4b1", "#3d6096"
# Distinguishable by their marks, not by colour alone.
MARKS = {Severity.ERROR.value: ("#b3261e", "x"), Severity.WARNING.value: ("#9a6400", "^")}
OTHER = ("#5b4a8a", "d")
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "manifold",  # the same rows give the same bytes
    "font.size": 8,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "xtick.color": INK,
    "ytick.color": INK,
}


def picture_of(chart: Chart, judgements: Sequence[AuditPoint]) -> str:
    """The chart as a `data:` URL: a bar per audit, the oldest at the left, and a dot where a rule was kept."""
    last = len(judgements) - 1
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=INCHES)
        axes = figure.add_axes((0.17, 0.2, 0.8, 0.66))
        axes.set_facecolor("white")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for severity in sorted(set(chart.severities)):
            color, mark = (ROWS, "none") if chart.rule is None else MARKS.get(severity, OTHER)
            bars = [(place, value) for place, value in enumerate(chart.values) if value and chart.severities[place] == severity]
            # One line with gaps: a single path in the SVG instead of one per bar.
            across = [x for place, _ in bars for x in (place, place, float("nan"))]
            up = [y for _, value in bars for y in (0.0, value, float("nan"))]
            axes.plot(across, up, color=color, linewidth=min(6.0, max(1.0, 150 / (last + 1))), solid_capstyle="butt")
            tips: dict[str, Any] = {"linestyle": "none", "marker": mark, "markersize": 4, "clip_on": False}
            axes.plot([place for place, _ in bars], [value for _, value in bars], color=color, **tips)
        kept = [place for place, value in enumerate(chart.values) if value == 0]
        axes.plot(kept, [0] * len(kept), ".", color=QUIET, markersize=2, clip_on=False)
        axes.set_xlim(-0.7, last + 0.7)
        axes.set_ylim(0, (chart.highest or 1) * 1.02)
        axes.set_yticks(
            [0, chart.highest] if chart.highest else [0], ["0", _axis_label(chart, chart.highest)] if chart.highest else ["0"]
        )
        ends = sorted({0, last})
        ticks = axes.set_xticks(ends, [f"{judgements[place].at:%Y-%m-%d %H:%M}" for place in ends])
        if last:  # keep the labels inside the chart
            ticks[0].label1.set_horizontalalignment("left")
            ticks[-1].label1.set_horizontalalignment("right")
        drawn = BytesIO()
        figure.savefig(drawn, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(drawn.getvalue()).decode()}"


def _axis_label(chart: Chart, value: float) -> str:
    if chart.rule is not None:
        return f"{value:.2%}" if value < 0.1 else f"{value:.0%}"
    for unit, word in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{word}"
    return f"{value:.0f}"
