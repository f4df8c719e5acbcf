"""Each rule about signals, broken by a row: found by both engines, with its severity."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from adapters.sealing import MAGIC
from contracts.seq import datetime_of
from contracts.signals.canonical import content_digest
from expectations import load_suites
from tests.expectations.rows import NOON, SEQ, Row, judged

pytestmark = pytest.mark.slow
A_HOUR = datetime_of(SEQ) - datetime_of(SEQ - (3_600_000 << 22))


def signal(seq: int = SEQ, **changed: Any) -> Row:
    at = datetime_of(seq)
    key = {"device_id": "device-1", "captured_at": at, "content_digest": content_digest(b"%d" % seq)}
    about = {"seq": seq, "received_at": at, "schema_version": "v1", "correlation_id": None}
    return {**key, **about, **changed}


def raw(seq: int = SEQ, **changed: Any) -> Row:
    measured = {"latitude": 51.3, "longitude": 12.3, "altitude": None, "battery": 7.0, "signal_strength": -7.0}
    sealed = {"idempotency_key": "k", "key_id": "2026-03-01.0", "payload": MAGIC + b"x"}
    return {**signal(seq), **measured, **sealed, **changed}


def processed(seq: int = SEQ, **changed: Any) -> Row:
    made = {"readings": [], "anomalies": [], "anomaly_types": "motion_high,temperature_low", "rules": 1, "problem": None}
    return {**signal(seq), **made, **changed}


def status(seq: int = SEQ, **changed: Any) -> Row:
    at = datetime_of(seq)
    said = {"device_id": "device-1", "seq": seq, "received_at": at, "seen_at": at, "status": "online", "correlation_id": None}
    return {**said, "battery": 7.0, "signal_strength": None, "temperature": None, "uptime": 5.0, **changed}


RAW = {
    "columns_are_present": raw(SEQ + 1, idempotency_key=None),
    "device_id_is_one": raw(SEQ + 2, device_id="a b"),
    "content_digest_is_sha_256": raw(SEQ + 3, content_digest="A" * 64),
    "schema_version_is_known": raw(SEQ + 4, schema_version="v3"),
    "payload_is_sealed": raw(SEQ + 5, payload=b'{"readings": []}'),
    "place_is_on_earth": raw(SEQ + 6, latitude=91.0),
    "measured_values_are_in_range": raw(SEQ + 7, battery=101.0),
    "captured_before_it_was_received": raw(SEQ + 8, captured_at=datetime_of(SEQ) + A_HOUR),
    "received_at_is_the_time_of_seq": raw(SEQ + 9, received_at=datetime_of(SEQ) - A_HOUR, captured_at=datetime_of(SEQ) - A_HOUR),
    "received_at_is_in_range": raw(SEQ + (7_200_000 << 22)),
}
PROCESSED = {
    "columns_are_present": processed(SEQ + 1, rules=None),
    "anomalies_are_known": processed(SEQ + 2, anomaly_types="motion_high,other"),
    "rules_are_a_version": processed(SEQ + 3, rules=0),
    "payload_was_read": processed(SEQ + 4, problem="the key is gone"),
    "received_at_is_the_time_of_seq": processed(SEQ + 5, received_at=datetime_of(SEQ) - A_HOUR),
    "seq_content_digest_is_known": processed(SEQ + 6, content_digest="0" * 64),
}
STATUS = {
    "columns_are_present": status(SEQ + 1, seen_at=None),
    "device_id_is_one": status(SEQ + 2, device_id=""),
    "status_is_known": status(SEQ + 3, status="asleep"),
    "measured_values_are_in_range": status(SEQ + 4, uptime=-1.0),
    "seen_before_it_was_received": status(SEQ + 5, seen_at=datetime_of(SEQ) + A_HOUR),
    "received_at_is_the_time_of_seq": status(SEQ + 6, received_at=datetime_of(SEQ) - A_HOUR, seen_at=datetime_of(SEQ) - A_HOUR),
}
WARN = {"captured_before_it_was_received", "received_at_is_in_range", "payload_was_read", "seen_before_it_was_received"}


def test_good_signals_pass_without_a_word(engine: SparkSession | None, tmp_path: Path) -> None:
    rows = {"xray_raw_signals": [raw()], "xray_processed_signals": [processed()], "xray_device_status": [status()]}
    result = judged(engine, rows, tmp_path)
    assert (result.failures, result.warnings) == ((), ())


def test_each_rule_is_found_broken_with_its_severity(engine: SparkSession | None, tmp_path: Path) -> None:
    twice = [raw(SEQ + 20), raw(SEQ + 20)]
    made = [processed(row["seq"]) for row in [raw(), *RAW.values()][:1]]
    known = [raw(row["seq"], content_digest=signal(row["seq"])["content_digest"]) for row in PROCESSED.values()]
    rows = {
        "xray_raw_signals": [raw(), *RAW.values(), *twice],
        "xray_device_status": [status(), *STATUS.values(), status(SEQ + 20), status(SEQ + 20)],
    }
    result = judged(engine, rows, tmp_path)
    found = {(f.table, f.rule): f.severity.value for f in (*result.failures, *result.warnings)}
    unique = {
        ("xray_raw_signals", "seq_is_unique"),
        ("xray_raw_signals", "device_id_captured_at_content_digest_is_unique"),
        ("xray_device_status", "seq_is_unique"),
    }
    broken = {("xray_raw_signals", rule) for rule in RAW} | {("xray_device_status", rule) for rule in STATUS} | unique
    assert found == {(table, rule): "warning" if rule in WARN else "error" for table, rule in broken}

    again = [processed(SEQ + 20), processed(SEQ + 20)]
    result = judged(
        engine,
        {"xray_raw_signals": [raw(), *known, raw(SEQ + 20)], "xray_processed_signals": [*made, *PROCESSED.values(), *again]},
        tmp_path,
    )
    found = {(f.table, f.rule): f.severity.value for f in (*result.failures, *result.warnings)}
    broken = {("xray_processed_signals", rule) for rule in PROCESSED}
    broken |= {("xray_processed_signals", f"{key}_is_unique") for key in ("seq", "device_id_captured_at_content_digest")}
    assert found == {(table, rule): "warning" if rule in WARN else "error" for table, rule in broken}


def test_no_rule_about_signals_is_left_out() -> None:
    suites = load_suites()
    for table, broken in (("xray_raw_signals", RAW), ("xray_processed_signals", PROCESSED), ("xray_device_status", STATUS)):
        others = {"seq_is_unique", "device_id_captured_at_content_digest_is_unique"}
        assert {rule.name for rule in suites[table].rules} - others == set(broken)


def test_the_clock_of_the_test_is_the_audits() -> None:
    assert datetime_of(SEQ) < NOON
