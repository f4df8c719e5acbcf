"""Finds the offenders of a run that breaks rules: the messages from which the bad rows came, and the files with bad ledger rows.

The reason of each offender is the rule that it breaks. `backlog.ingest_and_audit` then writes the run again without the
offenders. The messages go to quarantine; the ledger row of an offending file records the reason.
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
from pipelines.ingest.planning import Offenders
from pipelines.ingest.run import Run

MAX_NAMES_IN_ALERT = 5  # messages and files that an alert names

Key = tuple[Any, ...]
# For tables whose rows lack the seq of their message: the streams to search, each with its parser, and a function that returns
# the table key of a parsed row.
SOURCE_OF_ROWS: Mapping[str, tuple[Mapping[Stream, parsing.Parser], Callable[[dict[str, Any]], Key]]] = {
    META.name: ({Stream.DATA: parsing.data, Stream.TRIGGER: parsing.inline_data}, lambda row: (row["data_id"],)),
    OUTCOMES.name: ({Stream.OUTCOME: parsing.outcomes}, lambda row: (row["vin"], row["entry_seq"])),
    ECQ_STATE.name: ({Stream.ECQ: parsing.ecq_brief}, lambda row: tuple(row[column] for column in ECQ_STATE.key)),
}


def offenders_of(run: Run, audit: Audit) -> Offenders:
    """The messages and files that break rules of severity `error`. The reason of each names the first rule that it breaks."""
    offenders = Offenders()
    for finding in audit.failures:
        reason = f"set aside by the audit: {finding.table}: {finding.rule} ({finding.why})"
        if finding.table == SEGMENTS.name:
            offenders |= Offenders(files={str(key[0]): reason for key in finding.keys})
        elif finding.table in SOURCE_OF_ROWS:
            offenders |= Offenders(dict.fromkeys(_source_seqs(run, finding), reason))
        else:  # the only key column is the seq; the message of a row without a seq cannot be found, and is no offender
            seqs = [int(key[0]) for key in finding.keys if key[0] is not None]
            offenders |= Offenders(dict.fromkeys(seqs, reason))
    return offenders


def _source_seqs(run: Run, finding: Finding) -> Iterator[int]:
    """Yield the seqs of the messages from which the finding's rows came.

    They are found by parsing the run's files, which is slow but rarely needed.
    """
    parsers, key_of = SOURCE_OF_ROWS[finding.table]
    bad_keys = set(finding.keys)
    archive = run.archive
    limits = parsing.Limits.of(run.settings)
    for path, stream in segments_of(run.catalog, run.run_id):
        if stream not in parsers:
            continue
        try:
            messages = decode(path, archive.read(path)).messages
        except Unreadable:
            continue  # the file is refused as a whole, so no row came from it
        for batch in parsers[stream](messages, limits):
            accepted = batch.filter(pc.is_null(batch["reason"])).to_pylist()
            yield from (row["seq"] for row in accepted if key_of(row) in bad_keys)


def send_alert(settings: Settings, run_id: str, offenders: Offenders) -> None:
    """Alert that these messages and files are set aside from the run, which has now passed its audit."""
    names = [*(f"seq {seq}" for seq in sorted(offenders.messages)), *sorted(offenders.files)]
    shown_names = ", ".join(names[:MAX_NAMES_IN_ALERT])
    if len(names) > MAX_NAMES_IN_ALERT:
        shown_names += ", …"
    reasons = sorted({*offenders.messages.values(), *offenders.files.values()})
    text = f"run {run_id} quarantined {len(offenders)} messages or files ({shown_names}): {'; '.join(reasons)}"
    alert(
        settings,
        "set aside",
        f"{text}; see `manifold quarantine ls`",
        run_id=run_id,
        messages=sorted(offenders.messages),
        files=sorted(offenders.files),
    )
