"""The tables of X-ray signals. They are made when the first segment of signals comes: a lake without signals has none of them."""

import pyarrow as pa

from contracts.tables.table import INSTANT, SMALL_ROW_GROUPS, Column, Table

READING = pa.struct(
    [
        pa.field("type", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("unit", pa.string()),
        pa.field("confidence", pa.float64()),
        pa.field("name", pa.string()),
    ]
)
ANOMALY = pa.struct([pa.field("type", pa.string()), pa.field("severity", pa.string()), pa.field("description", pa.string())])

_SIGNAL = (
    Column("device_id", pa.string(), "the device"),
    Column("captured_at", INSTANT, "when the device took it, as it says"),
    Column("content_digest", pa.string(), "SHA-256 of the payload, lower-case hex"),
    Column("seq", pa.int64(), "the message's seq"),
    Column("received_at", INSTANT, "when it was accepted: the time in its seq"),
    Column("schema_version", pa.string(), "v1 or v2"),
    Column("correlation_id", pa.string(), "by which it is followed through services", required=False),
)
KEY = ("device_id", "captured_at", "content_digest")

XRAY_RAW = Table(
    "xray_raw_signals",
    key=KEY,
    columns=(
        *_SIGNAL,
        Column("idempotency_key", pa.string(), "of the message, or of its header"),
        Column("latitude", pa.float64(), "degrees; where the device was", required=False),
        Column("longitude", pa.float64(), "degrees", required=False),
        Column("altitude", pa.float64(), "metres", required=False),
        Column("battery", pa.float64(), "percent", required=False),
        Column("signal_strength", pa.float64(), "dBm", required=False),
        Column("key_id", pa.string(), "the day's key under which payload is sealed"),
        Column("payload", pa.binary(), "the payload, sealed"),
    ),
    meaning="one row for each signal",
    day_of="received_at",
    properties=SMALL_ROW_GROUPS,
    version=1,
)

XRAY_PROCESSED = Table(
    "xray_processed_signals",
    key=KEY,
    columns=(
        *_SIGNAL,
        Column("readings", pa.list_(READING), "what the payload says; of a track, what it comes to", required=False),
        Column("anomalies", pa.list_(ANOMALY), "what of it is not as it should be", required=False),
        Column("anomaly_types", pa.string(), "the types in anomalies, each once, in order, with commas", required=False),
        Column("rules", pa.int32(), "the version of the rules of processing that made the row"),
        Column("problem", pa.string(), "why the payload could not be read; null: it was", required=False),
    ),
    meaning="one row for each signal, made of its payload by the rules of processing",
    day_of="received_at",
    version=1,
)

XRAY_STATUS = Table(
    "xray_device_status",
    key=("device_id", "seq"),
    columns=(
        Column("device_id", pa.string(), "the device"),
        Column("seq", pa.int64(), "the message's seq"),
        Column("received_at", INSTANT, "when it was accepted: the time in its seq"),
        Column("seen_at", INSTANT, "when the device was last seen, as it says"),
        Column("status", pa.string(), "online, offline, error, maintenance or low_battery"),
        Column("correlation_id", pa.string(), "by which it is followed through services", required=False),
        Column("battery", pa.float64(), "percent", required=False),
        Column("signal_strength", pa.float64(), "dBm", required=False),
        Column("temperature", pa.float64(), "degrees, as the device measures", required=False),
        Column("uptime", pa.float64(), "seconds", required=False),
        Column("content_digest", pa.string(), "SHA-256 of what it says; null in rows of an earlier release", required=False),
    ),
    meaning="one row for each status of a device: what it says of itself, and when it was seen",
    day_of="received_at",
    version=2,
)
