"""Writes a run that breaks a rule again without the offending messages, and publishes the rest.

The messages behind the bad rows are refused, with the rule as the reason. A file whose own ledger row is bad is refused as
a whole, and that row says why. This is bounded: if much of a run breaks a rule, the cause is the rule, the code or the
storage rather than the messages, and the whole run is held back.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow.compute as pc
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo

from expectations import Audit, Finding
from manifold.archive import parsing
from manifold.archive.content import Unreadable
from manifold.archive.formats import decode
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import ECQ_STATE, META, OUTCOMES, SEGMENTS
from manifold.lake.catalog import where
from manifold.runtime.alert import alert
from manifold.settings import Settings
from pipelines.ingest.audit import AuditFailed, audit_run
from pipelines.ingest.branches import head_of
from pipelines.ingest.lineage import emit_held_back
from pipelines.ingest.planning import Exclusions
from pipelines.ingest.run import Ingested, Run
from pipelines.ingest.write import ingest
from pipelines.populate.snapshot_range import SnapshotRange

MAX_AUDIT_ROUNDS = 4  # removing offenders may reveal another broken rule
MAX_OFFENDERS = 10  # messages that may be set aside, however small the run
MAX_OFFENDER_SHARE = 0.1  # of the run's messages; above this, the run is held back
MAX_NAMES_IN_ALERT = 5  # messages that an alert names

log = structlog.get_logger(__name__)

Key = tuple[Any, ...]
# For tables whose rows lack the seq of their message: the streams to search, the parser of each, and the row's key there.
SOURCE_OF_ROWS: Mapping[str, tuple[Mapping[Stream, parsing.Parser], Callable[[dict[str, Any]], Key]]] = {
    META.name: ({Stream.DATA: parsing.data, Stream.TRIGGER: parsing.inline_data}, lambda row: (row["data_id"],)),
    OUTCOMES.name: ({Stream.OUTCOME: parsing.outcomes}, lambda row: (row["vin"], row["entry_seq"])),
    ECQ_STATE.name: ({Stream.ECQ: parsing.ecq_brief}, lambda row: tuple(row[column] for column in ECQ_STATE.key)),
}


def ingest_and_audit(run: Run) -> tuple[Ingested, Audit | None]:
    """Write the run to its branches and audit it; the audit is None if nothing was written or the run is already committed.

    Raises:
        AuditFailed: the run breaks rules, and the offending messages are too many or cannot be identified.
    """
    aside = Exclusions()
    for round_ in range(MAX_AUDIT_ROUNDS):
        # A distinct instant, so that rows of `quality_results` distinguish the rounds.
        once = replace(run, now=run.now + timedelta(milliseconds=round_))
        written = ingest(once, aside)
        try:
            judged = audit_run(once)
        except AuditFailed as exc:
            more = aside | offenders(run, exc.result)
            if (
                round_ + 1 == MAX_AUDIT_ROUNDS
                or len(more) == len(aside)
                or len(more) > max(MAX_OFFENDERS, MAX_OFFENDER_SHARE * sum(written.read.values()))
            ):
                emit_held_back(run.catalog, run.settings, run.run_id, exc.result)
                raise
            aside = more
            log.warning("run breaks a rule; rewriting it without the offending messages", run_id=run.run_id, aside=len(aside))
        else:
            if aside:
                _send_alert(run.settings, run.run_id, aside)
            return written, judged
    raise AssertionError("the last round returns or raises")


def offenders(run: Run, audit: Audit) -> Exclusions:
    """Messages and files behind the rows that break rules of severity `error`, each with the first broken rule as its reason."""
    aside = Exclusions()
    for finding in audit.failures:
        why = f"set aside by the audit: {finding.table}: {finding.rule} ({finding.why})"
        if finding.table == SEGMENTS.name:
            aside |= Exclusions(files={str(key[0]): why for key in finding.keys})
        elif finding.table in SOURCE_OF_ROWS:
            aside |= Exclusions(dict.fromkeys(_source_seqs(run, finding), why))
        else:
            aside |= Exclusions({int(key[0]): why for key in finding.keys if key[0] is not None})
    return aside


def _source_seqs(run: Run, finding: Finding) -> Iterator[int]:
    """Seqs of the messages behind the finding's rows, found by parsing the run's files: slow, but rarely needed."""
    parsers, key_of = SOURCE_OF_ROWS[finding.table]
    wanted, archive = set(finding.keys), run.archive
    limits = parsing.Limits(run.settings.max_ids, run.settings.max_data_bytes)
    for path, stream in segments_of(run.catalog, run.run_id):
        if stream not in parsers:
            continue
        try:
            messages = decode(path, archive.read(path)).messages
        except Unreadable:
            continue
        for batch in parsers[stream](messages, limits):
            accepted = batch.filter(pc.is_null(batch["reason"])).to_pylist()
            yield from (row["seq"] for row in accepted if key_of(row) in wanted)


def segments_of(catalog: Catalog, run_id: str) -> list[tuple[str, Stream]]:
    """The files that the run ingests, from the ledger on its branch; reads only what its snapshot adds."""
    head = head_of(catalog, SEGMENTS, run_id)
    if head is None or head.parent_snapshot_id is None:  # the run is open, and nothing is written yet
        return []
    added = SnapshotRange(SEGMENTS, head.parent_snapshot_id, head.snapshot_id, 1)
    rows = added.read(catalog, where(EqualTo, "run_id", run_id), ("path", "stream")).to_pylist()
    return [(row["path"], Stream(row["stream"])) for row in rows]


def _send_alert(settings: Settings, run_id: str, aside: Exclusions) -> None:
    named = [*(f"seq {seq}" for seq in sorted(aside.messages)), *sorted(aside.files)]
    shown = ", ".join(named[:MAX_NAMES_IN_ALERT]) + (", …" if len(named) > MAX_NAMES_IN_ALERT else "")
    why = sorted({*aside.messages.values(), *aside.files.values()})
    text = f"run {run_id} quarantined {len(aside)} messages or files ({shown}): {'; '.join(why)}"
    alert(
        settings,
        "set aside",
        f"{text}; see `manifold quarantine ls`",
        run_id=run_id,
        messages=sorted(aside.messages),
        files=sorted(aside.files),
    )
