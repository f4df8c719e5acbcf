"""The tables about the lake itself: what was refused, ingested, judged, settled and erased."""

import pyarrow as pa

from contracts.tables.table import FEW_MANIFESTS, INSTANT, Column, Table

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
        Column("digest", pa.string(), "of a message that may be delivered twice: what is the same each time", required=False),
    ),
    meaning="one row for each refused message",
    day_of="received_at",
    version=3,
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
