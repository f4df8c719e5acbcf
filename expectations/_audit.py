"""The audit of one run: the judgement of Great Expectations, the rows that break a rule, the pages, and `quality_results`."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa

from expectations._findings import TRACED, Audit, Finding
from expectations._pages import publish_pages
from expectations._results import results_of
from expectations._rows import Case
from expectations._rules import NotNull, Severity
from expectations._suites import load_suites
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import RUN_TABLES
from manifold.lake.files import Files
from manifold.lake.reports import run_page

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame

    from expectations._arrow_rows import ArrowRows, Lookup
    from expectations._judge import Verdicts
    from expectations._spark_rows import SparkRows

OFFENDERS = 1000  # values of an error's rows that a finding names
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.~:+-]*")


def audit(
    frames: "Mapping[str, DataFrame | pa.Table | ds.Dataset]",
    *,
    run_id: str,
    as_of: datetime,
    reports: Files,
    keep: int,
    references: "Mapping[str, DataFrame]",
    lookups: "Mapping[str, Lookup]",
    data_wait: timedelta,
    counted: Mapping[str, Mapping[str, int]] | None = None,
    keep_results: Callable[[pa.Table], object] = lambda _: None,
) -> Audit:
    """Judge the rows that one run adds, before they are published.

    Args:
        frames: by table name, the rows that the run adds (of `sdv_fanout_meta`: those it has merged); a missing table has none.
            Each in Spark, in memory, or in files that DuckDB reads.
        run_id: names the run in the reports; a second judgement replaces its pages.
        as_of: the instant of the judgement, timezone-aware; the clock is not read.
        reports: the store of the HTML reports; `index.html` in it lists the runs.
        keep: the number of runs whose pages are kept; older ones are removed.
        references: by table name, all rows of a table *with the run's own*, for rules that look values up: `sdv_fanout_data`
            and `sdv_fanout_meta` (data_id), `sdv_fanout_ids` (vin, seq), `ecq_payload` (client_id, seq, ts), `ecq_seqno`
            (client_id), `ingested_segments` (path). No other column is read. Rows that have no value of the run's may be left
            out. For rules about rows in Spark.
        lookups: for rules about rows that are not in Spark, the same as functions that find the rows with certain values in these
            columns.
        data_wait: how long a trigger may be without its data before that is a warning.
        counted: by table and name of a count (`counted` of a rule), how many rows break the rule, where the parser has counted.
        keep_results: called last, with the rows of `quality_results`.

    Raises:
        Permanent: the run id cannot name a folder, a frame names no table with a suite, or a reference or a look-up is missing.
    """
    if not RUN_ID.fullmatch(run_id):
        raise Permanent(
            f"run id {run_id!r} names a folder of the reports; use letters, digits and - _ . : + ~, with a letter or digit first"
        )
    suites = load_suites()
    if unknown := sorted(frames.keys() - suites.keys()):
        raise Permanent(f"no suite for {', '.join(unknown)}; write expectations/suites/<table>.yaml, or leave the table out")
    known = counted or {}
    cases = []
    for table, frame in frames.items():
        whole = lookups if _is_arrow(frame) else references
        cases.append(Case(suites[table], _rows(frame), whole, run_id, as_of, data_wait, known.get(table, {})))
    # It takes some three seconds to import, and whoever only reads suites or verdicts does without.
    from expectations._judge import judge

    judged: list[Audit] = []
    with TemporaryDirectory(prefix="manifold-pages-") as made:

        def publish(verdicts: "Verdicts") -> None:
            judged.append(_audit(run_id, cases, verdicts, reports))
            publish_pages(judged[0], as_of=as_of, reports=reports, keep=keep, made=Path(made))

        def keep_rows(_: "Verdicts") -> None:
            keep_results(results_of(judged[0], as_of))

        judge(cases, run_id=run_id, as_of=as_of, site=Path(made), publish=publish, keep=keep_rows)
    return judged[0]


def _rows(frame: "DataFrame | pa.Table | ds.Dataset") -> "SparkRows | ArrowRows":
    if _is_arrow(frame):
        from expectations._arrow_rows import ArrowRows

        return ArrowRows(frame)
    from expectations._spark_rows import SparkRows

    return SparkRows(frame)


def _is_arrow(frame: "DataFrame | pa.Table | ds.Dataset") -> bool:
    from pyarrow import dataset  # which takes its time

    return isinstance(frame, pa.Table | dataset.Dataset)


def _audit(run_id: str, cases: Sequence[Case], verdicts: "Verdicts", reports: Files) -> Audit:
    rows = {table.name: 0 for table in RUN_TABLES} | {table: verdict.rows for table, verdict in verdicts.items()}
    findings = [finding for case in cases for finding in _findings(case, verdicts)]
    failures = tuple(finding for finding in findings if finding.severity is Severity.ERROR)
    warnings = tuple(finding for finding in findings if finding.severity is Severity.WARNING)
    return Audit(run_id, not failures, failures, warnings, rows, reports.address(run_page(run_id)))


def _findings(case: Case, verdicts: "Verdicts") -> list[Finding]:
    table = case.suite.table
    found: list[Finding] = []
    if table not in verdicts:
        return found
    rows, broken = verdicts[table].rows, verdicts[table].broken
    for rule in case.suite.rules:
        if rule.name not in broken:
            continue
        offending = case.offending(rule, rows)
        traced = rule.severity is Severity.ERROR and table in TRACED
        # A row that lacks two columns counts once.
        count = offending.count() if isinstance(rule, NotNull) and len(rule.columns) > 1 else broken[rule.name]
        keys = offending.keys(TRACED[table], OFFENDERS) if traced else ()
        found.append(
            Finding(table, rule.name, rule.severity, str(rule), rule.why, count, rows, case.samples(rule, offending), keys)
        )
    return found
