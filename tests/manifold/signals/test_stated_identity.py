"""What a refused message states: its devices, for lookups, and its correlation id."""

import gzip
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from manifold.contracts.signals import topology
from manifold.signals._received import Received
from manifold.signals._stated_identity import StatedIdentity, stated_identity_of
from tests.manifold.signals.gateway import body_of

ID = str(uuid.UUID(int=7, version=4))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def received(body: bytes, headers: dict[str, Any] | None = None, **more: Any) -> Received:
    return Received(topology.RAW, body, headers or {}, NOW, **more)


@pytest.mark.parametrize(
    ("message", "devices"),
    [
        pytest.param(received(body_of("d-1")), ("d-1",), id="whole"),
        pytest.param(received(body_of("d-1")[:-9]), ("d-1",), id="truncated"),
        pytest.param(received(b"no JSON", {"x-device-id": "d-2"}), ("d-2",), id="header"),
        pytest.param(received(body_of("d-1"), {"x-device-id": "d-2"}), ("d-1", "d-2"), id="two names"),
        pytest.param(received(b'{"deviceId": "\\u0064-1"}'), ("d-1",), id="escaped"),
        pytest.param(received(b'{"deviceId": "a b"}', {"x-device-id": "a/b"}), (), id="without names"),
        pytest.param(received(gzip.compress(body_of("d-1")), content_encoding="gzip"), ("d-1",), id="gzip"),
        pytest.param(received(gzip.compress(body_of("d-1"))[:-9], content_encoding="GZIP"), ("d-1",), id="truncated gzip"),
        pytest.param(received(body_of("d-1"), content_encoding="gzip"), ("d-1",), id="not gzip"),
        pytest.param(received(gzip.compress(b" " * (64 << 20)), content_encoding="gzip"), (), id="gzip bomb"),
        pytest.param(received(b'{"deviceId":"x","deviceId":"y"}'), ("y", "x"), id="named twice"),
        pytest.param(received(b"".join(b'"deviceId":"%d"' % n for n in range(99))), tuple("01234567"), id="many"),
        pytest.param(received(b"[" * 100_000), (), id="deep"),
        pytest.param(received(b"\xff" * 100), (), id="not text"),
        pytest.param(received(b""), (), id="empty"),
    ],
)
def test_a_refused_message_names_its_stated_devices(message: Received, devices: tuple[str, ...]) -> None:
    assert stated_identity_of(message).devices == devices


def test_the_correlation_id_comes_from_the_body_then_the_headers() -> None:
    headers = {"x-correlation-id": "of a header"}

    assert stated_identity_of(received(body_of(correlationId=ID), headers)) == StatedIdentity(("device-1",), ID)
    assert stated_identity_of(received(body_of(correlationId="no UUID"), headers)).correlation_id == "of a header"
    assert stated_identity_of(received(b"{}")).correlation_id is None


def test_a_delivery_digest_covers_content_and_not_routing() -> None:
    first = received(b"x", {"a": [1, {"b": None}]})
    again = received(b"x", {"a": [1, {"b": None}], "x-retry-count": 2, "x-death": [{}], "x-error": "{}", "x-queue": topology.RAW})

    assert first.digest == again.digest
    others = [
        received(b"y", {"a": [1, {"b": None}]}),
        received(b"x", {"a": [1, {"b": 0}]}),
        received(b"x"),
        received(b"x", {"a": [1, {"b": None}], "x-queue": topology.STATUS}),
    ]
    assert len({one.digest for one in (first, *others)}) == 5
