"""Renders a chart as an SVG without scripts, embedded in the page."""

import base64
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from expectations._charts import AuditPoint, Chart
from manifold.contracts.tables import Severity

SIZE_INCHES = (3.6, 1.25)
TEXT_COLOR, MUTED_COLOR, ROW_COUNT_COLOR = "#1c2430", "#9aa4b1", "#3d6096"
# Severity → color and marker of its bars; the markers distinguish severities for people who cannot see the colors.
MARKS = {Severity.ERROR.value: ("#b3261e", "x"), Severity.WARNING.value: ("#9a6400", "^")}
UNKNOWN_SEVERITY_MARK = ("#5b4a8a", "d")
STYLE = {
    "svg.fonttype": "none",  # write text as text, not as paths
    "svg.hashsalt": "manifold",  # a fixed salt, so that the same chart always gives the same bytes
    "font.size": 8,
    "text.color": TEXT_COLOR,
    "axes.edgecolor": MUTED_COLOR,
    "xtick.color": TEXT_COLOR,
    "ytick.color": TEXT_COLOR,
}


def picture_of(chart: Chart, audits: Sequence[AuditPoint]) -> str:
    """The chart as a `data:` URL with an SVG.

    The audits are on the x-axis, the oldest on the left. Each value has a bar; a value of 0 has a dot instead.
    """
    last = len(audits) - 1
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE_INCHES)
        axes = figure.add_axes((0.17, 0.2, 0.8, 0.66))
        axes.set_facecolor("white")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for severity in sorted(set(chart.severities)):
            _plot_bars(axes, chart, severity)
        zeros = [index for index, value in enumerate(chart.values) if value == 0]
        axes.plot(zeros, [0] * len(zeros), ".", color=MUTED_COLOR, markersize=2, clip_on=False)
        axes.set_xlim(-0.7, last + 0.7)  # room for the first and the last bar
        axes.set_ylim(0, (chart.highest or 1) * 1.02)  # an axis cannot have the length 0
        if chart.highest:
            axes.set_yticks([0, chart.highest], ["0", _axis_label(chart, chart.highest)])
        else:
            axes.set_yticks([0], ["0"])
        ends = sorted({0, last})  # a single one if there is only one audit
        ticks = axes.set_xticks(ends, [f"{audits[index].at:%Y-%m-%d %H:%M}" for index in ends])
        if last:  # with two labels, align both so that they stay inside the chart
            ticks[0].label1.set_horizontalalignment("left")
            ticks[-1].label1.set_horizontalalignment("right")
        svg = BytesIO()
        figure.savefig(svg, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.getvalue()).decode()}"


def _plot_bars(axes: Axes, chart: Chart, severity: str) -> None:
    """Plot the bars of the audits in which the rule had this severity, each with a marker at its top."""
    if chart.rule is None:
        color, marker = ROW_COUNT_COLOR, "none"
    else:
        color, marker = MARKS.get(severity, UNKNOWN_SEVERITY_MARK)
    bars = [(index, value) for index, value in enumerate(chart.values) if value and chart.severities[index] == severity]
    # All bars are one line that is interrupted by NaN, because this gives a single path in the SVG instead of one per bar.
    xs: list[float] = []
    ys: list[float] = []
    for index, value in bars:
        xs += [index, index, float("nan")]
        ys += [0.0, value, float("nan")]
    width = min(6.0, max(1.0, 150 / len(chart.values)))  # in points: the more audits, the thinner the bars
    axes.plot(xs, ys, color=color, linewidth=width, solid_capstyle="butt")
    marks: dict[str, Any] = {"linestyle": "none", "marker": marker, "markersize": 4, "clip_on": False}
    axes.plot([index for index, _ in bars], [value for _, value in bars], color=color, **marks)


def _axis_label(chart: Chart, value: float) -> str:
    """The label of the highest value on the y-axis."""
    if chart.rule is not None:
        return f"{value:.2%}" if value < 0.1 else f"{value:.0%}"
    for factor, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{suffix}"
    return f"{value:.0f}"
