"""Signal messages: what is parsed, what is refused and why, and the records of both."""

import json
from datetime import UTC, datetime

import pytest

from manifold.contracts.envelope import Stream, from_arrow, to_arrow
from manifold.contracts.signals.codes import Code, ErrorReport, Refusal
from manifold.contracts.signals.messages import (
    DeviceStatus,
    RawSignal,
    canonical_json,
    content_digest,
    idempotency_key,
    parse_raw,
    parse_status,
    processed_message,
)
from manifold.contracts.signals.records import raw_envelope, read_raw, read_status, refused_envelope, status_envelope

GOOD = {"deviceId": "device-123", "capturedAt": "2024-01-01T00:00:00.000Z", "payload": "YQ==", "schemaVersion": "v1"}
PLACE = {"latitude": 51.3, "longitude": 12.3, "altitude": 120.5}
ID = "550e8400-e29b-41d4-a716-446655440000"


def body(**changes: object) -> bytes:
    return json.dumps({name: value for name, value in (GOOD | changes).items() if value is not ...}).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"schemaVersion": "v2"},
        {"deviceId": "a"},
        {"deviceId": "_" * 100},
        {"correlationId": ID},
        {"correlationId": ID.upper()},
        {"metadata": {}},
        {"metadata": {"location": PLACE, "battery": 0, "signalStrength": -120, "vendor": {"any": 1}}},
        {"metadata": {"battery": 100, "signalStrength": 0}},
        {"capturedAt": "2024-01-01T01:00:00+01:00"},
        {"capturedAt": "2024-01-01T00:00:00.123456789Z"},
        {"capturedAt": "20240101T000000Z"},
        {"payload": "A" * 1_048_576},
    ],
)
def test_valid_messages_are_parsed(changes: dict[str, object]) -> None:
    assert isinstance(parse_raw(body(**changes)), RawSignal)


@pytest.mark.parametrize(
    ("changes", "code", "names"),
    [
        ({"deviceId": ...}, Code.SCHEMA_ERROR, "deviceId"),
        ({"deviceId": ""}, Code.SCHEMA_ERROR, "deviceId"),
        ({"deviceId": "a b"}, Code.SCHEMA_ERROR, "deviceId"),
        ({"deviceId": "a\n"}, Code.SCHEMA_ERROR, "deviceId"),
        ({"deviceId": "x" * 101}, Code.SCHEMA_ERROR, "deviceId"),
        ({"deviceId": 7}, Code.SCHEMA_ERROR, "deviceId"),
        ({"capturedAt": "yesterday"}, Code.SCHEMA_ERROR, "capturedAt"),
        ({"capturedAt": "2024-01-01T00:00:00"}, Code.SCHEMA_ERROR, "capturedAt"),
        ({"capturedAt": "2024-02-30T00:00:00Z"}, Code.SCHEMA_ERROR, "capturedAt"),
        ({"capturedAt": "0001-01-01T00:00:00+01:00"}, Code.SCHEMA_ERROR, "capturedAt"),
        ({"capturedAt": 1704067200000}, Code.SCHEMA_ERROR, "capturedAt"),
        ({"payload": ""}, Code.SCHEMA_ERROR, "payload"),
        ({"payload": "===="}, Code.SCHEMA_ERROR, "payload"),
        ({"payload": "YQ"}, Code.SCHEMA_ERROR, "payload"),
        ({"payload": "Y Q="}, Code.SCHEMA_ERROR, "payload"),
        ({"payload": "A" * 1_048_580}, Code.SCHEMA_ERROR, "payload"),
        ({"schemaVersion": ...}, Code.SCHEMA_ERROR, "schemaVersion"),
        ({"schemaVersion": 1}, Code.SCHEMA_ERROR, "schemaVersion"),
        ({"schemaVersion": "v3"}, Code.VERSION_ERROR, "schemaVersion"),
        ({"schemaVersion": "v3", "payload": ..., "new": 1}, Code.VERSION_ERROR, "schemaVersion"),
        ({"metadata": {"battery": 101}}, Code.SCHEMA_ERROR, "battery"),
        ({"metadata": {"battery": True}}, Code.SCHEMA_ERROR, "battery"),
        ({"metadata": {"signalStrength": 1}}, Code.SCHEMA_ERROR, "signalStrength"),
        ({"metadata": {"location": {"latitude": 91, "longitude": 0}}}, Code.SCHEMA_ERROR, "latitude"),
        ({"metadata": {"location": {"latitude": 1}}}, Code.SCHEMA_ERROR, "longitude"),
        ({"correlationId": "x"}, Code.SCHEMA_ERROR, "correlationId"),
        ({"correlationId": "550e8400-e29b-11d4-a716-446655440000"}, Code.SCHEMA_ERROR, "correlationId"),
        ({"other": 1}, Code.SCHEMA_ERROR, "other"),
    ],
)
def test_an_invalid_message_is_refused_with_code_and_field(changes: dict[str, object], code: Code, names: str) -> None:
    refused = parse_raw(body(**changes))
    assert isinstance(refused, Refusal)
    assert refused.code is code
    assert names in refused.reason


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b'{"a": NaN}', b"[" * 5000, body()[:-1], body() + b"x"])
def test_anything_but_json_is_malformed(raw: bytes) -> None:
    refused = parse_raw(raw)
    assert isinstance(refused, Refusal)
    assert refused.code is Code.MALFORMED_JSON


@pytest.mark.parametrize("raw", [b"null", b"7", b"[]", b'"text"'])
def test_json_other_than_an_object_violates_the_schema(raw: bytes) -> None:
    refused = parse_raw(raw)
    assert isinstance(refused, Refusal)
    assert refused.code is Code.SCHEMA_ERROR


def test_no_refusal_repeats_the_payload() -> None:
    for changes in ({"payload": "SECRETSECRET="}, {"payload": ["SECRETSECRET"]}, {"payload": {"SECRETSECRET": 1}}):
        refused = parse_raw(body(**changes))
        assert isinstance(refused, Refusal)
        assert "SECRET" not in refused.reason


def test_a_device_status_is_parsed_or_refused() -> None:
    good = {"deviceId": "d", "status": "low_battery", "lastSeen": "2024-01-01T00:00:00Z", "health": {"uptime": 3, "x": 1}}
    said = parse_status(json.dumps(good).encode())
    assert isinstance(said, DeviceStatus)
    for change in ({"status": "dead"}, {"lastSeen": "x"}, {"health": {"uptime": -1}}, {"more": 1}, {"correlationId": "x"}):
        refused = parse_status(json.dumps(good | change).encode())
        assert isinstance(refused, Refusal)
        assert refused.code is Code.SCHEMA_ERROR


def test_the_idempotency_key_covers_the_text_as_sent() -> None:
    one, same, other = parse_raw(body()), parse_raw(body(metadata={"battery": 3})), parse_raw(body(payload="Yg=="))
    assert isinstance(one, RawSignal)
    assert isinstance(same, RawSignal)
    assert isinstance(other, RawSignal)
    assert idempotency_key(one) == idempotency_key(same) != idempotency_key(other)
    text = b'{"capturedAt":"2024-01-01T00:00:00.000Z","deviceId":"device-123","payload":"YQ=="}'
    assert canonical_json({"deviceId": "device-123", "payload": "YQ==", "capturedAt": GOOD["capturedAt"]}) == text


def test_records_keep_every_field_but_the_payload_in_plaintext() -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    signal = parse_raw(body(metadata={"location": PLACE, "battery": 3, "signalStrength": -7}, correlationId=ID))
    assert isinstance(signal, RawSignal)
    raw = raw_envelope(5, at, signal, b"sealed", payload=b"a", key="k")
    record = read_raw(raw.payload)
    assert (record.device_id, record.captured_us, record.content_digest) == ("device-123", 1704067200000000, content_digest(b"a"))
    assert (record.latitude, record.longitude, record.altitude, record.battery, record.signal_strength) == (
        51.3,
        12.3,
        120.5,
        3,
        -7,
    )
    assert (record.idempotency_key, record.correlation_id, record.sealed) == ("k", ID, b"sealed")
    status = parse_status(b'{"deviceId":"d","status":"online","lastSeen":"2024-01-01T00:00:00Z","health":{"battery":7}}')
    assert isinstance(status, DeviceStatus)
    said = status_envelope(6, at, status)
    assert read_status(said.payload).battery == 7
    bad = refused_envelope(7, at, Stream.XRAY_RAW, Refusal(Code.STALE_ERROR, "too old"), b"sealed", devices=["d"])
    assert (bad.topic, bad.refused_because) == ("xray.raw.v1/d", "STALE_ERROR: too old")
    assert from_arrow(to_arrow([raw, said, bad])) == [raw, said, bad]


def test_error_and_processed_message_match_the_contract() -> None:
    at = datetime(2024, 1, 1, tzinfo=UTC)
    report = ErrorReport.of(Refusal(Code.SIZE_ERROR, "too large", "send less"), at=at, correlation_id=ID, retry_count=2)
    assert json.loads(report.to_json()) == {
        "code": "SIZE_ERROR",
        "message": "too large",
        "details": "send less",
        "timestamp": "2024-01-01T00:00:00.000Z",
        "correlationId": ID,
        "retryCount": 2,
    }
    signal = parse_raw(body())
    assert isinstance(signal, RawSignal)
    assert json.loads(processed_message(signal, {"readings": [], "anomalies": []}, at=at)) == {
        "deviceId": "device-123",
        "processedAt": "2024-01-01T00:00:00.000Z",
        "originalPayload": "YQ==",
        "processedData": {"readings": [], "anomalies": []},
        "schemaVersion": "v1",
    }
