"""Finds what to set aside of a run that breaks rules: the messages behind the bad rows, each with the rule as its reason.

A file whose own ledger row is bad is set aside as a whole, and that row says why. `chunks.ingest_and_audit` then writes the run
again without them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow.compute as pc

from expectations import Audit, Finding
from manifold.archive import parsing
from manifold.archive.content import Unreadable
from manifold.archive.formats import decode
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import ECQ_STATE, META, OUTCOMES, SEGMENTS
from manifold.runtime.alert import alert
from manifold.settings import Settings
from pipelines.ingest.ledger import segments_of
from pipelines.ingest.planning import Exclusions
from pipelines.ingest.run import Run

MAX_NAMES_IN_ALERT = 5  # messages that an alert names

Key = tuple[Any, ...]
# For tables whose rows lack the seq of their message: the streams to search, the parser of each, and the row's key there.
SOURCE_OF_ROWS: Mapping[str, tuple[Mapping[Stream, parsing.Parser], Callable[[dict[str, Any]], Key]]] = {
    META.name: ({Stream.DATA: parsing.data, Stream.TRIGGER: parsing.inline_data}, lambda row: (row["data_id"],)),
    OUTCOMES.name: ({Stream.OUTCOME: parsing.outcomes}, lambda row: (row["vin"], row["entry_seq"])),
    ECQ_STATE.name: ({Stream.ECQ: parsing.ecq_brief}, lambda row: tuple(row[column] for column in ECQ_STATE.key)),
}


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


def send_alert(settings: Settings, run_id: str, aside: Exclusions) -> None:
    """Alert that the run was published without these messages and files."""
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
