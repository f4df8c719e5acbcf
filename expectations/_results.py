"""What an audit leaves behind for later questions: a row for each rule, and the charts of the kept runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from contracts.tables import QUALITY
from expectations._findings import Audit
from expectations._suites import Severity, load_suites

PASSED, BROKEN = "passed", "broken"
CHART_HEIGHT = 60  # units of the drawing


def results_of(audit: Audit, as_of: datetime) -> pa.Table:
    """The rows of `quality_results`: every rule of every table that had rows to judge."""
    broken = {(finding.table, finding.rule): finding for finding in (*audit.failures, *audit.warnings)}
    rows = []
    for suite in load_suites().values():
        for rule in suite.rules if audit.rows.get(suite.table) else ():
            finding = broken.get((suite.table, rule.name))
            rows.append(
                {
                    "run_id": audit.run_id,
                    "suite": suite.table,
                    "rule": rule.name,
                    "severity": rule.severity.value,
                    "outcome": PASSED if finding is None else BROKEN,
                    "judged": audit.rows[suite.table],
                    "unexpected": 0 if finding is None else finding.rows,
                    "sample": None if finding is None else f"[{', '.join(finding.samples)}]",
                    "at": as_of,
                }
            )
    return pa.Table.from_pylist(rows, schema=QUALITY.arrow_schema)


@dataclass(frozen=True, slots=True)
class Bar:
    """One run in a chart."""

    run_id: str
    at: str
    says: str
    height: float


@dataclass(frozen=True, slots=True)
class Chart:
    """One number over the kept runs, oldest first."""

    title: str
    kind: str  # rows, error or warning
    most: str  # what the highest bar says
    bars: Sequence[Bar]


def charts_of(runs: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """How many rows each table got in each run, and, of each rule that was ever broken, the share of rows that break it.

    `runs` are the runs' `audit.json`, the newest first.
    """
    in_order = list(reversed(runs))
    tables = sorted({table for run in in_order for table, rows in run["rows"].items() if rows})
    charts = [_chart(f"{table}: rows", "rows", in_order, [run["rows"].get(table, 0) for run in in_order]) for table in tables]
    findings = {(f["table"], f["rule"]): Severity(f["severity"]) for run in in_order for f in run["failures"] + run["warnings"]}
    for (table, rule), severity in sorted(findings.items()):
        shares = [_share(run, table, rule) for run in in_order]
        charts.append(_chart(f"{table}: {rule}", severity.value, in_order, shares, percent=True))
    return charts


def _share(run: Mapping[str, Any], table: str, rule: str) -> float:
    found = (f for f in run["failures"] + run["warnings"] if (f["table"], f["rule"]) == (table, rule))
    return next((f["rows"] / f["of"] for f in found), 0.0)


def _chart(title: str, kind: str, runs: Sequence[Mapping[str, Any]], values: Sequence[float], *, percent: bool = False) -> Chart:
    most = max(values, default=0) or 1
    shown = [f"{value:.2%}" if percent else f"{value:,}" for value in values]
    bars = [
        Bar(run["run_id"], run["as_of"], says, round(value / most * CHART_HEIGHT, 1))
        for run, value, says in zip(runs, values, shown, strict=True)
    ]
    return Chart(title, kind, shown[values.index(max(values))] if values else "", bars)


def as_json(audit: Audit, as_of: datetime) -> dict[str, Any]:
    """A run's `audit.json`, without where its pages are."""
    content: dict[str, Any] = json.loads(audit.to_json())
    return content | {"as_of": as_of.isoformat(timespec="seconds")}
