"""The lasting results of an audit: a row of `quality_results` per rule, and the result as JSON."""

import json
from datetime import datetime
from typing import Any

import pyarrow as pa

from expectations._findings import Audit
from expectations._suites import load_suites
from manifold.contracts.tables import QUALITY
from manifold.lake.reports import State

PASSED, BROKEN = "passed", "broken"


def results_of(audit: Audit, as_of: datetime) -> pa.Table:
    """Rows of `quality_results`: one for every rule of every table that had rows to check."""
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


def as_json(audit: Audit, as_of: datetime) -> dict[str, Any]:
    """The content of a run's `audit.json`, without the address of its pages."""
    content: dict[str, Any] = json.loads(audit.to_json())
    state = State.UNDECIDED if audit.passed else State.HELD_BACK
    # `at`, as in `quality_results`, distinguishes two audits of one run.
    return content | {"as_of": as_of.isoformat(timespec="seconds"), "at": as_of.isoformat(), "state": state}
