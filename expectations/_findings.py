"""The result of an audit: whether the run may be published, and which rows break which rule.

Also converts the result to the rows of `quality_results` and to the file `audit.json`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from expectations._suites import load_suites
from manifold.contracts import tables
from manifold.contracts.tables import RuleOutcome, Severity
from manifold.lake.reports import State

# Table name → columns by which the message or file from which a row came can be found.
SOURCE_COLUMNS: Mapping[str, tuple[str, ...]] = {
    tables.DATA.name: ("seq",),
    tables.META.name: ("data_id",),
    tables.IDS.name: ("seq",),
    tables.OUTCOMES.name: ("vin", "seq"),
    tables.ECQ_PAYLOAD.name: ("seq",),
    tables.ECQ_INDEX.name: ("seq",),
    tables.ECQ_STATE.name: tables.ECQ_STATE.key,
    tables.ECQ_SEQNO.name: ("last_seq",),  # the highest seq of the client, which is the seq of a message
    tables.CAMPAIGNS.name: ("seq",),
    tables.CAMPAIGN_EVENTS.name: ("seq",),
    tables.CAMPAIGN_TARGETS.name: ("seq",),
    tables.CAMPAIGN_ANSWERS.name: ("seq",),
    tables.XRAY_RAW.name: ("seq",),
    tables.XRAY_PROCESSED.name: ("seq",),
    tables.XRAY_STATUS.name: ("seq",),
    tables.QUARANTINE.name: ("seq",),
    tables.SEGMENTS.name: ("path",),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that rows of a table break."""

    table: str
    rule: str
    severity: Severity
    says: str  # what should be true
    why: str  # what a violation means
    rows: int  # number of rows that break the rule
    of: int  # number of rows that were checked
    samples: tuple[str, ...]  # a few offending rows, as JSON objects
    # Only for severity `error`: the distinct values of the `SOURCE_COLUMNS` in the offending rows, at most `MAX_OFFENDERS`.
    keys: tuple[tuple[Any, ...], ...] = ()

    def __str__(self) -> str:
        problem = f"{self.table}: {self.rule} ({self.says}) does not hold for {self.rows} of {self.of} rows"
        return f"{problem}: {self.why}; for example {', '.join(self.samples)}"


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit."""

    run_id: str
    passed: bool  # whether the run may be published: no rule of severity `error` is broken
    failures: tuple[Finding, ...]  # broken rules of severity `error`
    warnings: tuple[Finding, ...]
    rows: Mapping[str, int]  # table → number of checked rows
    report: str  # address of the run's HTML page

    def __str__(self) -> str:
        result = "passed" if self.passed else f"failed on {len(self.failures)} rules"
        checked = ", ".join(f"{rows} {table}" for table, rows in self.rows.items() if rows) or "no rows"
        return f"run {self.run_id} {result}; {len(self.warnings)} warnings; judged {checked}; report {self.report}"

    def to_json(self) -> str:
        """The audit as JSON, without the keys of offending rows."""
        content = asdict(self) | {"rows": dict(self.rows)}
        for finding in (*content["failures"], *content["warnings"]):
            del finding["keys"]
        return json.dumps(content, indent=1)


def results_of(audit: Audit, as_of: datetime) -> pa.Table:
    """The rows of `quality_results` for an audit: one row per rule of each table that had rows to check."""
    findings = {(finding.table, finding.rule): finding for finding in (*audit.failures, *audit.warnings)}
    rows = []
    for suite in load_suites().values():
        if not audit.rows.get(suite.table):
            continue
        for rule in suite.rules:
            finding = findings.get((suite.table, rule.name))
            rows.append(
                {
                    "run_id": audit.run_id,
                    "suite": suite.table,
                    "rule": rule.name,
                    "severity": rule.severity.value,
                    "outcome": (RuleOutcome.PASSED if finding is None else RuleOutcome.BROKEN).value,
                    "judged": audit.rows[suite.table],
                    "unexpected": 0 if finding is None else finding.rows,
                    "sample": None if finding is None else f"[{', '.join(finding.samples)}]",  # a JSON array
                    "at": as_of,
                }
            )
    return pa.Table.from_pylist(rows, schema=tables.QUALITY.arrow_schema)


def json_content(audit: Audit, as_of: datetime) -> dict[str, Any]:
    """The content of a run's `audit.json`, except the addresses of the tables' pages."""
    content: dict[str, Any] = json.loads(audit.to_json())
    # A run that passed is published later, or overtaken.
    state = State.UNDECIDED if audit.passed else State.HELD_BACK
    # `at` is exact, to distinguish several audits of the same run, as in `quality_results`.
    return content | {"as_of": as_of.isoformat(timespec="seconds"), "at": as_of.isoformat(), "state": state}
