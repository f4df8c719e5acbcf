"""One attempt at a run: its tables on its branches, and its numbers."""

import json
import secrets
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import datetime

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession

from adapters.commits import append_rows
from contracts.errors import Retryable
from contracts.settings import Settings
from contracts.tables import SEGMENTS, Table
from pipelines.ingest.branches import (
    ATTEMPT,
    COUNTED,
    RESULT,
    RUN_ID,
    branch_of,
    create_branch,
    drop_branch,
    head_of,
    properties_of,
)
from pipelines.ingest.publish import pins_of


@dataclass(frozen=True, slots=True)
class Ingested:
    """A run's numbers."""

    run_id: str
    segments: int = 0
    read: dict[str, int] = field(default_factory=dict)  # messages, by stream
    skipped: int = 0  # messages that another segment had brought
    written: dict[str, int] = field(default_factory=dict)  # rows, by table
    refused: int = 0  # rows written to quarantine

    def to_json(self) -> str:
        """One line, for logs and for whoever started the job."""
        return json.dumps(asdict(self))

    def __add__(self, other: "Ingested") -> "Ingested":
        """The numbers of both, under the name of the later one."""
        read, written = Counter(self.read), Counter(self.written)
        read.update(other.read)
        written.update(other.written)
        counts = (self.segments + other.segments, dict(read), self.skipped + other.skipped)
        return Ingested(other.run_id, *counts, dict(written), self.refused + other.refused)

    @classmethod
    def from_json(cls, text: str) -> "Ingested":
        """What `to_json` said."""
        return cls(**json.loads(text))


class Run:
    """One attempt at a run: writes each table at most once, on the run's branch."""

    def __init__(self, spark: SparkSession, catalog: Catalog, settings: Settings, run_id: str, now: datetime) -> None:
        self.spark, self.catalog, self.settings = spark, catalog, settings
        self.run_id, self.now, self.attempt = run_id, now, secrets.token_hex(8)
        self.snapshots: dict[str, int] = {}
        self.written: dict[str, int] = {}
        self.counted: dict[str, dict[str, int]] = {}  # by table: what the audit need not ask of the rows again

    def name(self, table: Table, *, on_branch: bool = False) -> str:
        """The table as Spark's SQL names it."""
        branch = f".`branch_{branch_of(self.run_id)}`" if on_branch else ""
        return f"{self.settings.catalog_name}.{table.identifier}{branch}"

    def main(self, table: Table, base: int) -> DataFrame:
        """The table as it was when the run began."""
        return self.spark.read.option("versionAsOf", base).table(self.name(table))

    def append(self, table: Table, rows: DataFrame, base: int) -> None:
        """Append to the table's branch, in the order in which rows come."""
        create_branch(self.catalog, table, self.run_id, base)
        # Level 1 saves some CPU time, and packs VINs in arrival order better than the usual level 3; compaction writes again.
        options = {"fanout-enabled": "true", "compression-level": "1"}
        writer = rows.writeTo(self.name(table, on_branch=True)).options(**options)
        for name, value in self.properties.items():
            writer = writer.option(f"snapshot-property.{name}", value)
        writer.append()
        self.note(table, base)

    def undo(self, table: Table) -> None:
        """Take back what this attempt has written to the table's branch."""
        drop_branch(self.catalog, table, branch_of(self.run_id))
        del self.snapshots[table.name], self.written[table.name]
        self.counted.pop(table.name, None)

    def merge(self, table: Table, changes: DataFrame, how: str, base: int) -> None:
        """Run a MERGE of `changes` into the table's branch; `how` is what follows USING changes."""
        create_branch(self.catalog, table, self.run_id, base)
        changes.createOrReplaceTempView("changes")
        said = {f"spark.sql.iceberg.snapshot-property.{name}": value for name, value in self.properties.items()}
        for name, value in said.items():
            self.spark.conf.set(name, value)
        try:
            self.spark.sql(f"MERGE INTO {self.name(table, on_branch=True)} AS t USING changes AS c {how}")
        finally:
            for name in said:
                self.spark.conf.unset(name)
            self.spark.catalog.dropTempView("changes")
        self.note(table, base)

    def close(self, segments: pa.Table, result: Ingested, base: int) -> None:
        """Append to `ingested_segments`, last of all: this snapshot names the others, and publication moves main to it first."""
        said = self.properties | pins_of(self.snapshots) | {RESULT: result.to_json(), COUNTED: json.dumps(self.counted)}
        append_rows(self.catalog, SEGMENTS, segments, said, branch=branch_of(self.run_id))
        self.note(SEGMENTS, base)

    @property
    def properties(self) -> dict[str, str]:
        """What every snapshot of this attempt says about itself."""
        return {RUN_ID: self.run_id, ATTEMPT: self.attempt}

    def note(self, table: Table, base: int) -> None:
        """Remember the snapshot just written; it has to be this attempt's, right on top of main."""
        head = head_of(self.catalog, table, self.run_id)
        said = properties_of(head) if head else {}
        if head is None or said.get(ATTEMPT) != self.attempt or head.parent_snapshot_id != base:
            raise Retryable(f"another process works at run {self.run_id}; let it finish, or start again")
        self.snapshots[table.name] = head.snapshot_id
        self.written[table.name] = int(said.get("added-records", 0))
