"""Quality over time: trend charts of `quality_results`, and their page."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from expectations._charts import AuditPoint, Chart
from expectations._pages import PAGES
from expectations._rules import Severity
from manifold.lake.files import Files
from manifold.lake.reports import RUNS, TRENDS

CHARTS = 60  # of rules; a run that breaks more has other problems, and the table names them all
WORSE = (Severity.ERROR, Severity.WARNING)


@dataclass(frozen=True, slots=True)
class Trends:
    """The content of the page."""

    judgements: Sequence[AuditPoint]  # oldest first
    broken: Sequence[Chart]  # of rules: errors first, then those that were broken most recently
    rows: Sequence[Chart]  # of row counts, by table
    kept: Mapping[str, Sequence[str]]  # by table, the rules that no row broke


def trends_of(results: Sequence[Mapping[str, Any]]) -> Trends:
    """The charts of these rows of `quality_results`. A missing or non-numeric value leaves a gap."""
    ordered = sorted({(row["at"], row["run_id"]) for row in results})
    places = {key: place for place, key in enumerate(ordered)}
    by_rule: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for row in results:
        by_rule.setdefault((row["suite"], row["rule"]), {})[places[row["at"], row["run_id"]]] = row
    newest = {suite: max(max(rows) for (of, _), rows in by_rule.items() if of == suite) for suite, _ in by_rule}
    rules = [_of_rule(suite, rule, rows, len(ordered), newest[suite]) for (suite, rule), rows in sorted(by_rule.items())]
    kept: dict[str, list[str]] = {}
    for chart in rules:
        if not chart.broken and chart.judged_now and chart.rule:
            kept.setdefault(chart.suite, []).append(chart.rule)
    broken = sorted((chart for chart in rules if chart.broken), key=_worst_first)
    tables = [
        _of_row_counts(suite, [rows for (of, _), rows in by_rule.items() if of == suite], len(ordered))
        for suite in sorted(newest)
    ]
    return Trends([AuditPoint(run_id, at) for at, run_id in ordered], broken, tables, kept)


def publish_trends(results: Sequence[Mapping[str, Any]], reports: Files) -> None:
    """Render the page of these rows of `quality_results`, and write it."""
    from expectations._pictures import picture_of  # matplotlib takes half a second to import

    trends = trends_of(results)
    pages = {path.split("/")[1] for path in reports.below(RUNS)}
    template = PAGES.get_template("trends.html")
    summary = {"trends": trends, "shown": trends.broken[:CHARTS], "pages": pages}
    reports.write(TRENDS, template.render(**summary, picture=lambda chart: picture_of(chart, trends.judgements)).encode())


def _of_rule(suite: str, rule: str, rows: Mapping[int, Mapping[str, Any]], judgements: int, newest: int) -> Chart:
    values = [_share(rows.get(place)) for place in range(judgements)]
    severities = [str((rows.get(place) or {}).get("severity") or "") for place in range(judgements)]
    return Chart(suite, rule, severities[max(rows)], values, severities, newest in rows)


def _of_row_counts(suite: str, rules: Iterable[Mapping[int, Mapping[str, Any]]], judgements: int) -> Chart:
    """The chart of how many rows of a table each run added. Every rule of one audit has the same number, so any will do."""
    values: list[float | None] = [None] * judgements
    for rows in rules:
        for place, row in rows.items():
            values[place] = _number(row.get("judged"))
    return Chart(suite, None, "", values, [""] * judgements)


def _share(row: Mapping[str, Any] | None) -> float | None:
    judged, unexpected = (_number((row or {}).get(name)) for name in ("judged", "unexpected"))
    return unexpected / judged if judged and unexpected is not None else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) and value >= 0 else None


def _worst_first(chart: Chart) -> tuple[int, int, str, str]:
    place = WORSE.index(Severity(chart.severity)) if chart.severity in set(WORSE) else len(WORSE)
    return place, -chart.broken[-1], chart.suite, chart.rule or ""
