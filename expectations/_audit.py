"""Audits one run: the verdict of Great Expectations, the rows that break a rule, the pages, and `quality_results`."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa

from expectations._findings import TRACED, Audit, Finding, results_of
from expectations._pages import publish_pages
from expectations._rows import Case, keys_of
from expectations._rules import NotNull, Severity
from expectations._suites import load_list_suites, load_suites
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import RUN_TABLES
from manifold.lake.files import Files
from manifold.lake.reports import run_page

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from expectations._judge import TableResults

MAX_OFFENDERS = 1000  # keys of offending rows in a finding of severity `error`
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.~:+-]*")


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
    keep_results: Callable[[pa.Table], object] = lambda _: None,
) -> Audit:
    """Audit the rows that one run adds, before they are published.

    Args:
        frames: by table name, the rows that the run adds, at least one each; a table that is missing is not audited.
        run_id: names the run in the reports; a second audit replaces its pages.
        as_of: the instant of the audit, timezone-aware; the clock is not read.
        reports: the store of the HTML reports; `index.html` in it lists the runs.
        keep: the number of runs whose pages are kept; older ones are removed.
        references: by table name, all rows of a table *including the run's own*, for rules that look values up: `sdv_fanout_data`
            and `sdv_fanout_meta` (data_id), `sdv_fanout_ids` (vin, seq), `ecq_payload` (client_id, seq, ts), `ecq_seqno`
            (client_id), `sdv_campaigns` (campaign), `ingested_segments` (path). No other column is read. Rows that the run cannot
            refer to may be left out.
        data_wait: how long a trigger may lack its data before that is a warning.
        counts: by table name, the numbers of rows that are known; other frames are counted.
        keep_results: called last, with the rows of `quality_results`.

    Raises:
        Permanent: the run id cannot name a folder, a frame names no table with a suite, or a reference is missing.
    """
    if not RUN_ID.fullmatch(run_id):
        raise Permanent(
            f"run id {run_id!r} names a folder of the reports; use letters, digits and - _ . : + ~, with a letter or digit first"
        )
    suites = load_suites() | load_list_suites()
    if unknown := sorted(frames.keys() - suites.keys()):
        raise Permanent(f"no suite for {', '.join(unknown)}; write expectations/suites/<table>.yaml, or leave the table out")
    known = counts or {}
    cases = [
        Case(suites[table], frame, references, run_id, as_of, data_wait, known.get(table)) for table, frame in frames.items()
    ]
    # Importing it takes about three seconds, which reading suites or results does not need.
    from expectations._judge import judge

    with TemporaryDirectory(prefix="manifold-pages-") as made:
        verdicts = judge(cases, run_id=run_id, as_of=as_of, site=Path(made))
        result = _audit(run_id, cases, verdicts, reports)
        publish_pages(result, as_of=as_of, reports=reports, keep=keep, made=Path(made))
    keep_results(results_of(result, as_of))
    return result


def _audit(run_id: str, cases: Sequence[Case], verdicts: "TableResults", reports: Files) -> Audit:
    rows = {table.name: 0 for table in RUN_TABLES} | {table: verdict.rows for table, verdict in verdicts.items()}
    findings = [finding for case in cases for finding in _findings(case, verdicts)]
    failures = tuple(finding for finding in findings if finding.severity is Severity.ERROR)
    warnings = tuple(finding for finding in findings if finding.severity is Severity.WARNING)
    return Audit(run_id, not failures, failures, warnings, rows, reports.address(run_page(run_id)))


def _findings(case: Case, verdicts: "TableResults") -> list[Finding]:
    """The broken rules of one table, with the keys of the rows that break an error, and a few rows as samples."""
    table = case.suite.table
    rows, broken = verdicts[table].rows, verdicts[table].broken
    found: list[Finding] = []
    for rule in case.suite.rules:
        if rule.name not in broken:
            continue
        offending = case.offending(rule)
        traced = rule.severity is Severity.ERROR and table in TRACED
        keys = keys_of(offending, TRACED[table], MAX_OFFENDERS) if traced else ()
        # A row that lacks two columns counts once.
        count = offending.count() if isinstance(rule, NotNull) and len(rule.columns) > 1 else broken[rule.name]
        samples = case.samples(rule, offending)
        found.append(Finding(table, rule.name, rule.severity, str(rule), rule.why, count, rows, samples, keys))
    return found
