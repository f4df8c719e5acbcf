"""The lake's tables, defined once: Spark, PyIceberg and Arrow schemas are made from these definitions."""

from dataclasses import dataclass, field

import pyarrow as pa

NAMESPACE = "sdv"
INSTANT = pa.timestamp("us", tz="UTC")

_SPARK_TYPES: dict[pa.DataType, str] = {
    pa.string(): "string",
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    INSTANT: "timestamp",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its Arrow type, whether every row has it, and what it says."""

    name: str
    type: pa.DataType
    meaning: str
    required: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """One Iceberg table: its grain is `key`; `day_of` is the timestamp column whose day partitions it.

    `version` counts the steps in `pipelines.migrations` that lead to this definition; with a table older than `oldest` this code
    cannot work.
    """

    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    meaning: str
    day_of: str | None = None
    append_only: bool = True
    properties: dict[str, str] = field(default_factory=dict)
    version: int = 2
    oldest: int = 1

    @property
    def identifier(self) -> str:
        """`namespace.table`, as PyIceberg names it; Spark puts the catalog's name in front."""
        return f"{NAMESPACE}.{self.name}"

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema; PyIceberg makes the Iceberg schema from it."""
        return pa.schema(
            [pa.field(c.name, c.type, nullable=not c.required, metadata={"doc": c.meaning}) for c in self.columns],
        )

    @property
    def spark_schema(self) -> str:
        """The columns as Spark's DDL, for `StructType.fromDDL` and `createDataFrame`."""
        return ", ".join(f"{c.name} {_SPARK_TYPES[c.type]}{' not null' if c.required else ''}" for c in self.columns)


SCHEMA_VERSION = "manifold.schema-version"  # table property; a table without it is of version 1
MIGRATING = "manifold.migrating."  # table property, + step: when it began, for as long as it is not done

# Many writers at once retry for a minute rather than fail: with the defaults 3 to 7 of 200 concurrent commits failed.
COMMON_PROPERTIES = {
    "format-version": "2",  # PyIceberg cannot write version 3
    "commit.retry.num-retries": "30",
    "commit.retry.max-wait-ms": "2000",
    "write.parquet.compression-codec": "zstd",
    "write.distribution-mode": "none",  # arrival order; compaction clusters by VIN later
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}

# Readers skip what lies in other row groups: a look-up reads about a group, and not a file. Groups are cut where this many rows
# exceed the size, so that payloads of the largest size make small groups too.
SMALL_ROW_GROUPS = {
    "write.parquet.row-group-size-bytes": str(1 << 20),
    "write.parquet.row-group-check-min-record-count": "4",
}
# A table to which PyIceberg appends with every run would get a manifest each time, and whoever looks for a row reads them all.
FEW_MANIFESTS = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "30"}
# Of a table of payloads' names: every row says where its payload lies. A table of an earlier release lacks this property.
PAYLOAD_INDEX = "manifold.payload-index"

DATA = Table(
    "sdv_fanout_data",
    key=("data_id",),
    columns=(
        Column("data_id", pa.string(), "the name by which triggers refer to the payload"),
        Column("payload", pa.binary(), "the bytes that vehicles get"),
        Column("sha1", pa.string(), "SHA-1 of the payload, lower-case hex"),
        Column("size_bytes", pa.int64(), "length of the payload"),
        Column("seq", pa.int64(), "seq of the message that brought it first"),
        Column("first_seen_at", INSTANT, "when that message was received"),
    ),
    meaning="one row for each payload; written once",
    day_of="first_seen_at",
    properties=SMALL_ROW_GROUPS,
    version=3,
)

META = Table(
    "sdv_fanout_meta",
    key=("data_id",),
    columns=(
        Column("data_id", pa.string(), "as in sdv_fanout_data"),
        Column("first_seen_at", INSTANT, "when the data was first published"),
        Column("last_seen_at", INSTANT, "when the data was last published; only grows"),
        Column("times_seen", pa.int64(), "how often the data was published"),
        Column("sha1", pa.string(), "SHA-1 of the payload, as in sdv_fanout_data", required=False),
        Column("stored_at", INSTANT, "first_seen_at of the payload's row in sdv_fanout_data: where to find it", required=False),
    ),
    meaning="one row for each payload, and where it lies; the one table that is merged",
    append_only=False,
    properties=SMALL_ROW_GROUPS | {PAYLOAD_INDEX: "true"},
    version=5,
)

IDS = Table(
    "sdv_fanout_ids",
    key=("vin", "ts", "request_id", "seq"),
    columns=(
        Column("vin", pa.string(), "the vehicle"),
        Column("ts", INSTANT, "when the trigger was accepted: the time in its seq"),
        Column("request_id", pa.string(), "the trigger's request_id"),
        Column("seq", pa.int64(), "the trigger's seq"),
        Column("data_id", pa.string(), "what the vehicle is to get"),
        Column("applied", pa.bool_(), "the express hand-off brought it into the queues"),
    ),
    meaning="one row for each VIN of each accepted trigger",
    day_of="ts",
)

OUTCOMES = Table(
    "sdv_fanout_outcomes",
    key=("vin", "seq"),
    columns=(
        Column("vin", pa.string(), "the vehicle"),
        Column("seq", pa.int64(), "the trigger's seq"),
        Column("outcome", pa.string(), "how the entry ended: delivered, superseded, expired, cancelled or failed"),
        Column("accepted_at", INSTANT, "when the trigger was accepted: the time in its seq, as `ts` in sdv_fanout_ids"),
        Column("dispatched_at", INSTANT, "when it was last published to the vehicle", required=False),
        Column("acknowledged_at", INSTANT, "when the vehicle's acknowledgement was seen", required=False),
        Column("ended_at", INSTANT, "when the entry ended"),
        Column("attempts", pa.int32(), "how often it was published", required=False),
        Column("reason", pa.string(), "what the vehicle said, or why the platform ended it", required=False),
    ),
    meaning="one row for each entry that ended",
    day_of="accepted_at",
)

QUARANTINE = Table(
    "quarantine",
    key=("seq",),
    columns=(
        Column("seq", pa.int64(), "the refused message's own seq"),
        Column("received_at", INSTANT, "when it came"),
        Column("stream", pa.string(), "the stream in whose archive it lies"),
        Column("topic", pa.string(), "where it was published"),
        Column("reason", pa.string(), "why it was refused"),
        Column("payload", pa.binary(), "its bytes, as they came"),
    ),
    meaning="one row for each refused message",
    day_of="received_at",
)

SEGMENTS = Table(
    "ingested_segments",
    key=("path",),
    columns=(
        Column("path", pa.string(), "the segment, below the archive's root"),
        Column("stream", pa.string(), "its stream"),
        Column("messages", pa.int64(), "how many messages it held"),
        Column("first_seq", pa.int64(), "its smallest seq", required=False),
        Column("last_seq", pa.int64(), "its greatest seq", required=False),
        Column("run_id", pa.string(), "the run that took it in"),
        Column("ingested_at", INSTANT, "when that run began"),
        Column("refused_because", pa.string(), "why the file is no segment: it is in quarantine; null: it is in", required=False),
        Column("began_at", INSTANT, "when it began, as its path says; by this it is found; null: it does not", required=False),
    ),
    meaning="one row for each archive segment that is in the lake and was not pruned; makes ingestion exactly-once",
    day_of="began_at",
    properties=FEW_MANIFESTS,
    version=6,
)

QUALITY = Table(
    "quality_results",
    key=("run_id", "suite", "rule", "at"),
    columns=(
        Column("run_id", pa.string(), "the run that was judged"),
        Column("suite", pa.string(), "the table whose rules these are"),
        Column("rule", pa.string(), "the rule's name"),
        Column("severity", pa.string(), "error: a broken rule holds the run back; warning: it does not"),
        Column("outcome", pa.string(), "passed or broken"),
        Column("judged", pa.int64(), "how many rows of the table the run adds"),
        Column("unexpected", pa.int64(), "how many of them break the rule, at least"),
        Column(
            "sample", pa.string(), "a few of these rows, as a JSON array of their keys and what the rule is about", required=False
        ),
        Column("at", INSTANT, "when the run was judged; judged again, it has later rows too"),
    ),
    meaning="one row for each rule each time that a run is judged",
    day_of="at",
)

ACTIONS = Table(
    "quarantine_actions",
    key=("seq", "at"),
    columns=(
        Column("seq", pa.int64(), "the refused message"),
        Column("action", pa.string(), "replayed or dropped"),
        Column("at", INSTANT, "when"),
        Column("note", pa.string(), "why, as the operator said", required=False),
        Column("segment", pa.string(), "of a replay: the segment that brings the message again", required=False),
    ),
    meaning="one row for each time that an operator settled a refused message",
    day_of="at",
)

ERASURES = Table(
    "erasures",
    key=("erasure_id", "at"),
    columns=(
        Column("erasure_id", pa.string(), "one for each time that the command ran; it says nothing about the vehicle"),
        Column("at", INSTANT, "when"),
        Column("state", pa.string(), "begun; erased: nothing was found afterwards; left: something was"),
        Column("why", pa.string(), "why, as the operator said; it does not name the vehicle"),
        Column("accepted_before", INSTANT, "what was accepted before this instant went"),
        Column("counts", pa.string(), "how many rows, entries, messages and segments, as a JSON object"),
    ),
    meaning="when a vehicle was erased and why, and not which",
    day_of="at",
    version=1,
)

# What a run writes on branches of its own, and publishes together. The other tables are appended to at once.
RUN_TABLES = (DATA, META, IDS, OUTCOMES, QUARANTINE, SEGMENTS)
TABLES = (*RUN_TABLES, QUALITY, ACTIONS, ERASURES)
