"""The result of an audit: whether the run may be published, and which rows break which rule; and what is kept of it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from expectations._rules import Severity
from expectations._suites import load_suites
from manifold.contracts import tables
from manifold.lake.reports import State

PASSED, BROKEN = "passed", "broken"  # values of `outcome` in `quality_results`

# Columns that trace a row of each table to the message, or the file, that brought it.
TRACED: Mapping[str, tuple[str, ...]] = {
    tables.DATA.name: ("seq",),
    tables.META.name: ("data_id",),
    tables.IDS.name: ("seq",),
    tables.OUTCOMES.name: ("vin", "seq"),
    tables.ECQ_PAYLOAD.name: ("seq",),
    tables.ECQ_INDEX.name: ("seq",),
    tables.ECQ_STATE.name: tables.ECQ_STATE.key,
    tables.ECQ_SEQNO.name: ("last_seq",),  # the seq of the message with the highest one
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
    """One rule that rows of one table break."""

    table: str
    rule: str
    severity: Severity
    says: str  # what should be true
    why: str  # what a violation means
    rows: int  # that break it
    of: int  # that were checked
    samples: tuple[str, ...]  # a few offending rows, as JSON objects
    keys: tuple[tuple[Any, ...], ...] = ()  # of an error: what traces its rows (`TRACED`), at most `MAX_OFFENDERS`

    def __str__(self) -> str:
        broken = f"{self.table}: {self.rule} ({self.says}) does not hold for {self.rows} of {self.of} rows"
        return f"{broken}: {self.why}; for example {', '.join(self.samples)}"


@dataclass(frozen=True, slots=True)
class Audit:
    """Result of one audit. `passed` is false if a rule of severity `error` is broken; then nothing may be published."""

    run_id: str
    passed: bool
    failures: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    rows: Mapping[str, int]  # checked rows, by table
    report: str  # address of the run's HTML page

    def __str__(self) -> str:
        verdict = "passed" if self.passed else f"failed on {len(self.failures)} rules"
        judged = ", ".join(f"{rows} {table}" for table, rows in self.rows.items() if rows) or "no rows"
        return f"run {self.run_id} {verdict}; {len(self.warnings)} warnings; judged {judged}; report {self.report}"

    def to_json(self) -> str:
        """The audit as JSON, without keys."""
        content = asdict(self) | {"rows": dict(self.rows)}
        for finding in (*content["failures"], *content["warnings"]):
            del finding["keys"]
        return json.dumps(content, indent=1)


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
    return pa.Table.from_pylist(rows, schema=tables.QUALITY.arrow_schema)


def as_json(audit: Audit, as_of: datetime) -> dict[str, Any]:
    """The content of a run's `audit.json`, without the address of its pages."""
    content: dict[str, Any] = json.loads(audit.to_json())
    state = State.UNDECIDED if audit.passed else State.HELD_BACK
    # `at`, as in `quality_results`, distinguishes two audits of one run.
    return content | {"as_of": as_of.isoformat(timespec="seconds"), "at": as_of.isoformat(), "state": state}
