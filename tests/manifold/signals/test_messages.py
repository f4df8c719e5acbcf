"""The path of a message, every refusal code with a real one, and a good message processed after each bad one."""

import base64
import gzip
import hashlib
import json
import os
import re
import signal
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from manifold.archive.flush import close_segments
from manifold.archive.recorded import RecordedSegments
from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import MAX_SEQ
from manifold.contracts.signals import keys, topology
from manifold.contracts.signals.codes import Code
from manifold.contracts.signals.messages import MAX_PAYLOAD, RawSignal, idempotency_key, parse_raw
from manifold.contracts.signals.records import read_raw
from manifold.history.signals import device_signals
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.lake.day_keys import DayKeys
from manifold.sandbox.platform.rabbitmq import MAX_MESSAGE_BYTES
from tests.manifold.signals.gateway import FOREIGN, SECRET, Door, Gateway, body_of, now_text, signed
from tests.support import console
from tests.support.servers import ROOT, wait_until

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Send = Callable[[Gateway], bytes]


def _plain(body: bytes, **changed: Any) -> Send:
    def send(gateway: Gateway) -> bytes:
        gateway.send(body, signed(body) | {name.replace("_", "-"): value for name, value in changed.items()})
        return body

    return send


def _packed(gateway: Gateway) -> bytes:
    bomb = gzip.compress(b" " * (32 << 20))
    gateway.send(bomb, signed(bomb), content_encoding="gzip")
    return bomb


def _stale(gateway: Gateway) -> bytes:
    body = body_of()
    gateway.send(body, signed(body, timestamp=now_text(-4000)))
    return body


def _replayed(gateway: Gateway) -> bytes:
    nonce, first, second = os.urandom(16).hex(), body_of(), body_of(payload=b"another")
    gateway.send(first, signed(first, nonce=nonce))
    gateway.get(topology.PROCESSED)
    gateway.send(second, signed(second, nonce=nonce))
    return second


def _replayed_under_another_key(gateway: Gateway) -> bytes:
    """Replay a message under another key, which is not part of the signature."""
    body = body_of()
    headers = gateway.send_signed(body)
    gateway.get(topology.PROCESSED)
    gateway.send(body, headers | {"x-idempotency-key": os.urandom(8).hex()})
    return body


def _conflicting(gateway: Gateway) -> bytes:
    key, first, second = os.urandom(8).hex(), body_of(), body_of(payload=b"another")
    gateway.send(first, signed(first) | {"x-idempotency-key": key})
    gateway.get(topology.PROCESSED)
    gateway.send(second, signed(second) | {"x-idempotency-key": key})
    return second


def _nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


BAD: list[Any] = [
    pytest.param(_plain(body_of(payload=b"x" * 900_000)), Code.SIZE_ERROR, id="large"),
    pytest.param(_packed, Code.SIZE_ERROR, id="gzip bomb"),
    pytest.param(_plain(b'{"deviceId": '), Code.MALFORMED_JSON, id="not JSON"),
    pytest.param(_plain(body_of(device="no device")), Code.SCHEMA_ERROR, id="schema"),
    pytest.param(_plain(body_of()[:-1] + b', "' + b"x" * 200_000 + b'": 1}'), Code.SCHEMA_ERROR, id="a field with a long name"),
    pytest.param(_plain(body_of(schemaVersion="v9")), Code.VERSION_ERROR, id="version"),
    pytest.param(_plain(body_of(), x_hmac_signature="0" * 64), Code.SIGNATURE_ERROR, id="forged"),
    pytest.param(_stale, Code.STALE_ERROR, id="stale"),
    pytest.param(_replayed, Code.REPLAY_ERROR, id="replayed"),
    pytest.param(_replayed_under_another_key, Code.REPLAY_ERROR, id="replayed under another key"),
    pytest.param(_conflicting, Code.IDEMPOTENCY_CONFLICT, id="conflict"),
]


def test_a_signed_message_is_processed_recorded_and_acknowledged(door: Door, gateway: Gateway) -> None:
    plain = b'{"readings": [{"type": "temperature", "value": 21.5, "unit": "celsius"}]}'
    body = body_of(payload=plain)
    headers = gateway.send_signed(body)

    about, out = gateway.get(topology.PROCESSED)
    processed = json.loads(out)
    [record] = door.recorded()
    raw = read_raw(record.payload)
    wait_until(lambda: gateway.count(topology.RAW) == 0)

    assert processed["deviceId"] == "device-1"
    assert [reading["value"] for reading in processed["processedData"]["readings"]] == [21.5]
    assert about.headers["x-correlation-id"] == headers["x-correlation-id"] == processed["correlationId"]
    assert raw.device_id == "device-1"
    assert DayKeys.of(door.settings).open(raw.sealed, seq=record.seq) == plain
    assert plain not in record.payload


@pytest.mark.parametrize(("send", "code"), BAD)
def test_a_bad_message_becomes_a_dead_letter_and_the_next_one_is_processed(
    door: Door, gateway: Gateway, send: Send, code: Code
) -> None:
    body = send(gateway)
    about, kept = gateway.get(topology.DEAD)
    gateway.send_signed()
    gateway.get(topology.PROCESSED)
    error = json.loads(about.headers["x-error"])
    [refused] = [e for e in door.recorded() if e.refused_because]

    assert kept == body
    assert about.headers["x-nonce"]
    assert error["code"] == code
    assert set(error) == {"code", "message", "details", "timestamp", "correlationId", "retryCount"}
    assert error["correlationId"] == about.headers["x-correlation-id"]
    assert refused.refused_because.startswith(code)  # type: ignore[union-attr]
    assert DayKeys.of(door.settings).open(refused.payload, seq=refused.seq) == body


def test_the_largest_payload_is_processed(door: Door, gateway: Gateway) -> None:
    """With all readings that are taken over, the processed signal is twice as large."""
    one = '{"type":"temperature","value":123456789.5,"unit":"celsius","confidence":0.123456789}'
    plain = f'{{"readings":[{",".join([one] * (MAX_PAYLOAD // 4 * 3 // (len(one) + 1) - 1))}]}}'.encode()
    gateway.send_signed(body_of(payload=plain))
    _, out = gateway.get(topology.PROCESSED)

    assert len(json.loads(out)["processedData"]["readings"]) == plain.count(b"value")
    assert 1 << 20 < len(out) < MAX_MESSAGE_BYTES


def test_error_log_and_record_name_the_device_of_a_refused_message(door: Door, gateway: Gateway) -> None:
    """Only its unverified body names the device."""
    own_id = str(uuid.uuid4())
    body = body_of("device-log", correlationId=own_id)
    headers = signed(body, device="device-log", secret="forged")
    gateway.send(body, {name: value for name, value in headers.items() if name != "x-correlation-id"})
    about, _ = gateway.get(topology.DEAD)
    wait_until(lambda: "device-log" in door.log)
    [line] = [line for line in door.log.splitlines() if "device-log" in line]
    [refused] = door.recorded()

    assert json.loads(about.headers["x-error"])["correlationId"] == own_id
    assert own_id in line
    assert Code.SIGNATURE_ERROR in line
    assert refused.topic == "xray.raw.v1/device-log"


def test_a_reply_is_sent_on_request_but_never_into_queues_of_the_service(door: Door, gateway: Gateway) -> None:
    mine = gateway.channel.queue_declare("", exclusive=True).method.queue
    gateway.send(b"no JSON", {}, reply_to=mine, correlation_id="mine-1")
    about, answer = gateway.get(mine)
    gateway.send(b"no JSON", {}, reply_to=topology.PROCESSED)
    gateway.get(topology.DEAD)
    gateway.get(topology.DEAD)

    assert json.loads(answer)["code"] == Code.MALFORMED_JSON
    assert about.correlation_id == "mine-1"
    assert gateway.count(topology.PROCESSED) == 0


def test_an_unroutable_reply_stops_nothing(door: Door, gateway: Gateway) -> None:
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    closed = gateway.channel.queue_declare("", exclusive=True, arguments=full).method.queue
    mine = gateway.channel.queue_declare("", exclusive=True).method.queue
    for to, own_id in ((closed, None), ("no-such-queue", None), (mine, b"\xff" * 255), (mine, None)):
        gateway.send(b"no JSON", {"x-correlation-id": "€" * 1000}, reply_to=to, correlation_id=own_id)
    gateway.send_signed()
    gateway.get(topology.PROCESSED)
    wait_until(lambda: gateway.count(topology.DEAD) == 4)

    assert gateway.get(mine)
    assert gateway.get(mine)
    assert len(door.recorded()) == 5
    assert "rabbitmq unavailable" not in door.log


def test_sixty_bad_and_sixty_good_messages_alternate(door: Door, gateway: Gateway) -> None:
    good = body_of()
    bad = [good[:cut] for cut in range(0, len(good) - 1, len(good) // 30)][:30]
    odd: list[Any] = [None, 0, "", [], {}, True, [[]], {"deviceId": 1}, 1e308, "x" * 5000]
    bad += [json.dumps(value).encode() for value in odd]
    bad += [bytes([n]) * n for n in range(1, 21)]
    for number, body in enumerate(bad[:60]):
        gateway.send(body, signed(body))
        gateway.send_signed(body_of(device=f"device-{number}"), device=f"device-{number}")

    wait_until(lambda: gateway.count(topology.PROCESSED) == 60 and gateway.count(topology.DEAD) == 60, what="all items")
    assert len(door.recorded()) == 120


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"x-retry-count": -(2**40), "x-death": [{"count": 2**40, "queue": "q"}]}, id="counts"),
        pytest.param(
            {"n": None, "t": True, "f": Decimal("1.5"), "b": b"\xff\x00", "d": {"e": [1, "x", None, NOW]}, "i": 2**62},
            id="all types",
        ),
        pytest.param({"x" * 200: "y" * 100_000}, id="a long header"),
        pytest.param({"x": "€" * 43_000}, id="a long header of long characters"),
        pytest.param({f"h{n}": "v" * 50 for n in range(1000)}, id="many headers"),
        pytest.param({"x-correlation-id": {"a": 1}, "x-nonce": [1], "x-hmac-signature": NOW}, id="not text"),
        pytest.param({"deep": _nested(600)}, id="deep"),
    ],
)
def test_odd_headers_of_a_bad_message_stop_nothing(door: Door, gateway: Gateway, headers: dict[str, Any]) -> None:
    gateway.send(b"no JSON", headers)
    about, body = gateway.get(topology.DEAD)
    gateway.send_signed()
    gateway.get(topology.PROCESSED)

    assert body == b"no JSON"
    assert json.loads(about.headers["x-error"])["code"] == Code.MALFORMED_JSON
    assert door.log.count("door started") == 1
    assert "rabbitmq unavailable" not in door.log


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({"correlation_id": bytes(range(0xF0, 0x100))}, id="a correlation id in bytes"),
        pytest.param({"correlation_id": b"\xff" * 255, "message_id": b"\xff" * 255, "app_id": b"\xff"}, id="long values"),
        pytest.param({"timestamp": 2**63}, id="a time outside the calendar"),
    ],
)
def test_properties_that_are_not_text_or_time_stop_nothing(door: Door, gateway: Gateway, properties: dict[str, Any]) -> None:
    gateway.send_signed(**properties)
    gateway.get(topology.PROCESSED)
    gateway.send(b"no JSON", {}, **properties)
    wait_until(lambda: gateway.count(topology.DEAD) == 1)

    assert [one["code"] for one in json.loads(manifold(door, "dlq", "ls", "--json"))["dead_letters"]] == ["MALFORMED_JSON"]
    assert "rabbitmq unavailable" not in door.log


def test_a_repeated_signal_is_a_duplicate(door: Door, gateway: Gateway) -> None:
    body = body_of()
    for _ in range(3):
        gateway.send(body, signed(body))
    once = signed(body)
    gateway.send(body, once)
    gateway.send(body, once)
    gateway.get(topology.PROCESSED)
    wait_until(lambda: gateway.count(topology.RAW) == 0)
    gateway.send_signed()
    gateway.get(topology.PROCESSED)

    assert gateway.count(topology.PROCESSED) == gateway.count(topology.DEAD) == 0
    assert len(door.recorded()) == 2


def test_copies_in_groups_judged_while_the_first_is_published_are_duplicates(door: Door, gateway: Gateway) -> None:
    """A service that was paused finds several groups waiting when it resumes."""
    bodies = [body_of(payload=json.dumps({"readings": [], "n": n}).encode()) for n in range(4)]
    first = [signed(body) for body in bodies]  # the identical message, and the same signal with another nonce
    assert door.server is not None
    os.kill(door.server.pid, signal.SIGSTOP)
    try:
        for _ in range(25):
            for body, headers in zip(bodies, first, strict=True):
                gateway.send(body, headers)
                gateway.send(body, signed(body))
    finally:
        os.kill(door.server.pid, signal.SIGCONT)
    for _ in bodies:
        gateway.get(topology.PROCESSED)
    wait_until(lambda: gateway.count(topology.RAW) == gateway.count(topology.RETRY) == 0)
    gateway.send_signed()
    gateway.get(topology.PROCESSED)

    assert gateway.count(topology.PROCESSED) == gateway.count(topology.DEAD) == 0
    assert len(door.recorded()) == len(bodies) + 1


def test_a_status_is_recorded_and_a_bad_one_is_a_dead_letter(door: Door, gateway: Gateway) -> None:
    good = json.dumps({"deviceId": "device-1", "status": "online", "lastSeen": now_text()}).encode()
    bad = json.dumps({"deviceId": "device-1", "status": "lost", "lastSeen": now_text()}).encode()
    for body in (good, bad):
        gateway.send(body, signed(body), queue=topology.STATUS)
    about, _ = gateway.get(topology.DEAD)

    assert json.loads(about.headers["x-error"])["code"] == Code.SCHEMA_ERROR
    assert [e.refused_because is None for e in door.recorded(Stream.XRAY_STATUS)] == [True, False]


def test_a_message_in_hand_elsewhere_is_retried_and_then_given_up(door: Door, gateway: Gateway) -> None:
    """Another service died with the same signal in hand, and RabbitMQ has not redelivered it yet."""
    body = body_of()
    said = parse_raw(body)
    assert isinstance(said, RawSignal)
    content = idempotency_key(said)
    with redis.Redis.from_url(door.settings.redis) as client:
        client.set(keys.idempotency("device-1", content), keys.claimed(content, "another"), ex=900)
    gateway.send(body, signed(body))
    about, kept = gateway.get(topology.DEAD, within_s=60)
    error = json.loads(about.headers["x-error"])

    assert (error["code"], error["retryCount"], kept) == (Code.PROCESSING_ERROR, 3, body)
    assert about.headers["x-retry-count"] == 3
    assert FOREIGN not in door.log


def test_a_retried_status_stays_a_status(door: Door, gateway: Gateway) -> None:
    body = json.dumps({"deviceId": "device-1", "status": "online", "lastSeen": now_text()}).encode()
    content = hashlib.sha256(body).hexdigest()
    with redis.Redis.from_url(door.settings.redis) as client:
        client.set(keys.idempotency("device-1", content), keys.claimed(content, "another"), ex=900)
        gateway.send(body, signed(body), queue=topology.STATUS)
        wait_until(lambda: gateway.count(topology.RETRY) == 1)
        client.delete(keys.idempotency("device-1", content))
    wait_until(lambda: door.recorded(Stream.XRAY_STATUS))

    assert [e.refused_because for e in door.recorded(Stream.XRAY_STATUS)] == [None]
    assert door.recorded() == []
    assert gateway.count(topology.DEAD) == 0


def test_a_flush_seals_the_segment_of_the_service_too(door: Door, gateway: Gateway) -> None:
    gateway.send_signed()
    gateway.get(topology.PROCESSED)
    closed = close_segments(door.settings)
    segments = RecordedSegments(Archive(door.settings.archive))

    assert set(closed) == set(door.settings.recorders)  # none of them is running
    assert [e.seq for e in segments.recorded_since(Stream.XRAY_RAW, door.after + 1)] == [e.seq for e in door.recorded()]
    assert list(door.settings.signals_journal_folder.glob("*.journal")) == []


def test_a_query_for_signals_shows_the_most_recent_ones(door: Door, gateway: Gateway) -> None:
    gateway.send_signed(
        body_of("device-7", b'{"readings": [{"type": "humidity", "value": 50, "unit": "percent"}]}'), device="device-7"
    )
    gateway.get(topology.PROCESSED)
    ensure_tables(catalog := open_catalog(door.settings))
    found = device_signals(door.settings, catalog, "device-7", limit=10, before=MAX_SEQ)

    assert [reading["value"] for signal in found.signals for reading in signal.readings] == [50]


def test_no_file_holds_a_plaintext_payload_and_no_log_a_secret(door: Door, gateway: Gateway) -> None:
    plain = b"the-plain-text-of-a-payload"
    body = body_of(payload=plain)
    gateway.send(body, signed(body))
    gateway.get(topology.PROCESSED)
    gateway.send(body, signed(body, secret="forged"))
    gateway.get(topology.DEAD)
    encoded = base64.b64encode(plain)
    files = [file for file in door.home.rglob("*") if file.is_file() and file.parent.name != "secrets"]

    assert len(files) > 3
    assert [file for file in files if plain in file.read_bytes() or encoded in file.read_bytes()] == []
    assert [file for file in files if SECRET.encode() in file.read_bytes()] == []


def test_the_reference_has_every_metric_of_the_door(door: Door) -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    listed = dict(re.findall(r"^\| `(signals_\w+)` \| (\w+) \|", page, re.MULTILINE))
    exposed = {
        family.name + "_total" * (family.type == "counter"): family.type
        for family in text_string_to_metric_families(httpx.get(f"{door.settings.signals}/metrics").text)
        if family.name.startswith("signals_") and not family.name.endswith("_created")
    }

    assert listed == exposed


def test_the_console_sends_lists_dead_letters_and_replays_what_would_pass_now(
    door: Door, gateway: Gateway, tmp_path: Path
) -> None:
    data = tmp_path / "payload"
    data.write_bytes(b'{"readings": []}')
    body = body_of()
    good, forged = signed(body), signed(body, secret="forged")
    for headers in (good, forged):
        about = pika.BasicProperties(
            headers=headers | {"x-error": '{"code": "PROCESSING_ERROR"}'}, content_type="application/json"
        )
        gateway.channel.basic_publish(topology.DEAD_EXCHANGE, topology.DEAD, body, about)

    assert json.loads(manifold(door, "send", "device-9", "--data", str(data), "--count", "3", "--json"))["sent"] == 3
    assert [json.loads(gateway.get(topology.PROCESSED)[1])["deviceId"] for _ in range(3)] == ["device-9"] * 3
    assert [one["code"] for one in json.loads(manifold(door, "dlq", "ls", "--json"))["dead_letters"]] == ["PROCESSING_ERROR"] * 2
    assert json.loads(manifold(door, "dlq", "show", "1"))["body"] == body.decode()
    tried = json.loads(manifold(door, "dlq", "replay", "--dry-run", "--json"))["dead_letters"]
    assert [(one["would_be"], one["replayed"]) for one in tried] == [("accepted", False), ("SIGNATURE_ERROR", False)]
    manifold(door, "dlq", "replay")
    assert json.loads(gateway.get(topology.PROCESSED)[1])["deviceId"] == "device-1"
    wait_until(lambda: gateway.count(topology.DEAD) == 1)


def manifold(door: Door, *arguments: str) -> str:
    done = console.manifold("signals", *arguments, env=door.environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
