"""Checks without a server, case by case."""

import gzip
import json
import zlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from manifold.contracts.signals import topology
from manifold.contracts.signals.codes import Code, Refusal
from manifold.contracts.signals.signing import body_digest, signature
from manifold.signals._checks import Checks, inflated
from manifold.signals._freshness import Backlog, check_freshness
from manifold.signals._received import Accepted, Received
from tests.manifold.signals.gateway import SECRET, body_of, signed

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
STAMP = "2026-01-01T12:00:00.000Z"
CHECKS = Checks((SECRET,))
OPEN = Checks(())
BODY = body_of()
VECTOR = b'{"deviceId":"device-123","capturedAt":"2024-01-01T00:00:00.000Z","payload":"YQ==","schemaVersion":"v1"}'


def received(body: bytes = BODY, headers: dict[str, Any] | None = None, **more: Any) -> Received:
    made = signed(body, timestamp=STAMP) if headers is None else headers
    about: dict[str, Any] = {"queue": topology.RAW, "body": body, "headers": made, "at": NOW}
    return Received(**(about | more))


def code_of(judged: Accepted | Refusal) -> str:
    return judged.code.value if isinstance(judged, Refusal) else "accepted"


def with_headers(**changed: Any) -> dict[str, Any]:
    """The headers of `BODY` with changes; None removes one."""
    made = signed(BODY, timestamp=STAMP) | {name.replace("_", "-"): value for name, value in changed.items()}
    return {name: value for name, value in made.items() if value is not None}


def test_the_contract_vector_passes() -> None:
    secret = "test-hmac-secret-key"
    made = signature(
        VECTOR, secret, device_id="device-123", nonce="000102030405060708090a0b0c0d0e0f", timestamp="2024-01-01T00:00:00.000Z"
    )
    assert body_digest(VECTOR, secret) == "5cea36493cc36161ec793b3e30f688a12b50bb314b6c041f73c1472d152726f2"
    assert made == "a15a9e591f792a688bcd03622b0922cfdbddc1193f3706f9f25ccf52c71ce46c"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(b"x" * (CHECKS.max_bytes + 1), Code.SIZE_ERROR, id="too large"),
        pytest.param(b"", Code.MALFORMED_JSON, id="empty"),
        pytest.param(b"\xff\xfe", Code.MALFORMED_JSON, id="not text"),
        pytest.param(BODY[:-1], Code.MALFORMED_JSON, id="truncated"),
        pytest.param(b"[" * 100_000, Code.MALFORMED_JSON, id="deep"),
        pytest.param(b"[]", Code.SCHEMA_ERROR, id="a list"),
        pytest.param(b"null", Code.SCHEMA_ERROR, id="null"),
        pytest.param(body_of(schemaVersion="v9"), Code.VERSION_ERROR, id="version"),
        pytest.param(body_of(schemaVersion=1), Code.SCHEMA_ERROR, id="version is not text"),
        pytest.param(body_of(device="a b"), Code.SCHEMA_ERROR, id="device"),
        pytest.param(body_of(capturedAt="2024-01-01T00:00:00"), Code.SCHEMA_ERROR, id="time without zone"),
        pytest.param(body_of(payload=b""), Code.SCHEMA_ERROR, id="no payload"),
        pytest.param(json.dumps(json.loads(BODY) | {"payload": "*"}).encode(), Code.SCHEMA_ERROR, id="not base64"),
        pytest.param(body_of(correlationId="1"), Code.SCHEMA_ERROR, id="correlation id"),
    ],
)
def test_a_bad_body_is_refused_before_its_signature_is_checked(body: bytes, code: Code) -> None:
    assert code_of(CHECKS.judge(received(body, {}), NOW)) == code


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        pytest.param(with_headers(), "accepted", id="valid"),
        pytest.param(with_headers(x_nonce=None), Code.SIGNATURE_ERROR, id="no nonce"),
        pytest.param(with_headers(x_nonce="A" * 32), Code.SIGNATURE_ERROR, id="upper-case nonce"),
        pytest.param(with_headers(x_nonce="0" * 31), Code.SIGNATURE_ERROR, id="short nonce"),
        pytest.param(with_headers(x_nonce="0" * 32), Code.SIGNATURE_ERROR, id="another nonce"),
        pytest.param(with_headers(x_hmac_signature=None), Code.SIGNATURE_ERROR, id="not signed"),
        pytest.param(with_headers(x_hmac_signature="0" * 64), Code.SIGNATURE_ERROR, id="forged"),
        pytest.param(with_headers(x_hmac_signature="é" * 64), Code.SIGNATURE_ERROR, id="not ASCII"),
        pytest.param(with_headers(x_hmac_signature=True), Code.SIGNATURE_ERROR, id="not text"),
        pytest.param(with_headers(x_timestamp_auth=None), Code.SIGNATURE_ERROR, id="no timestamp"),
        pytest.param(with_headers(x_timestamp_auth="2026-01-01T12:00:01.000Z"), Code.SIGNATURE_ERROR, id="another timestamp"),
        pytest.param(with_headers(x_algorithm=None), Code.SIGNATURE_ERROR, id="no algorithm"),
        pytest.param(with_headers(x_algorithm="none"), Code.SIGNATURE_ERROR, id="algorithm none"),
        pytest.param(signed(BODY, timestamp=STAMP, secret="another"), Code.SIGNATURE_ERROR, id="another secret"),
        pytest.param(signed(BODY, timestamp=STAMP, device="device-2"), Code.SIGNATURE_ERROR, id="signed by another device"),
        pytest.param(signed(BODY, timestamp="yesterday"), Code.STALE_ERROR, id="signed, but not a timestamp"),
        pytest.param(with_headers(x_device_id="device-2"), Code.SCHEMA_ERROR, id="header names another device"),
        pytest.param(with_headers(x_device_id="device-1"), "accepted", id="header names the device"),
        pytest.param(with_headers(x_schema_version="v2"), Code.SCHEMA_ERROR, id="header names another version"),
        pytest.param(with_headers(x_correlation_id="no uuid"), Code.SCHEMA_ERROR, id="correlation id"),
        pytest.param(with_headers(x_idempotency_key=""), Code.SCHEMA_ERROR, id="empty key"),
        pytest.param(with_headers(x_idempotency_key="k" * 201), Code.SCHEMA_ERROR, id="long key"),
        pytest.param(with_headers(content_type="text/plain"), Code.SCHEMA_ERROR, id="content type"),
        pytest.param(with_headers(content_type="application/json; charset=utf-8"), "accepted", id="content type with charset"),
    ],
)
def test_headers_are_checked(headers: dict[str, Any], code: str) -> None:
    assert code_of(CHECKS.judge(received(headers=headers), NOW)) == code


@pytest.mark.parametrize("changed", [b" ", b"\n"])
def test_the_signature_covers_the_bytes_as_received(changed: bytes) -> None:
    judged = CHECKS.judge(received(BODY + changed, signed(BODY, timestamp=STAMP)), NOW)

    assert code_of(judged) == Code.SIGNATURE_ERROR


def test_a_former_secret_is_accepted_as_long_as_it_is_configured() -> None:
    old = signed(BODY, timestamp=STAMP, secret="the-old-one")

    assert code_of(Checks((SECRET, "the-old-one")).judge(received(headers=old), NOW)) == "accepted"
    assert code_of(Checks((SECRET,)).judge(received(headers=old), NOW)) == Code.SIGNATURE_ERROR


def test_without_a_secret_no_signature_is_required() -> None:
    judged = OPEN.judge(received(headers={}), NOW)

    assert isinstance(judged, Accepted)
    assert judged.nonce is None


@pytest.mark.parametrize(
    ("age_s", "waited_s", "fresh"),
    [
        pytest.param(0, 0, True, id="current"),
        pytest.param(300, 0, True, id="at the age limit"),
        pytest.param(301, 0, False, id="over the age limit"),
        pytest.param(-300, 0, True, id="a fast clock"),
        pytest.param(-301, 0, False, id="a clock too far ahead"),
        pytest.param(-301, 9999, False, id="waiting does not excuse a fast clock"),
        pytest.param(900, 600, True, id="ten minutes of waiting are excused"),
        pytest.param(901, 600, False, id="older than its waiting explains"),
        pytest.param(3600, 99_999, True, id="at the nonce retention"),
        pytest.param(3601, 99_999, False, id="over the nonce retention"),
        pytest.param(301, -50, False, id="a clock set back"),
    ],
)
def test_timestamps_are_checked_for_freshness(age_s: float, waited_s: float, fresh: bool) -> None:
    stamp = (NOW - timedelta(seconds=age_s)).isoformat()
    refusal = check_freshness(stamp, NOW, tolerance_s=300, max_wait_s=waited_s, max_age_s=3600)

    assert (refusal is None) == fresh
    assert refusal is None or refusal.code is Code.STALE_ERROR


def test_time_waiting_in_the_service_does_not_make_a_message_stale() -> None:
    later = NOW + timedelta(seconds=900)  # the duration of Redis' outage

    assert code_of(CHECKS.judge(received(), later)) == "accepted"
    assert code_of(CHECKS.judge(received(at=later), later)) == Code.STALE_ERROR


def test_a_redelivery_may_be_as_old_as_the_nonce_retention() -> None:
    """The service had it before, and the queue may have been empty meanwhile. A sender cannot set that flag."""
    later = NOW + timedelta(seconds=3600)

    assert code_of(CHECKS.judge(received(at=later), later)) == Code.STALE_ERROR
    assert code_of(CHECKS.judge(received(at=later, redelivered=True), later)) == "accepted"
    assert code_of(CHECKS.judge(received(at=later, redelivered=True), later + timedelta(seconds=1))) == Code.STALE_ERROR


def test_the_backlog_is_as_old_as_the_last_empty_queue_seen() -> None:
    backlog = Backlog(3600)
    ages = [backlog.age_s(10_000)]  # a first start knows nothing: waiting messages may have any age
    for count, at in ((0, 10_000), (5, 10_001), (5, 10_060), (1, 14_000), (0, 14_001)):
        backlog.observe_depth(count, at)
        ages.append(backlog.age_s(at))

    assert ages == [3600, 0, 1, 60, 3600, 0]


def test_a_steadily_written_queue_does_not_allow_an_hour() -> None:
    """The queue is never seen empty: a thousand messages wait at each look, and a thousand arrive each second."""
    backlog = Backlog(3600, delivered_until=10_000, in_flight=50)
    ages = []
    for second in range(1, 5000):
        backlog.observe_depth(1000, 10_000 + second)
        for _ in range(1000):
            backlog.record_delivery()
        ages.append(backlog.age_s(10_000 + second + 1))

    assert max(ages) <= 4


def test_an_unread_queue_ages_until_its_backlog_is_consumed() -> None:
    backlog = Backlog(3600, delivered_until=10_000, in_flight=50)
    for second in range(1, 1000):
        backlog.observe_depth(100 + second, 10_000 + second)
    assert backlog.age_s(11_000) == 1000
    for _ in range(151 - 1):  # waiting or in flight at the first look
        backlog.record_delivery()
    assert backlog.age_s(11_000) == 1000
    backlog.record_delivery()
    assert backlog.age_s(11_000) == 999


def test_counts_from_before_a_lost_connection_are_discarded() -> None:
    backlog = Backlog(3600, delivered_until=10_000)
    backlog.observe_depth(5, 10_001)
    backlog.connection_lost()
    for _ in range(5):
        backlog.record_delivery()

    assert backlog.age_s(10_100) == 100


def test_a_gzip_body_is_inflated_and_its_delivered_bytes_are_signed() -> None:
    packed = gzip.compress(BODY)
    judged = CHECKS.judge(received(packed, signed(packed, timestamp=STAMP), content_encoding="gzip"), NOW)

    assert isinstance(judged, Accepted)


@pytest.mark.parametrize("encoding", [None, "", "identity", "utf-8", "UTF-8", "utf8"])
def test_an_uncompressed_body_is_taken_as_is(encoding: str | None) -> None:
    assert inflated(replace(received(), content_encoding=encoding), CHECKS.max_bytes) == BODY


@pytest.mark.parametrize(
    ("body", "encoding", "code"),
    [
        pytest.param(gzip.compress(b" " * (64 << 20)), "gzip", Code.SIZE_ERROR, id="a gzip bomb"),
        pytest.param(gzip.compress(BODY)[:-9], "gzip", Code.MALFORMED_JSON, id="truncated"),
        pytest.param(gzip.compress(BODY) * 2, "gzip", Code.MALFORMED_JSON, id="two members"),
        pytest.param(zlib.compress(BODY), "gzip", Code.MALFORMED_JSON, id="zlib"),
        pytest.param(BODY, "gzip", Code.MALFORMED_JSON, id="plain"),
        pytest.param(BODY, "br", Code.SCHEMA_ERROR, id="another encoding"),
    ],
)
def test_a_compressed_body_is_inflated_within_bounds(body: bytes, encoding: str, code: Code) -> None:
    found = inflated(replace(received(), body=body, content_encoding=encoding), CHECKS.max_bytes)

    assert isinstance(found, Refusal)
    assert found.code is code


@pytest.mark.parametrize("count", [-1, "x", "9" * 30, True, None, 1.5, [1], "³"])
def test_an_invalid_retry_count_counts_as_zero(count: object) -> None:
    assert received(headers={"x-retry-count": count}).retry_count == 0
