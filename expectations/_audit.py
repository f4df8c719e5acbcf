"""Audits one run: has Great Expectations check the rows, finds the rows that break a rule, and publishes the report pages."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from expectations._findings import SOURCE_COLUMNS, Audit, Finding
from expectations._pages import publish_pages
from expectations._rows import Case, keys_of
from expectations._rules import NotNull
from expectations._suites import load_list_suites, load_suites
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import RUN_TABLES, Severity
from manifold.lake.files import Files
from manifold.lake.reports import run_page

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from expectations._judge import TableResult, TableResults

MAX_OFFENDERS = 1000  # keys of offending rows in a finding of severity `error`
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.~:+-]*")  # run ids that can name a folder of the reports


def audit(
    frames: "Mapping[str, DataFrame]",
    *,
    run_id: str,
    as_of: datetime,
    reports: Files,
    keep: int,
    references: "Mapping[str, DataFrame]",
    data_wait: timedelta,
    counts: Mapping[str, int] | None = None,
) -> Audit:
    """Audit the rows that one run adds, before they are published. The report pages are readable when this returns.

    Args:
        frames: table name → the rows that the run adds, at least one. Tables that are missing here are not audited.
        run_id: the run. If the run was audited before, the pages of that audit are replaced.
        as_of: the instant of the audit, timezone-aware. It is used instead of the clock.
        reports: the store of the HTML reports. Its `index.html` lists the runs.
        keep: the number of runs whose pages are kept. The pages of older runs are removed.
        references: table name → all rows of the table *including the rows that the run adds*, for rules that look up values. Only
            these columns are read: `sdv_fanout_data` and `sdv_fanout_meta` (data_id), `sdv_fanout_ids` (vin, seq), `ecq_payload`
            (client_id, seq, ts), `ecq_seqno` (client_id), `sdv_campaigns` (campaign), `ingested_segments` (path),
            `xray_raw_signals` (device_id, captured_at, content_digest, seq). Rows to which the run cannot refer may be omitted.
        data_wait: how long a trigger may wait for its data. After that, missing data is a warning.
        counts: table name → number of rows in the frame, if it is known. Frames without an entry are counted.

    Raises:
        Permanent: the run id cannot name a folder, a frame belongs to a table without a suite, or a reference is missing.
    """
    if not RUN_ID.fullmatch(run_id):
        raise Permanent(
            f"run id {run_id!r} names a folder of the reports; use letters, digits and - _ . : + ~, with a letter or digit first"
        )
    suites = load_suites() | load_list_suites()  # of tables, and of rows that are not in a table
    if unknown := sorted(frames.keys() - suites.keys()):
        raise Permanent(f"no suite for {', '.join(unknown)}; write expectations/suites/<table>.yaml, or leave the table out")
    known_counts = counts or {}
    cases = [
        Case(suites[table], frame, references, run_id, as_of, data_wait, known_counts.get(table))
        for table, frame in frames.items()
    ]
    # Imported here because it takes about three seconds, and readers of suites or results do not need it.
    from expectations._judge import judge

    with TemporaryDirectory(prefix="manifold-pages-") as folder:
        results = judge(cases, run_id=run_id, as_of=as_of, site=Path(folder))
        audit_result = _audit_of(run_id, cases, results, reports)
        publish_pages(audit_result, as_of=as_of, reports=reports, keep=keep, site=Path(folder))
    return audit_result


def _audit_of(run_id: str, cases: Sequence[Case], results: "TableResults", reports: Files) -> Audit:
    """The result of the audit, from the results of Great Expectations for each table."""
    rows = {table.name: 0 for table in RUN_TABLES} | {table: result.rows for table, result in results.items()}
    findings: list[Finding] = []
    for case in cases:
        findings += _findings(case, results[case.suite.table])
    failures = tuple(finding for finding in findings if finding.severity is Severity.ERROR)
    warnings = tuple(finding for finding in findings if finding.severity is Severity.WARNING)
    return Audit(
        run_id,
        passed=not failures,
        failures=failures,
        warnings=warnings,
        rows=rows,
        report=reports.address(run_page(run_id)),
    )


def _findings(case: Case, result: "TableResult") -> list[Finding]:
    """One finding per broken rule of the table, with sample rows.

    A finding of severity `error` also has the keys by which the messages or files of its rows can be found (`SOURCE_COLUMNS`).
    """
    table = case.suite.table
    findings: list[Finding] = []
    for rule in case.suite.rules:
        if rule.name not in result.broken:
            continue
        offending = case.offending_rows(rule)
        count = result.broken[rule.name]
        if isinstance(rule, NotNull) and len(rule.columns) > 1:
            count = offending.count()  # Great Expectations counts each column, but a row with two nulls is one offending row
        keys: tuple[tuple[Any, ...], ...] = ()
        if rule.severity is Severity.ERROR and table in SOURCE_COLUMNS:
            keys = keys_of(offending, SOURCE_COLUMNS[table], MAX_OFFENDERS)
        findings.append(
            Finding(
                table=table,
                rule=rule.name,
                severity=rule.severity,
                says=str(rule),
                why=rule.why,
                rows=count,
                of=result.rows,
                samples=case.samples(rule, offending),
                keys=keys,
            )
        )
    return findings
