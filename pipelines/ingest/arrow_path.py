"""Writes a small run in this process, as `write` does with Spark: the same plan, branches, rows and numbers, without a JVM.

`write_by_arrow` has one function for each stream, as `write` has. A run with a stream that is not in `STREAMS` needs Spark.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from manifold.archive import parsing
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import DATA, IDS, META, OUTCOMES, QUARANTINE
from pipelines.ingest import arrow_rows
from pipelines.ingest.arrow_commits import ALL, append_payloads, between, matching, merge_meta
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.both_ways import COUNTED, FEW, bounds_of_refusals, source_of, table_of_known_data
from pipelines.ingest.close import close_segments
from pipelines.ingest.planning import SIGNALS, Plan
from pipelines.ingest.reading import Source, read_files
from pipelines.ingest.run import Ingested
from pipelines.ingest.write_ecq import write_ecq_by_arrow
from pipelines.ingest.write_signals import write_signals_by_arrow, write_status_by_arrow
from pipelines.spark.needed import NeedsSpark

STREAMS = frozenset({Stream.TRIGGER, Stream.DATA, Stream.OUTCOME, Stream.ECQ, *SIGNALS})
MOST_BYTES = 128 << 20  # of what the messages of one stream say, in memory
MOST_IDS = 500_000  # rows of a run


def write_by_arrow(run: Attempt, todo: Plan) -> Ingested:
    """Everything of the plan, on the run's branches.

    Raises:
        NeedsSpark: it is more than one process should hold. The run is open; whoever begins it again drops what it has.
    """
    if unknown := {segment.stream for segment in todo.segments} - STREAMS:
        raise NeedsSpark(f"nothing here reads the stream {', '.join(sorted(unknown))}")
    refused: list[pa.Table] = []
    triggers = _parsed(run, todo, Stream.TRIGGER, parsing.triggers, parsing.TRIGGERS)
    if (pc.sum(pc.list_value_length(triggers["vins"])).as_py() or 0) > MOST_IDS:
        raise NeedsSpark(f"more than {MOST_IDS} entries are to be taken in")
    conflicting = _write_data(run, todo, triggers, refused)
    _write_ids(run, todo, triggers, conflicting, refused)
    _write_outcomes(run, todo, refused)
    if todo.of(Stream.ECQ):
        write_ecq_by_arrow(run, _parsed(run, todo, Stream.ECQ, parsing.ecq, parsing.ECQ), todo.base, refused)
    if todo.of(Stream.XRAY_RAW):
        signals = _parsed(run, todo, Stream.XRAY_RAW, parsing.Processing.of(run.settings), parsing.PROCESSED)
        write_signals_by_arrow(run, signals, todo.base, refused)
    if todo.of(Stream.XRAY_STATUS):
        write_status_by_arrow(run, _parsed(run, todo, Stream.XRAY_STATUS, parsing.statuses, parsing.STATUSES), todo.base, refused)
    if refused:
        run.put(QUARANTINE, arrow_rows.once(pa.concat_tables(refused)), todo.base[QUARANTINE.name])
    return close_segments(run, todo)


def _parsed(
    run: Attempt, todo: Plan, stream: Stream, parser: parsing.Parser, schema: pa.Schema, *, with_unreadable: bool = True
) -> pa.Table:
    source = source_of(run, todo, stream)
    return pa.Table.from_batches(_bounded(_batches(source, parser, schema if with_unreadable else None)), schema)


def _batches(source: Source, parser: parsing.Parser, unreadable: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    files = map(source.file, source.segments)
    return read_files(files, source.aside, source.archive, parser, source.limits, unreadable)


def _bounded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > MOST_BYTES:
            raise NeedsSpark(f"messages of more than {MOST_BYTES >> 20} MiB are to be taken in")
        yield batch


def _write_data(run: Attempt, todo: Plan, triggers: pa.Table, refused: list[pa.Table]) -> Sequence[int]:
    """Payloads and when they were seen; the seqs of triggers whose inline data is refused."""
    published = _parsed(run, todo, Stream.DATA, parsing.data, parsing.DATA)
    inline = parsing.DATA.empty_table()
    if pc.any(triggers["has_data"]).as_py():
        inline = _parsed(run, todo, Stream.TRIGGER, parsing.inline_data, parsing.DATA, with_unreadable=False)
    if not (published.num_rows or inline.num_rows):
        return []
    bad, accepted = arrow_rows.parted(published)
    if bad.num_rows:
        refused.append(arrow_rows.refused_rows(bad, Stream.DATA))
    sightings = pa.concat_tables([accepted, inline])
    judgement = arrow_rows.judged(sightings, _known_data(run, todo, sightings))
    if new := judgement.new:
        rows = arrow_rows.data_rows(sightings, new)
        run.write(DATA, todo.base[DATA.name], lambda branch, properties: append_payloads(run.catalog, rows, branch, properties))
    if changes := judgement.changes:
        run.write(META, todo.base[META.name], lambda branch, properties: merge_meta(run.catalog, changes, branch, properties))
    for stream, frame in ((Stream.DATA, accepted), (Stream.TRIGGER, inline)):
        conflicts = arrow_rows.conflict_rows(frame, judgement.conflicts, stream)
        if conflicts.num_rows:
            refused.append(conflicts)
    return [seq for seq in inline["seq"].to_pylist() if seq in judgement.conflicts]


def _known_data(run: Attempt, todo: Plan, sightings: pa.Table) -> dict[str, str]:
    """SHA-1 of the stored payload, by data_id, of the data_ids in the run."""
    table = table_of_known_data(run.catalog, todo.base)
    ids = pc.unique(sightings["data_id"])
    if len(ids) > FEW:
        raise NeedsSpark(f"{len(ids)} payloads are to be looked for")
    found = matching(run.catalog, table, todo.base[table.name], pa.table({"data_id": ids}), ("data_id", "sha1"))
    return {row["data_id"]: row["sha1"] for row in found.to_pylist() if row["sha1"] is not None}


def _write_ids(run: Attempt, todo: Plan, triggers: pa.Table, but: Sequence[int], refused: list[pa.Table]) -> None:
    """The entries of all triggers but those with the seqs `but`."""
    if not todo.of(Stream.TRIGGER):
        return
    bad, accepted = arrow_rows.parted(triggers)
    wanted = accepted.filter(pc.invert(pc.is_in(accepted["seq"], pa.array(but, pa.int64()))))
    run.put(IDS, arrow_rows.ids_rows(wanted), todo.base[IDS.name])
    run.counted[IDS.name] = {name: pc.sum(wanted[name]).as_py() or 0 for name in COUNTED}
    if bad.num_rows:
        refused.append(arrow_rows.refused_rows(bad, Stream.TRIGGER))


def _write_outcomes(run: Attempt, todo: Plan, refused: list[pa.Table]) -> None:
    if not todo.of(Stream.OUTCOME):
        return
    bad, accepted = arrow_rows.parted(_parsed(run, todo, Stream.OUTCOME, parsing.outcomes, parsing.OUTCOMES))
    if accepted.num_rows:
        rows = arrow_rows.outcome_rows(accepted)
        known = _known_outcomes(run, todo, rows.select(["vin", "seq"]))
        run.put(OUTCOMES, arrow_rows.not_in(rows, known, ["vin", "seq"]), todo.base[OUTCOMES.name])
    if bad.num_rows:
        rows = arrow_rows.refused_rows(bad, Stream.OUTCOME)
        bounds = bounds_of_refusals(todo)
        days = between("received_at", *bounds) if bounds else ALL
        known = matching(run.catalog, QUARANTINE, todo.base[QUARANTINE.name], rows.select(["seq"]), ("seq",), days)
        refused.append(arrow_rows.not_in(rows, known, ["seq"]))


def _known_outcomes(run: Attempt, todo: Plan, keys: pa.Table) -> pa.Table:
    """(vin, seq) of them that are in the lake: only those days' files are read."""
    span = pc.min_max(keys["seq"]).as_py()
    days = between("accepted_at", datetime_of(span["min"]), datetime_of(span["max"]))
    return matching(run.catalog, OUTCOMES, todo.base[OUTCOMES.name], keys, ("vin", "seq"), days)
