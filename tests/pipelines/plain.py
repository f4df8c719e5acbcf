"""Ingest, collection, compaction and folding without Spark: small, slow, and through the real publication code.

Planning, opening, closing, publishing and finishing a run is the pipelines' code; only computing and writing rows is done by
PyIceberg and Python here. So tests of publication with it hold for Spark's runs too.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyspark.sql import SparkSession
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from expectations import Audit, results_of
from manifold.archive import parsing
from manifold.archive.formats import decode
from manifold.archive.parsing import EcqKind
from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import (
    DATA,
    ECQ_INDEX,
    ECQ_PAYLOAD,
    ECQ_SEQNO,
    ECQ_STATE,
    IDS,
    INSTANT,
    META,
    OUTCOMES,
    QUARANTINE,
    SEGMENTS,
    Table,
)
from manifold.lake.commits import append_rows, retry_conflicts
from manifold.lake.data_files import write_files
from manifold.lake.sightings import folded
from manifold.settings import Settings
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.audit import append_audit_result
from pipelines.ingest.branches import (
    RUN_ID,
    Overtaken,
    branch_of,
    drop_branches,
    head_of,
    open_run,
    properties_of,
)
from pipelines.ingest.planning import Plan
from pipelines.ingest.publish import finish_committed_runs, is_committed, main_snapshots, publish
from pipelines.ingest.run import Ingested, Run
from pipelines.ingest.write import begin, segment_row
from pipelines.ingest.write_ecq import STATE_KEYS, STATES

Rows = list[dict[str, Any]]
Replaced = Callable[[dict[str, int]], list[tuple[Table, Rows]]]  # by the snapshots with which a run begins


def without_spark(catalog: Catalog, settings: Settings, run_id: str, now: datetime) -> Run:
    """A run that takes everything new and never uses Spark."""
    return Run(cast(SparkSession, None), catalog, settings, run_id, now)


class PlainRun(Attempt):
    """One attempt at a run, with its rows in memory."""

    def put(self, table: Table, rows: Rows) -> None:
        """Append rows to the table's branch, if there are any."""
        if rows:
            self.create_branch(table)
            append_rows(self.catalog, table, rows_of(table, rows), self.properties, branch=branch_of(self.run_id))
            self.record_snapshot(table)

    def replace(self, table: Table, rows: Rows) -> None:
        """Replace the rows of the table's branch in one snapshot."""
        self.create_branch(table)
        rewrite(self.catalog, table, rows, branch_of(self.run_id), self.properties)
        self.record_snapshot(table)


def rows_of(table: Table, rows: Rows) -> pa.Table:
    """Rows as Arrow; omitted columns are null."""
    return pa.Table.from_pylist([{c.name: row.get(c.name) for c in table.columns} for row in rows], schema=table.arrow_schema)


@retry_conflicts
def rewrite(catalog: Catalog, table: Table, rows: Rows, branch: str = "main", said: dict[str, str] | None = None) -> None:
    """Replace all files with one file of these rows in one snapshot."""
    loaded = catalog.load_table(table.identifier)
    old = [task.file for task in loaded.scan(snapshot_id=loaded.refs()[branch].snapshot_id).plan_files()]
    with loaded.transaction() as change, change.update_snapshot(said or {}, branch).overwrite() as files:
        for file in old:
            files.delete_data_file(file)
        if rows:
            for file in write_files(change.table_metadata, rows_of(table, rows), loaded.io):
                files.append_data_file(file)


def ingest(catalog: Catalog, settings: Settings, *, run_id: str, now: datetime) -> None:
    """Ingest and publish everything new; repeated while other runs come first."""
    for attempt in _again():
        with attempt:
            write_run(without_spark(catalog, settings, run_id, now))
            publish(catalog, run_id)


def write_run(run: Run) -> Ingested:
    """Write everything new to the run's branches, and publish nothing."""
    todo = begin(run)
    if todo is None:
        return Ingested(run.run_id)
    write(run, todo)
    return Ingested(run.run_id, len(todo.segments))


def ingest_and_audit(run: Run) -> tuple[Ingested, None]:
    """Write the run, and record that it keeps all rules."""
    written = write_run(run)
    pass_audit(run)
    return written, None


def pass_audit(run: Run) -> Audit | None:
    """Record, in place of its audit, that the run keeps all rules; None if there is nothing to audit."""
    head = head_of(run.catalog, SEGMENTS, run.run_id)
    segments = run.catalog.load_table(SEGMENTS.identifier)
    if head is None or properties_of(head).get(RUN_ID) != run.run_id or is_committed(segments, run.run_id):
        return None
    passed = Audit(run.run_id, True, (), (), {SEGMENTS.name: 1}, "page")
    append_audit_result(run.catalog, head, results_of(passed, run.now))
    return passed


def collect(catalog: Catalog, settings: Settings, *, run_id: str, now: datetime, cut: datetime) -> None:
    """Collect data last seen before `cut` that no entry without an outcome refers to."""

    def replaced(base: dict[str, int]) -> list[tuple[Table, Rows]]:
        ended = {(row["vin"], row["seq"]) for row in read(catalog, OUTCOMES, base)}
        needed = {row["data_id"] for row in read(catalog, IDS, base) if (row["vin"], row["seq"]) not in ended}
        meta = sightings(catalog, base)
        stays = {row["data_id"] for row in meta if row["last_seen_at"] >= cut or row["data_id"] in needed}
        if len(stays) == len(meta):
            return []
        return [(table, [row for row in read(catalog, table, base) if row["data_id"] in stays]) for table in (DATA, META)]

    _replace(catalog, settings, run_id, now, replaced)


def fold(catalog: Catalog, settings: Settings, *, run_id: str, now: datetime) -> None:
    """Fold `sdv_fanout_meta` to one row for each payload."""

    def replaced(base: dict[str, int]) -> list[tuple[Table, Rows]]:
        rows = sightings(catalog, base)
        return [(META, rows)] if len(rows) < len(read(catalog, META, base)) else []

    _replace(catalog, settings, run_id, now, replaced)


def _replace(catalog: Catalog, settings: Settings, run_id: str, now: datetime, replaced: Replaced) -> None:
    """Run that gives tables the rows that `replaced` returns; if it returns none, there is no run."""
    for attempt in _again():
        with attempt:
            finish_committed_runs(catalog)
            drop_branches(catalog, branch_of(run_id))
            base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
            tables = replaced(base)
            if not tables:
                return
            run = PlainRun(without_spark(catalog, settings, run_id, now), base)
            open_run(catalog, run_id, base[SEGMENTS.name], now)
            for table, rows in tables:
                run.replace(table, rows)
            run.append_to_ledger(SEGMENTS.arrow_schema.empty_table(), Ingested(run_id))
            publish(catalog, run_id)


def compact(catalog: Catalog, table: Table) -> bool:
    """Rewrite the rows into one file; false if a conflicting commit prevented it."""
    loaded = catalog.load_table(table.identifier)
    old = [task.file for task in loaded.scan().plan_files()]
    if not old:
        return False
    rows = loaded.scan().to_arrow()
    try:
        with loaded.transaction() as change, change.update_snapshot().overwrite() as files:
            for file in old:
                files.delete_data_file(file)
            for file in write_files(change.table_metadata, rows, loaded.io):
                files.append_data_file(file)
    except (CommitFailedException, ValidationException, ValueError):
        return False
    return True


def read(catalog: Catalog, table: Table, base: dict[str, int] | None = None, *columns: str) -> Rows:
    """The table's rows at the snapshot in `base`."""
    loaded = catalog.load_table(table.identifier)
    at = base[table.name] if base else loaded.metadata.current_snapshot_id
    rows: Rows = loaded.scan(selected_fields=columns or ("*",), snapshot_id=at).to_arrow().to_pylist()
    return rows


def sightings(catalog: Catalog, base: dict[str, int] | None = None) -> Rows:
    """One row for each payload, by data_id, as readers see `sdv_fanout_meta`."""
    rows: Rows = folded(rows_of(META, read(catalog, META, base))).sort_by("data_id").to_pylist()
    return rows


def _again() -> Retrying:
    return Retrying(retry=retry_if_exception_type(Overtaken), stop=stop_after_attempt(50), reraise=True)


def write(of: Run, todo: Plan) -> None:
    """Write what is planned to the branches of a run that has begun."""
    run = PlainRun(of, todo.base)
    triggers, data, outcomes = (_parsed(run, todo, stream) for stream in (Stream.TRIGGER, Stream.DATA, Stream.OUTCOME))
    ids = [
        {"vin": vin, "ts": datetime_of(row["seq"]), "vin_is_iso_3779": row["vins_are_iso_3779"]}
        | {k: row[k] for k in ("request_id", "seq", "data_id", "applied")}
        for row in triggers
        if row["reason"] is None
        for vin in row["vins"]
    ]
    stored = {row["data_id"]: (row["sha1"], row["stored_at"]) for row in sightings(run.catalog, dict(todo.base))}
    new: Rows = []
    seen: Rows = []
    for row in sorted((row for row in data if row["reason"] is None), key=lambda row: row["seq"]):
        at, data_id = row["received_at"], row["data_id"]
        if data_id not in stored:
            stored[data_id] = (row["sha1"], at)
            new.append(row | {"size_bytes": len(row["payload"]), "first_seen_at": at})
        sha1, stored_at = stored[data_id]
        times = {"first_seen_at": at, "last_seen_at": at, "stored_at": stored_at}
        seen.append({"data_id": data_id, "times_seen": 1, "sha1": sha1} | times)
    run.put(DATA, new)
    run.put(META, folded(rows_of(META, seen)).to_pylist())
    run.put(IDS, ids)
    run.put(OUTCOMES, _outcomes(run, todo, outcomes))
    compacted = _parsed(run, todo, Stream.ECQ)
    parsed = pa.Table.from_pylist(compacted, schema=parsing.ECQ)
    for table, rows_in in (
        (ECQ_PAYLOAD, payload_table),
        (ECQ_INDEX, index_table),
        (ECQ_STATE, state_table),
        (ECQ_SEQNO, seqno_table),
    ):
        run.put(table, rows_in(parsed).to_pylist())
    bad = [
        row | {"stream": stream, "payload": row["message"]}
        for stream, rows in ((Stream.TRIGGER, triggers), (Stream.DATA, data), (Stream.OUTCOME, outcomes), (Stream.ECQ, compacted))
        for row in rows
        if row["reason"] is not None
    ]
    run.put(QUARANTINE, bad)
    segments = [segment_row(run, todo.probes[s.path], s, None) for s in todo.segments]
    run.append_to_ledger(rows_of(SEGMENTS, segments), Ingested(run.run_id, len(segments)))


def _outcomes(run: PlainRun, todo: Plan, outcomes: Rows) -> Rows:
    ended = {(row["vin"], row["seq"]) for row in read(run.catalog, OUTCOMES, dict(todo.base), "vin", "seq")}
    new: Rows = []
    for row in sorted((row for row in outcomes if row["reason"] is None), key=lambda row: row["seq"]):
        key = (row["vin"], row["entry_seq"])
        if key not in ended:
            ended.add(key)
            times = {"accepted_at": datetime_of(row["entry_seq"]), "ended_at": datetime_of(row["seq"])}
            new.append({"vin": key[0], "seq": key[1], "outcome": row["outcome"], "attempts": row["attempts"]} | times)
    return new


def _parsed(run: PlainRun, todo: Plan, stream: Stream) -> Rows:
    archive = Archive(run.settings.archive, run.settings.s3)
    parser = parsing.PARSERS[stream]
    limits = parsing.Limits.of(run.settings)
    rows: Rows = []
    for segment in todo.segments_of(stream):
        skips: Sequence[int] = todo.skips.get(segment.path, ())
        messages = decode(segment.path, archive.read(segment.path)).messages
        rows += [r for b in parser(messages, limits) for r in b.to_pylist() if r["seq"] not in skips]
    return rows


def payload_table(parsed: pa.Table) -> pa.Table:
    """`payload_rows` in Arrow."""
    return _dated(_written(parsed)).select(ECQ_PAYLOAD.arrow_schema.names).cast(ECQ_PAYLOAD.arrow_schema)


def index_table(parsed: pa.Table) -> pa.Table:
    """`index_rows` in Arrow."""
    return _dated(_written(parsed)).select(ECQ_INDEX.arrow_schema.names).cast(ECQ_INDEX.arrow_schema)


def state_table(parsed: pa.Table) -> pa.Table:
    """`state_rows` in Arrow."""
    states = parsed.filter(pc.and_(pc.is_null(parsed["reason"]), pc.is_in(parsed["kind"], pa.array(STATES))))
    first = states.group_by(STATE_KEYS, use_threads=False).aggregate([("acked_ms", "min")])
    at = pc.cast(pc.cast(first["acked_ms_min"], pa.timestamp("ms", tz="UTC")), INSTANT)
    return first.append_column("acked_at", at).select(ECQ_STATE.arrow_schema.names).cast(ECQ_STATE.arrow_schema)


def seqno_table(parsed: pa.Table) -> pa.Table:
    """`seqno_rows` in Arrow."""
    greatest = _written(parsed).group_by("client_id", use_threads=False).aggregate([("seq", "max")])
    return greatest.rename_columns({"seq_max": "last_seq"}).select(ECQ_SEQNO.arrow_schema.names).cast(ECQ_SEQNO.arrow_schema)


def _written(parsed: pa.Table) -> pa.Table:
    return parsed.filter(pc.and_(pc.is_null(parsed["reason"]), pc.equal(parsed["kind"], EcqKind.WRITE.value)))


def _dated(written: pa.Table) -> pa.Table:
    return written.append_column("ts", pa.array([datetime_of(seq) for seq in written["seq"].to_pylist()], INSTANT))
