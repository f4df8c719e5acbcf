"""The audit of one run: flags from the rows, judgement from Great Expectations, pages for people."""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame

from adapters.files import Files
from adapters.reports import run_page
from contracts.errors import Permanent
from contracts.tables import RUN_TABLES
from expectations._findings import TRACED, Audit, Finding
from expectations._flags import OFFENDERS, Case
from expectations._pages import publish_pages
from expectations._suites import Severity, load_suites

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.~:+-]*")
# Small runs are all planning and start-up, which threads share; more than two tables at once gain nothing on two cores.
PREPARED_AT_ONCE = 2


def audit(
    frames: Mapping[str, DataFrame],
    *,
    run_id: str,
    as_of: datetime,
    reports: Files,
    keep: int,
    references: Mapping[str, DataFrame],
    data_wait: timedelta,
) -> Audit:
    """Judge the rows that one run adds, before anybody reads them.

    Args:
        frames: by table name, the rows that the run adds (of `sdv_fanout_meta`: those it has merged); what is left out is empty.
        run_id: names the run in the reports; judged again, its pages are replaced.
        as_of: the instant of the judgement, timezone-aware; nothing here asks the clock.
        reports: the store of the HTML reports; `index.html` in it lists the runs.
        keep: runs that it keeps; older ones are removed.
        references: by table name, all rows of a table *with the run's own*, for rules that look values up: `sdv_fanout_data`
            (data_id), `sdv_fanout_ids` (vin, seq), `ingested_segments` (path). No other column is read.
        data_wait: how long a trigger may be without its data before that is a warning.

    Raises:
        Permanent: the run id cannot name a folder, a frame names no table with a suite, or a reference is missing.
    """
    if not RUN_ID.fullmatch(run_id):
        raise Permanent(
            f"run id {run_id!r} names a folder of the reports; use letters, digits and - _ . : + ~, with a letter or digit first"
        )
    suites = load_suites()
    if unknown := sorted(frames.keys() - suites.keys()):
        raise Permanent(f"no suite for {', '.join(unknown)}; write expectations/suites/<table>.yaml, or leave the table out")
    cases = [Case(suites[table], frame, references, run_id, as_of, data_wait) for table, frame in frames.items()]
    with ExitStack() as stack:
        for case in cases:
            stack.callback(case.close)
        made = Path(stack.enter_context(TemporaryDirectory(prefix="manifold-pages-")))
        with ThreadPoolExecutor(1 + PREPARED_AT_ONCE, "expectations") as pool:
            # Great Expectations takes some three seconds to import; Spark works on the flags meanwhile.
            module = pool.submit(import_module, "expectations._judge")
            judged = [case for case in pool.map(Case.prepare, cases) if case.rows]
            judge = module.result().judge
        broken = judge([(case.suite, case.flags) for case in judged], run_id=run_id, as_of=as_of, site=made) if judged else {}
        findings = [finding for case in judged for finding in _findings(case, broken[case.suite.table])]
        result = _audit(run_id, cases, findings, reports)
        publish_pages(result, as_of=as_of, reports=reports, keep=keep, made=made)
    return result


def _audit(run_id: str, cases: Sequence[Case], findings: Sequence[Finding], reports: Files) -> Audit:
    rows = {table.name: 0 for table in RUN_TABLES} | {case.suite.table: case.rows for case in cases}
    failures = tuple(finding for finding in findings if finding.severity is Severity.ERROR)
    warnings = tuple(finding for finding in findings if finding.severity is Severity.WARNING)
    return Audit(run_id, not failures, failures, warnings, rows, reports.address(run_page(run_id)))


def _findings(case: Case, broken: Mapping[str, int]) -> list[Finding]:
    table = case.suite.table
    rules = [rule for rule in case.suite.rules if rule.name in broken]
    return [
        Finding(
            table,
            rule.name,
            rule.severity,
            str(rule),
            rule.why,
            broken[rule.name],
            case.rows,
            case.samples(rule),
            case.keys(rule, TRACED[table], OFFENDERS) if rule.severity is Severity.ERROR and table in TRACED else (),
        )
        for rule in rules
    ]
