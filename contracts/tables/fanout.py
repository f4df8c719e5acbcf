"""The tables of fanout queues: payloads, triggers' entries, and how they ended."""

import pyarrow as pa

from contracts.tables.table import INSTANT, PAYLOAD_INDEX, SMALL_ROW_GROUPS, Column, Table

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
        Column("applied", pa.bool_(), "direct enqueue brought it into the queues"),
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
