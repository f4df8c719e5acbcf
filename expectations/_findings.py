"""The result of an audit: whether the run may be published, and which rows break which rule."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from expectations._rules import Severity
from manifold.contracts import tables

# By what a row of each table is traced to the message, or the file, that brought it.
TRACED: Mapping[str, tuple[str, ...]] = {
    tables.DATA.name: ("seq",),
    tables.META.name: ("data_id",),
    tables.IDS.name: ("seq",),
    tables.OUTCOMES.name: ("vin", "seq"),
    tables.ECQ_PAYLOAD.name: ("seq",),
    tables.ECQ_INDEX.name: ("seq",),
    tables.ECQ_STATE.name: tables.ECQ_STATE.key,
    tables.ECQ_SEQNO.name: ("last_seq",),  # the seq of the message that made it the greatest
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
    why: str  # what it means that it is not
    rows: int  # how many rows break it
    of: int  # how many rows were judged
    samples: tuple[str, ...]  # a few of them, as JSON objects
    keys: tuple[tuple[Any, ...], ...] = ()  # of an error: what the rows can be traced by (`TRACED`), up to some hundreds

    def __str__(self) -> str:
        broken = f"{self.table}: {self.rule} ({self.says}) does not hold for {self.rows} of {self.of} rows"
        return f"{broken}: {self.why}; for example {', '.join(self.samples)}"


@dataclass(frozen=True, slots=True)
class Audit:
    """The judgement of one run. `passed` is false if a rule of severity `error` is broken; then nothing may be published."""

    run_id: str
    passed: bool
    failures: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    rows: Mapping[str, int]  # judged rows, by table
    report: str  # where the HTML page of this run lies

    def __str__(self) -> str:
        verdict = "passed" if self.passed else f"failed on {len(self.failures)} rules"
        judged = ", ".join(f"{rows} {table}" for table, rows in self.rows.items() if rows) or "no rows"
        return f"run {self.run_id} {verdict}; {len(self.warnings)} warnings; judged {judged}; report {self.report}"

    def to_json(self) -> str:
        """The audit as JSON values."""
        content = asdict(self) | {"rows": dict(self.rows)}
        for finding in (*content["failures"], *content["warnings"]):
            del finding["keys"]
        return json.dumps(content, indent=1)
