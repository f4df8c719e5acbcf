"""One attempt at a run: writes its tables on the run's branches, and the ledger `ingested_segments` last."""

import secrets
from collections.abc import Callable
from dataclasses import asdict

import pyarrow as pa
import structlog
from pyiceberg.expressions import LessThan
from pyspark.sql import DataFrame, DataFrameWriterV2
from pyspark.sql import functions as sf

from manifold.archive.probing import Probe
from manifold.archive.segment import Segment
from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Retryable
from manifold.contracts.tables import QUARANTINE, SEGMENTS, Table
from manifold.lake.catalog import run_tables_of, where
from manifold.lake.commits import append_rows, retry_conflicts
from pipelines.ingest.branches import (
    ATTEMPT,
    RESULT,
    RUN_ID,
    branch_of,
    create_branch,
    drop_branch,
    head_of,
    properties_of,
)
from pipelines.ingest.planning import SIGNALS, Plan
from pipelines.ingest.publish import pins_of
from pipelines.ingest.rebase import added_files
from pipelines.ingest.run import Ingested, Run

# Compression level: less CPU than the default 3, and it packs VINs in arrival order better; compaction compresses again.
COMPRESSION_LEVEL = 1
SELDOM = (*SIGNALS, Stream.CAMPAIGN, Stream.ANSWER)  # streams that many lakes never get

log = structlog.get_logger(__name__)
Change = Callable[[str, dict[str, str]], object]  # commits one snapshot with these properties to this branch


class Attempt:
    """One attempt at a run: writes each table at most once, on the run's branch."""

    def __init__(self, run: Run) -> None:
        self.spark, self.catalog, self.settings = run.spark, run.catalog, run.settings
        self.run_id, self.now, self.attempt = run.run_id, run.now, secrets.token_hex(8)
        self.snapshots: dict[str, int] = {}
        self.written: dict[str, int] = {}

    def name(self, table: Table, *, on_branch: bool = False) -> str:
        """The table's name in Spark SQL, optionally on the run's branch."""
        branch = f".`branch_{branch_of(self.run_id)}`" if on_branch else ""
        return f"{self.settings.catalog_name}.{table.identifier}{branch}"

    def main(self, table: Table, base: int) -> DataFrame:
        """The table on main at snapshot `base`."""
        return self.spark.read.option("versionAsOf", base).table(self.name(table))

    def write(self, table: Table, base: int, how: Change) -> None:
        """Commit one snapshot to the table's branch."""
        create_branch(self.catalog, table, self.run_id, base)
        how(branch_of(self.run_id), self.properties)
        self.note(table, base)

    def put(self, table: Table, rows: pa.Table, base: int) -> None:
        """Append in-memory rows to the table's branch."""
        self.write(table, base, lambda branch, properties: append_rows(self.catalog, table, rows, properties, branch=branch))

    def append(self, table: Table, rows: DataFrame, base: int) -> None:
        """Append a DataFrame to the table's branch, in arrival order."""
        self._writer(table, rows, base).append()
        self.note(table, base)

    def overwrite(self, table: Table, rows: DataFrame, base: int) -> None:
        """Replace all rows of the table's branch, in one snapshot."""
        self._writer(table, rows, base).overwrite(sf.lit(True))
        self.note(table, base)

    def _writer(self, table: Table, rows: DataFrame, base: int) -> DataFrameWriterV2:
        create_branch(self.catalog, table, self.run_id, base)
        options = {"fanout-enabled": "true", "compression-level": str(COMPRESSION_LEVEL)}
        options |= {f"snapshot-property.{name}": value for name, value in self.properties.items()}
        return rows.writeTo(self.name(table, on_branch=True)).options(**options)

    def undo(self, table: Table) -> None:
        """Drop the table's branch, and with it what this attempt wrote."""
        drop_branch(self.catalog, table, branch_of(self.run_id))
        del self.snapshots[table.name], self.written[table.name]

    def append_to_ledger(self, segments: pa.Table, result: Ingested, base: int) -> None:
        """Append to `ingested_segments`, last: its snapshot pins the others, and publication moves its main first."""
        properties = self.properties | pins_of(self.snapshots) | {RESULT: result.to_json()}
        append_rows(self.catalog, SEGMENTS, segments, properties, branch=branch_of(self.run_id))
        self.note(SEGMENTS, base)

    @property
    def properties(self) -> dict[str, str]:
        """The snapshot properties that identify the run and the attempt."""
        return {RUN_ID: self.run_id, ATTEMPT: self.attempt}

    def note(self, table: Table, base: int) -> None:
        """Record the snapshot just written to the table's branch.

        Raises:
            Retryable: it is not this attempt's, or not on top of `base`: another process is working on the run.
        """
        head = head_of(self.catalog, table, self.run_id)
        properties = properties_of(head) if head else {}
        if head is None or properties.get(ATTEMPT) != self.attempt or head.parent_snapshot_id != base:
            self._discard()
            raise Retryable(f"another process is working on run {self.run_id}; wait for it, or start a new run")
        self.snapshots[table.name] = head.snapshot_id
        self.written[table.name] = int(properties.get("added-records", 0))

    def _discard(self) -> None:
        """Remove what this attempt wrote: the job that closed the run may be an erasure, which has looked at all files already.

        A commit to a branch that was dropped creates it again, and no snapshot of main leads to these files.
        """
        for table in run_tables_of(self.catalog):
            head = head_of(self.catalog, table, self.run_id)
            if head is None or properties_of(head).get(ATTEMPT) != self.attempt:
                continue
            loaded = self.catalog.load_table(table.identifier)
            made = [manifest for manifest in head.manifests(loaded.io) if manifest.added_snapshot_id == head.snapshot_id]
            files = [
                *(file.file_path for file in added_files(loaded, head)),
                *(m.manifest_path for m in made),
                head.manifest_list,
            ]
            drop_branch(self.catalog, table, branch_of(self.run_id))
            retry_conflicts(self._expire)(table, head.snapshot_id)
            for file in files:
                loaded.io.delete(file)

    def _expire(self, table: Table, snapshot_id: int) -> None:
        loaded = self.catalog.load_table(table.identifier)
        if loaded.snapshot_by_id(snapshot_id) is not None:
            loaded.maintenance.expire_snapshots().by_ids([snapshot_id]).commit()


def write_ledger(attempt: Attempt, plan: Plan) -> Ingested:
    """Write the run's rows of `ingested_segments`, last of all, and return its counts."""
    read = {stream.value: plan.messages(stream) for stream in Stream if stream not in SELDOM or plan.of(stream)}
    written = attempt.written | {SEGMENTS.name: len(plan.segments)}
    skipped = sum(map(len, plan.skips.values()))
    result = Ingested(attempt.run_id, len(plan.segments), read, skipped, written, written.get(QUARANTINE.name, 0))
    refused = _refused_files(attempt)
    rows = [segment_row(attempt, plan.probes[segment.path], segment, refused.get(segment.path)) for segment in plan.segments]
    attempt.append_to_ledger(pa.Table.from_pylist(rows, schema=SEGMENTS.arrow_schema), result, plan.base[SEGMENTS.name])
    log.info("run written, not yet published", **asdict(result))
    return result


def _refused_files(attempt: Attempt) -> dict[str, str]:
    """By path, why this run refused files that are not valid segments. Only their quarantine rows have a negative seq."""
    if QUARANTINE.name not in attempt.snapshots:
        return {}
    table, snapshot_id = attempt.catalog.load_table(QUARANTINE.identifier), attempt.snapshots[QUARANTINE.name]
    rows = table.scan(where(LessThan, "seq", 0), ("topic", "reason"), snapshot_id=snapshot_id).to_arrow()
    return dict(zip(rows["topic"].to_pylist(), rows["reason"].to_pylist(), strict=True))


def segment_row(attempt: Attempt, probe: Probe, segment: Segment, refused_because: str | None) -> dict[str, object]:
    """A row of `ingested_segments`."""
    if refused_because is not None:
        probe = Probe()
    return {
        "path": segment.path,
        "stream": segment.stream.value,
        "messages": probe.messages,
        "first_seq": probe.first_seq,
        "last_seq": probe.last_seq,
        "run_id": attempt.run_id,
        "ingested_at": attempt.now,
        "refused_because": refused_because,
        "began_at": segment.began_at,
    }
