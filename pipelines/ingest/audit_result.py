"""Audit results of earlier attempts, from the rows of `quality_results`. No Spark.

An audit result belongs to one attempt at a run, named by the snapshot that wrote the rows. Timestamps would not do, because
worker clocks differ: a result from a slow clock would be missed, and one from a fast clock would be applied to rows written
after it.
"""

from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, EqualTo
from pyiceberg.table.snapshots import Snapshot

from manifold.contracts.tables import QUALITY, SEGMENTS
from manifold.lake.catalog import where
from manifold.lake.commits import append_rows
from manifold.lake.reports import open_reports, run_page
from manifold.settings import Settings
from pipelines.ingest.branches import ATTEMPT, BEGAN, RUN_ID, ancestors, branch_of, head_of, properties_of
from pipelines.ingest.publish import is_committed

AUDITED_AT = "manifold.judged-at"  # of `quality_results` only: the value of `at` in the rows of this result
PASSED = "manifold.passed"  # of `quality_results` only: "true" if the attempt may be published
BROKEN, ERROR = "broken", "error"  # values in the table; importing `expectations` would import PySpark


def append_audit_result(catalog: Catalog, judged: Snapshot, rows: pa.Table) -> None:
    """Append an audit result, tagged with the run and attempt that wrote the snapshot `judged` of `ingested_segments`."""
    properties = {name: value for name, value in properties_of(judged).items() if name in (RUN_ID, ATTEMPT)}
    broken = pc.and_(pc.equal(rows["severity"], ERROR), pc.equal(rows["outcome"], BROKEN))
    properties[PASSED] = "false" if pc.any(broken).as_py() else "true"
    if rows.num_rows:
        properties[AUDITED_AT] = rows["at"][0].as_py().isoformat()  # all rows have the same instant
    append_rows(catalog, QUALITY, rows, properties)


def may_be_published(catalog: Catalog, written: Snapshot) -> bool:
    """Whether the newest audit result for the attempt that wrote this snapshot of `ingested_segments` is a pass.

    Only snapshot properties are read. Two processes may work at one run: while one audits its attempt, the other may replace it.
    """
    mine = properties_of(written)
    for snapshot in ancestors(catalog.load_table(QUALITY.identifier)):
        said = properties_of(snapshot)
        if PASSED in said and all(said.get(name) == mine.get(name) for name in (RUN_ID, ATTEMPT)):
            return said[PASSED] == "true"
    return False


def passed_already(catalog: Catalog, settings: Settings, run_id: str) -> dict[str, Any] | None:
    """Return the report's address and the number of warnings if the run has passed, or has nothing to publish.

    None means that the run must be audited (again): a result for an earlier attempt is about rows that are gone.
    """
    segments = catalog.load_table(SEGMENTS.identifier)
    if BEGAN + branch_of(run_id) not in segments.properties or is_committed(segments, run_id):
        return {"report": None, "warnings": 0}
    rows = _results(catalog, run_id)
    broken = [row["severity"] for row in rows if row["outcome"] == BROKEN]
    if not rows or ERROR in broken:
        return None
    return {"report": open_reports(settings).address(run_page(run_id)), "warnings": len(broken)}


def held_back(catalog: Catalog, settings: Settings, run_id: str) -> str:
    """Explain why a run that has not passed must not be published, and name the remedy."""
    broken = [row for row in _results(catalog, run_id) if (row["outcome"], row["severity"]) == (BROKEN, ERROR)]
    if not broken:
        return f"the current attempt at run {run_id} has not been audited: clear its task `ingest`"
    report = open_reports(settings).address(run_page(run_id))
    says = "{suite}: {rule} does not hold for {unexpected} of {judged} rows; for example {sample}"
    named = [says.format_map(row) for row in sorted(broken, key=lambda row: (row["suite"], row["rule"]))]
    first = f"run {run_id} is held back by {len(broken)} rules; report {report}; repair the cause, then clear its task `ingest`"
    return "\n".join([first, *named])


def _results(catalog: Catalog, run_id: str) -> list[dict[str, Any]]:
    """The rows of the newest audit result for the attempt now on the run's branches."""
    judged_at = _judged_at(catalog, run_id)
    if judged_at is None:
        return []
    mine = And(where(EqualTo, "run_id", run_id), where(EqualTo, "at", judged_at))
    rows: list[dict[str, Any]] = catalog.load_table(QUALITY.identifier).scan(mine).to_arrow().to_pylist()
    return rows


def _judged_at(catalog: Catalog, run_id: str) -> datetime | None:
    """The instant of the newest audit result for the attempt now on the run's branches; None if there is none."""
    head = head_of(catalog, SEGMENTS, run_id)
    written = properties_of(head) if head is not None else {}
    if written.get(RUN_ID) != run_id or ATTEMPT not in written:
        return None  # the run is open, but was not written to its end
    for snapshot in ancestors(catalog.load_table(QUALITY.identifier)):
        properties = properties_of(snapshot)
        if (properties.get(RUN_ID), properties.get(ATTEMPT)) == (run_id, written[ATTEMPT]) and AUDITED_AT in properties:
            return datetime.fromisoformat(properties[AUDITED_AT])
    return None
