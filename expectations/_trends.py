"""Builds the trend charts of quality over time from `quality_results`, and writes their page."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from expectations._charts import AuditPoint, Chart
from expectations._pages import PAGES
from manifold.contracts.tables import Severity
from manifold.lake.files import Files
from manifold.lake.reports import RUNS, TRENDS

MAX_CHARTS = 60  # charts of broken rules on the page; the page's table lists all broken rules
SEVERITIES = (Severity.ERROR.value, Severity.WARNING.value)  # worst first

Row = Mapping[str, Any]  # a row of `quality_results`: the result of one rule in one audit
RowsByAudit = Mapping[int, Row]  # index of an audit, in the order of time → the row of one rule in this audit


@dataclass(frozen=True, slots=True)
class Trends:
    """The content of the page."""

    audits: Sequence[AuditPoint]  # oldest first
    # Charts of broken rules: errors before warnings, then by the time of the last violation, newest first.
    broken: Sequence[Chart]
    rows: Sequence[Chart]  # charts of row counts, ordered by table
    kept: Mapping[str, Sequence[str]]  # table → current rules that no row broke


def trends_of(results: Sequence[Row]) -> Trends:
    """The charts for these rows of `quality_results`. A missing or non-numeric value leaves a gap in its chart."""
    audits = sorted({(row["at"], row["run_id"]) for row in results})
    rule_charts: list[Chart] = []
    row_charts: list[Chart] = []
    for table, by_rule in sorted(_by_table_and_rule(results, audits).items()):
        newest_audit = max(max(by_audit) for by_audit in by_rule.values())  # the newest that checked this table
        for rule, by_audit in sorted(by_rule.items()):
            rule_charts.append(_rule_chart(table, rule, by_audit, len(audits), newest_audit))
        row_charts.append(_row_count_chart(table, by_rule.values(), len(audits)))
    kept: dict[str, list[str]] = {}
    for chart in rule_charts:
        if not chart.broken and chart.is_current and chart.rule:
            kept.setdefault(chart.suite, []).append(chart.rule)
    broken = sorted((chart for chart in rule_charts if chart.broken), key=_worst_first)
    return Trends([AuditPoint(run_id, instant) for instant, run_id in audits], broken, row_charts, kept)


def _by_table_and_rule(results: Iterable[Row], audits: Sequence[tuple[datetime, str]]) -> dict[str, dict[str, dict[int, Row]]]:
    """Table → rule → index in `audits` (instant and run id) → the row of this rule in this audit."""
    index_of_audit = {audit: index for index, audit in enumerate(audits)}
    by_table: dict[str, dict[str, dict[int, Row]]] = {}
    for row in results:
        by_audit = by_table.setdefault(row["suite"], {}).setdefault(row["rule"], {})
        by_audit[index_of_audit[row["at"], row["run_id"]]] = row
    return by_table


def publish_trends(results: Sequence[Row], reports: Files) -> None:
    """Write the page of the trend charts for these rows of `quality_results`."""
    from expectations._pictures import picture_of  # imported here because matplotlib takes half a second to import

    trends = trends_of(results)
    runs_with_page = {path.split("/")[1] for path in reports.below(RUNS)}  # the paths are <RUNS>/<run id>/…
    page = PAGES.get_template("trends.html").render(
        trends=trends,
        shown=trends.broken[:MAX_CHARTS],
        pages=runs_with_page,
        picture=lambda chart: picture_of(chart, trends.audits),
    )
    reports.write(TRENDS, page.encode())


def _rule_chart(table: str, rule: str, by_audit: RowsByAudit, audit_count: int, newest_audit: int) -> Chart:
    """The chart of a rule: the fraction of rows that broke it in each audit.

    Args:
        table: the table.
        rule: the rule.
        by_audit: the rows of this rule.
        audit_count: the number of audits in the chart.
        newest_audit: the index of the table's newest audit.
    """
    values: list[float | None] = [None] * audit_count
    severities = [""] * audit_count
    for index, row in by_audit.items():
        values[index] = _broken_fraction(row)
        severities[index] = str(row.get("severity") or "")
    newest_severity = severities[max(by_audit)]
    return Chart(table, rule, newest_severity, values, severities, is_current=newest_audit in by_audit)


def _row_count_chart(table: str, rows_of_rules: Iterable[RowsByAudit], audit_count: int) -> Chart:
    """The chart of how many rows each run added to a table.

    `rows_of_rules` has the rows of each rule of the table. In an audit, the rows of all rules have the same number of checked
    rows, so the row of any rule can be used.
    """
    values: list[float | None] = [None] * audit_count
    for by_audit in rows_of_rules:
        for index, row in by_audit.items():
            values[index] = _number(row.get("judged"))
    return Chart(table, rule=None, severity="", values=values, severities=[""] * audit_count)


def _broken_fraction(row: Row) -> float | None:
    """The fraction of checked rows that broke the rule; None if it cannot be computed, or no row was checked."""
    checked = _number(row.get("judged"))
    broken = _number(row.get("unexpected"))
    if not checked or broken is None:
        return None
    return broken / checked


def _number(value: Any) -> float | None:
    """The value as a float; None if it is not a number, not finite or negative."""
    if isinstance(value, int | float) and math.isfinite(value) and value >= 0:
        return float(value)
    return None


def _worst_first(chart: Chart) -> tuple[int, int, str, str]:
    """Sort key: by severity, unknown ones last, then by the time of the last violation, newest first, then by table and rule."""
    rank = SEVERITIES.index(chart.severity) if chart.severity in SEVERITIES else len(SEVERITIES)
    newest_violation = chart.broken[-1]
    return rank, -newest_violation, chart.suite, chart.rule or ""
