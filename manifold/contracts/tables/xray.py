"""Tables of X-ray signals. Created on the first segment of signals: a lake without signals has none of them."""

import pyarrow as pa

from manifold.contracts.tables.table import SMALL_ROW_GROUPS, Table, columns

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

_SIGNAL = columns("""
    device_id       string   the device
    captured_at     instant  when the device took it, as it says
    content_digest  string   SHA-256 of the payload, lower-case hex
    seq             int64    the message's seq
    received_at     instant  when it was accepted: the time in its seq
    schema_version  string   v1 or v2
    correlation_id  string?  by which it is followed through services
""")
KEY = ("device_id", "captured_at", "content_digest")

XRAY_RAW = Table(
    "xray_raw_signals",
    key=KEY,
    columns=_SIGNAL
    + columns("""
        idempotency_key  string   of the message, or of its header
        latitude         double?  degrees; where the device was
        longitude        double?  degrees
        altitude         double?  metres
        battery          double?  percent
        signal_strength  double?  dBm
        key_id           string   the day's key under which payload is sealed
        payload          binary   the payload, sealed
    """),
    meaning="one row for each signal",
    day_of="received_at",
    properties=SMALL_ROW_GROUPS,
)

XRAY_PROCESSED = Table(
    "xray_processed_signals",
    key=KEY,
    columns=_SIGNAL
    + columns(
        """
        readings       readings?   what the payload says; of a track, what it comes to
        anomalies      anomalies?  what of it is not as it should be
        anomaly_types  string?     the types in anomalies, each once, in order, with commas
        rules          int32       the version of the rules of processing that made the row
        problem        string?     why the payload could not be read; null: it was
        """,
        readings=pa.list_(READING),
        anomalies=pa.list_(ANOMALY),
    ),
    meaning="one row for each signal, made of its payload by the rules of processing",
    day_of="received_at",
)

XRAY_STATUS = Table(
    "xray_device_status",
    key=("device_id", "seq"),
    columns=columns("""
        device_id        string   the device
        seq              int64    the message's seq
        received_at      instant  when it was accepted: the time in its seq
        seen_at          instant  when the device was last seen, as it says
        status           string   online, offline, error, maintenance or low_battery
        correlation_id   string?  by which it is followed through services
        battery          double?  percent
        signal_strength  double?  dBm
        temperature      double?  degrees, as the device measures
        uptime           double?  seconds
        content_digest   string?  SHA-256 of what it says
    """),
    meaning="one row for each status of a device: what it says of itself, and when it was seen",
    day_of="received_at",
)
