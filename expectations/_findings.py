"""The result of an audit: whether the run may be published, and which rows break which rule."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from expectations._rules import Severity
from manifold.contracts import tables

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
