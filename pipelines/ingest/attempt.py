"""One attempt at a run: writes tables to the run's branches, and the ledger `ingested_segments` last."""

import secrets
from collections.abc import Mapping
from typing import Self

import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameWriterV2
from pyspark.sql import functions as sf

from manifold.contracts.errors import Retryable
from manifold.contracts.tables import SEGMENTS, Table
from manifold.lake.catalog import run_tables_of
from manifold.lake.commits import append_rows, retry_conflicts
from pipelines.ingest.branches import (
    ATTEMPT,
    RESULT,
    RUN_ID,
    branch_of,
    create_branch,
    drop_branch,
    head_of,
    pins_of,
    properties_of,
)
from pipelines.ingest.publish import main_snapshots
from pipelines.ingest.rebase import added_files
from pipelines.ingest.run import Ingested, Run

# Level 1 takes less CPU than the default 3 and packs VINs in arrival order better. Compaction compresses the rows again.
COMPRESSION_LEVEL = 1


class Attempt:
    """One attempt at a run: writes at most one snapshot of each table, to the run's branch of the table.

    `base` has the snapshots of main on which the run is based, by table name. Each branch begins at the table's base snapshot.
    """

    def __init__(self, run: Run, base: Mapping[str, int]) -> None:
        self.spark = run.spark
        self.catalog = run.catalog
        self.settings = run.settings
        self.run_id = run.run_id
        self.now = run.now
        self.base = base
        self.attempt_id = secrets.token_hex(8)
        self.snapshots: dict[str, int] = {}  # table name → id of the snapshot that this attempt wrote
        self.written: dict[str, int] = {}  # table name → number of rows that this attempt added

    @classmethod
    def on_main(cls, run: Run) -> Self:
        """Make an attempt that is based on main as it is now. The caller must still open the run."""
        return cls(run, main_snapshots(run.catalog, run.catalog.load_table(SEGMENTS.identifier)))

    def name(self, table: Table, *, on_branch: bool = False) -> str:
        """The name of the table in Spark SQL; with `on_branch`, the name of the run's branch of the table."""
        branch = f".`branch_{branch_of(self.run_id)}`" if on_branch else ""
        return f"{self.settings.catalog_name}.{table.identifier}{branch}"

    def main(self, table: Table) -> DataFrame:
        """The table on main at the base snapshot."""
        return self.spark.read.option("versionAsOf", self.base[table.name]).table(self.name(table))

    def append(self, table: Table, rows: DataFrame) -> None:
        """Append a DataFrame to the table's branch, in arrival order."""
        self._writer(table, rows).append()
        self.record_snapshot(table)

    def overwrite(self, table: Table, rows: DataFrame) -> None:
        """Replace all rows of the table's branch, in one snapshot."""
        self._writer(table, rows).overwrite(sf.lit(True))
        self.record_snapshot(table)

    def _writer(self, table: Table, rows: DataFrame) -> DataFrameWriterV2:
        """Create the table's branch, and return a writer of `rows` to it."""
        self.create_branch(table)
        # A fanout writer keeps a file open for each partition, so the rows need not be sorted by partition.
        options = {"fanout-enabled": "true", "compression-level": str(COMPRESSION_LEVEL)}
        options |= {f"snapshot-property.{name}": value for name, value in self.properties.items()}
        return rows.writeTo(self.name(table, on_branch=True)).options(**options)

    def create_branch(self, table: Table) -> None:
        """Create the table's branch at the base snapshot."""
        create_branch(self.catalog, table, self.run_id, self.base[table.name])

    def undo(self, table: Table) -> None:
        """Drop the table's branch, and with it the rows that this attempt wrote. Then the table can be written again."""
        drop_branch(self.catalog, table, branch_of(self.run_id))
        del self.snapshots[table.name], self.written[table.name]

    def append_to_ledger(self, segments: pa.Table, result: Ingested) -> None:
        """Append rows to `ingested_segments`. Call this last.

        The new snapshot pins the snapshots of all other tables, so these must exist by then. Moving main to it commits the run.
        """
        properties = self.properties | pins_of(self.snapshots) | {RESULT: result.to_json()}
        append_rows(self.catalog, SEGMENTS, segments, properties, branch=branch_of(self.run_id))
        self.record_snapshot(SEGMENTS)

    @property
    def properties(self) -> dict[str, str]:
        """The snapshot properties that identify the run and the attempt."""
        return {RUN_ID: self.run_id, ATTEMPT: self.attempt_id}

    def record_snapshot(self, table: Table) -> None:
        """Record the snapshot that this attempt has just written to the table's branch, in `snapshots` and `written`.

        Raises:
            Retryable: this attempt did not write the branch's head, or the head is not on top of the base snapshot. So another
                process is working on the same run.
        """
        head = head_of(self.catalog, table, self.run_id)
        properties = properties_of(head) if head else {}
        if head is None or properties.get(ATTEMPT) != self.attempt_id or head.parent_snapshot_id != self.base[table.name]:
            self._discard()
            raise Retryable(f"another process is working on run {self.run_id}; wait for it, or start a new run")
        self.snapshots[table.name] = head.snapshot_id
        self.written[table.name] = int(properties.get("added-records", 0))

    def _discard(self) -> None:
        """Drop the branches that this attempt wrote, and delete the files of their snapshots at once.

        Another job has closed the run and dropped its branches, and this attempt's last commit has created one of them again. If
        the other job is an erasure, it has already searched all files of the lake, so it would miss those of the last commit.
        """
        for table in run_tables_of(self.catalog):
            head = head_of(self.catalog, table, self.run_id)
            if head is None or properties_of(head).get(ATTEMPT) != self.attempt_id:
                continue  # there is no branch, or the other process has written it
            loaded = self.catalog.load_table(table.identifier)
            data_files = [file.file_path for file in added_files(loaded, head)]
            own_manifests = [manifest for manifest in head.manifests(loaded.io) if manifest.added_snapshot_id == head.snapshot_id]
            manifests = [manifest.manifest_path for manifest in own_manifests]
            drop_branch(self.catalog, table, branch_of(self.run_id))
            self._expire(table, head.snapshot_id)
            for path in (*data_files, *manifests, head.manifest_list):
                loaded.io.delete(path)

    @retry_conflicts
    def _expire(self, table: Table, snapshot_id: int) -> None:
        """Remove the snapshot from the table's metadata, if it is still there."""
        loaded = self.catalog.load_table(table.identifier)
        if loaded.snapshot_by_id(snapshot_id) is not None:
            loaded.maintenance.expire_snapshots().by_ids([snapshot_id]).commit()
