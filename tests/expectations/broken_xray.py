"""Rows that break each rule of the X-ray signal suites, and rows at the limit; the others are in `broken.py`."""

from collections.abc import Mapping
from datetime import timedelta
from math import nan
from typing import Any

from manifold.contracts.seq import EPOCH, datetime_of, first_seq_at
from manifold.lake.sealing import MAGIC
from tests.expectations.rows import NOON, SEQ, Row

MS, MINUTE = timedelta(milliseconds=1), timedelta(minutes=1)
NULLS = SEQ + 1000  # By table and rule: its severity, and the number of rows that break it.
LONG = "d" * 100  # the first seq of rows with a missing column
_UNKNOWN: Mapping[str, None] = dict.fromkeys(("latitude", "longitude", "altitude", "battery", "signal_strength"))


def digest(seq: int) -> str:
    return f"{abs(seq):064x}"


def signal(seq: int, **changed: Any) -> Row:
    """The common fields of raw and processed signals."""
    at = datetime_of(seq)
    own = {"device_id": "d-1", "captured_at": at, "content_digest": digest(seq), "seq": seq, "received_at": at}
    return {**own, "schema_version": "v1", "correlation_id": None, **changed}


def raw(seq: int, **changed: Any) -> Row:
    sealed = {"idempotency_key": "k", "key_id": "2026-03-01", "payload": MAGIC + b"sealed"}
    return {**signal(seq), **_UNKNOWN, **sealed, **changed}


def processed(seq: int, **changed: Any) -> Row:
    made = {"readings": None, "anomalies": None, "anomaly_types": None, "rules": 1, "problem": None}
    return {**signal(seq), **made, **changed}


def device(seq: int, **changed: Any) -> Row:
    at = datetime_of(seq)
    own = {"device_id": "d-1", "seq": seq, "received_at": at, "seen_at": at, "status": "online", "correlation_id": None}
    own["content_digest"] = None  # the longest valid device id
    return {**own, "battery": None, "signal_strength": None, "temperature": None, "uptime": None, **changed}


def each(*changes: Mapping[str, Any], first: int) -> list[tuple[int, Mapping[str, Any]]]:
    """Give each change its own seq."""
    return [(first + n, change) for n, change in enumerate(changes)]


IN_RANGE: tuple[Mapping[str, Any], ...] = (
    {"battery": 0.0, "signal_strength": -120.0},
    {"battery": 100.0, "signal_strength": 0.0},
)
OUT_OF_RANGE: tuple[Mapping[str, Any], ...] = (
    {"battery": -0.1},
    {"battery": nan},
    {"signal_strength": 0.1},
    {"signal_strength": -120.1},
)
NO_DEVICES: tuple[Mapping[str, Any], ...] = tuple({"device_id": name} for name in ("", f"{LONG}d", "d 1", "d.1", "é", "d-1\n"))
LATE, EARLY = first_seq_at(NOON + MINUTE + MS), first_seq_at(EPOCH) - 1


def raw_signals() -> list[Row]:
    """Rows that break one rule each, or keep all where it says so."""
    rows = [
        raw(SEQ, device_id=LONG, latitude=90.0, longitude=-180.0),  # rows recorded by an earlier version
        raw(SEQ + 1, schema_version="v2", latitude=-90.0, longitude=180.0),  # kept
        raw(SEQ + 2),
        raw(SEQ + 2, device_id="d-2"),
        raw(SEQ + 3),
        raw(SEQ + 4, captured_at=datetime_of(SEQ + 3), content_digest=digest(SEQ + 3)),
        raw(SEQ + 5, received_at=datetime_of(SEQ + 5) + MS),
        raw(SEQ + 6, schema_version="v3"),
        raw(SEQ + 7, payload=b"\xf5MX0"),
        raw(SEQ + 8, payload=b""),
        raw(SEQ + 9, captured_at=datetime_of(SEQ) + MINUTE),  # just kept
        raw(SEQ + 10, captured_at=datetime_of(SEQ) + MINUTE + MS),
        raw(LATE),
        raw(EARLY),
    ]
    rows += [raw(seq, **change) for seq, change in each(*NO_DEVICES, first=SEQ + 20)]
    digests = ("A" * 64, "a" * 63, "a" * 65, f"{'a' * 64}\n", "")
    rows += [raw(seq, **change) for seq, change in each(*({"content_digest": one} for one in digests), first=SEQ + 30)]
    places = ({"latitude": 90.1}, {"latitude": -90.1}, {"longitude": 180.1}, {"longitude": nan})
    rows += [raw(seq, **change) for seq, change in each(*places, *OUT_OF_RANGE, *IN_RANGE, first=SEQ + 40)]
    return rows + [raw(SEQ + n) for n in range(60, 100)]  # kept: raw rows for the processed signals


def processed_signals() -> list[Row]:
    """Rows that break one rule each, or keep all where it says so."""
    known = ("", "humidity_low", "humidity_low,pressure_high")
    unknown = ("humidity", "humidity_low pressure_high", "pressure_high,odd", "humidity_low\n")
    types = [{"anomaly_types": one} for one in (*known, *unknown)]
    return [
        processed(SEQ + 60),  # kept
        processed(SEQ + 61),
        processed(SEQ + 61, device_id="d-2"),
        processed(SEQ + 62, captured_at=NOON, content_digest="same", problem=None),
        processed(SEQ + 63, captured_at=NOON, content_digest="same"),
        processed(SEQ + 64, received_at=datetime_of(SEQ + 64) - MS),
        processed(SEQ + 65, rules=0),
        processed(SEQ + 66, problem="no key"),
        processed(SEQ + 67, content_digest=digest(SEQ + 68)),
        *(processed(seq, **change) for seq, change in each(*types, first=SEQ + 70)),
    ]


def devices() -> list[Row]:
    """Rows that break one rule each, or keep all where it says so."""
    words = ({"status": "Online"}, {"uptime": -0.1}, {"uptime": 0.0})
    changes = each(*NO_DEVICES, *OUT_OF_RANGE, *IN_RANGE, *words, first=SEQ + 20)
    return [
        device(SEQ),
        device(SEQ, device_id="d-2"),
        device(SEQ + 1, received_at=datetime_of(SEQ + 1) + MS),
        device(SEQ + 2, seen_at=datetime_of(SEQ) + MINUTE),  # just kept
        device(SEQ + 3, seen_at=datetime_of(SEQ) + MINUTE + MS),
        device(SEQ + 4, device_id=LONG),  # kept
        *(device(seq, **change) for seq, change in changes),
    ]


# By table and rule: its severity, and the number of rows that break it.
FOUND = {
    ("xray_raw_signals", "columns_are_present"): ("error", 9),
    ("xray_raw_signals", "seq_is_unique"): ("error", 2),
    ("xray_raw_signals", "device_id_captured_at_content_digest_is_unique"): ("error", 2),
    ("xray_raw_signals", "received_at_is_the_time_of_seq"): ("error", 1),
    ("xray_raw_signals", "device_id_is_one"): ("error", 6),
    ("xray_raw_signals", "content_digest_is_sha_256"): ("error", 5),
    ("xray_raw_signals", "schema_version_is_known"): ("error", 1),
    ("xray_raw_signals", "payload_is_sealed"): ("error", 2),
    ("xray_raw_signals", "place_is_on_earth"): ("error", 4),
    ("xray_raw_signals", "measured_values_are_in_range"): ("error", 4),
    ("xray_raw_signals", "captured_before_it_was_received"): ("warning", 1),
    ("xray_raw_signals", "received_at_is_in_range"): ("warning", 2),
    ("xray_processed_signals", "columns_are_present"): ("error", 7),
    ("xray_processed_signals", "seq_is_unique"): ("error", 2),
    ("xray_processed_signals", "device_id_captured_at_content_digest_is_unique"): ("error", 2),
    ("xray_processed_signals", "seq_content_digest_is_known"): ("error", 3),
    ("xray_processed_signals", "received_at_is_the_time_of_seq"): ("error", 1),
    ("xray_processed_signals", "anomalies_are_known"): ("error", 4),
    ("xray_processed_signals", "rules_are_a_version"): ("error", 1),
    ("xray_processed_signals", "payload_was_read"): ("warning", 1),
    ("xray_device_status", "columns_are_present"): ("error", 5),
    ("xray_device_status", "seq_is_unique"): ("error", 2),
    ("xray_device_status", "received_at_is_the_time_of_seq"): ("error", 1),
    ("xray_device_status", "device_id_is_one"): ("error", 6),
    ("xray_device_status", "status_is_known"): ("error", 1),
    ("xray_device_status", "measured_values_are_in_range"): ("error", 5),
    ("xray_device_status", "seen_before_it_was_received"): ("warning", 1),
}
