"""Builds the trend charts of quality over time from `quality_results`, and writes their page."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from expectations._charts import AuditPoint, Chart
from expectations._pages import PAGES
from manifold.contracts.tables import Severity
from manifold.lake.files import Files
from manifold.lake.reports import RUNS, TRENDS

MAX_CHARTS = 60  # charts of broken rules on the page; the page's table lists all broken rules
SEVERITIES = (Severity.ERROR, Severity.WARNING)  # worst first


@dataclass(frozen=True, slots=True)
class Trends:
    """The content of the page."""

    audits: Sequence[AuditPoint]  # oldest first
    broken: Sequence[
        Chart
    ]  # charts of broken rules: errors before warnings, then by the time of the last violation, newest first
    rows: Sequence[Chart]  # charts of row counts, ordered by table
    kept: Mapping[str, Sequence[str]]  # table → current rules that no row broke


def trends_of(results: Sequence[Mapping[str, Any]]) -> Trends:
    """The charts for these rows of `quality_results`. A missing or non-numeric value leaves a gap in its chart."""
    audits = sorted({(row["at"], row["run_id"]) for row in results})
    index_of_audit = {audit: index for index, audit in enumerate(audits)}
    # table → rule → index of the audit → row
    by_table: dict[str, dict[str, dict[int, Mapping[str, Any]]]] = {}
    for row in results:
        by_audit = by_table.setdefault(row["suite"], {}).setdefault(row["rule"], {})
        by_audit[index_of_audit[row["at"], row["run_id"]]] = row
    rule_charts: list[Chart] = []
    row_charts: list[Chart] = []
    for table, by_rule in sorted(by_table.items()):
        newest_audit = max(max(by_audit) for by_audit in by_rule.values())
        for rule, by_audit in sorted(by_rule.items()):
            rule_charts.append(_rule_chart(table, rule, by_audit, len(audits), newest_audit))
        row_charts.append(_row_count_chart(table, by_rule.values(), len(audits)))
    kept: dict[str, list[str]] = {}
    for chart in rule_charts:
        if not chart.broken and chart.is_current and chart.rule:
            kept.setdefault(chart.suite, []).append(chart.rule)
    broken = sorted((chart for chart in rule_charts if chart.broken), key=_worst_first)
    return Trends([AuditPoint(run_id, instant) for instant, run_id in audits], broken, row_charts, kept)


def publish_trends(results: Sequence[Mapping[str, Any]], reports: Files) -> None:
    """Write the page of the trend charts for these rows of `quality_results`."""
    from expectations._pictures import picture_of  # imported here because matplotlib takes half a second to import

    trends = trends_of(results)
    pages = {path.split("/")[1] for path in reports.below(RUNS)}  # ids of runs that have a page; paths are <RUNS>/<run id>/…
    template = PAGES.get_template("trends.html")
    summary = {"trends": trends, "shown": trends.broken[:MAX_CHARTS], "pages": pages}
    reports.write(TRENDS, template.render(**summary, picture=lambda chart: picture_of(chart, trends.audits)).encode())


def _rule_chart(table: str, rule: str, by_audit: Mapping[int, Mapping[str, Any]], audits: int, newest_audit: int) -> Chart:
    """The chart of a rule: the fraction of rows that broke it in each audit.

    Args:
        table: the table.
        rule: the rule.
        by_audit: index of an audit → row of `quality_results`.
        audits: the number of audits in the chart.
        newest_audit: the index of the table's newest audit.
    """
    values = [_broken_fraction(by_audit.get(index, {})) for index in range(audits)]
    severities = [str(by_audit.get(index, {}).get("severity") or "") for index in range(audits)]
    return Chart(table, rule, severities[max(by_audit)], values, severities, is_current=newest_audit in by_audit)


def _row_count_chart(table: str, rules: Iterable[Mapping[int, Mapping[str, Any]]], audits: int) -> Chart:
    """The chart of how many rows each run added to a table.

    `rules` has, for each rule of the table, index of an audit → row of `quality_results`. In an audit, the rows of all rules have
    the same number of checked rows, so the row of any rule can be used.
    """
    values: list[float | None] = [None] * audits
    for by_audit in rules:
        for index, row in by_audit.items():
            values[index] = _number(row.get("judged"))
    return Chart(table, rule=None, severity="", values=values, severities=[""] * audits)


def _broken_fraction(row: Mapping[str, Any]) -> float | None:
    """The fraction of checked rows that broke the rule, from a row of `quality_results`; None if it cannot be computed."""
    checked = _number(row.get("judged"))
    broken = _number(row.get("unexpected"))
    return broken / checked if checked and broken is not None else None


def _number(value: Any) -> float | None:
    """The value as a float; None if it is not a number, not finite or negative."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) and value >= 0 else None


def _worst_first(chart: Chart) -> tuple[int, int, str, str]:
    """Sort key: by severity, then by the time of the last violation, newest first, then by table and rule."""
    rank = SEVERITIES.index(Severity(chart.severity)) if chart.severity in set(SEVERITIES) else len(SEVERITIES)
    return rank, -chart.broken[-1], chart.suite, chart.rule or ""
