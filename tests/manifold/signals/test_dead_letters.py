"""Dead letters: replayed on the operator's request into their original queue; expired ones are recorded."""

import gzip
import json

import pytest

from manifold.console._signals_amqp import erase_letters
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.errors import Retryable
from manifold.contracts.signals import topology
from manifold.contracts.signals.records import DIGEST
from tests.manifold.signals.gateway import Door, Gateway, body_of, now_text, signed
from tests.manifold.signals.test_messages import manifold
from tests.support.servers import free_port, wait_until


def replayed(door: Door, *words: str) -> list[tuple[str, str, bool, bool]]:
    found = json.loads(manifold(door, "dlq", "replay", *words, "--json"))["dead_letters"]
    return [(one["code"], one["would_be"], one["vouchable"], one["replayed"]) for one in found]


def test_a_merely_stale_message_is_replayed_when_the_operator_vouches(door: Door, gateway: Gateway) -> None:
    old = body_of("device-old")
    gateway.send(old, signed(old, device="device-old", timestamp=now_text(-4000)) | {"x-idempotency-key": "mine"})
    gateway.get(topology.DEAD, take=False)

    assert replayed(door) == [("STALE_ERROR", "STALE_ERROR", True, False)]
    assert replayed(door, "--vouch", "--dry-run") == [("STALE_ERROR", "STALE_ERROR", True, False)]
    assert gateway.count(topology.DEAD) == 1
    assert replayed(door, "--vouch") == [("STALE_ERROR", "STALE_ERROR", True, True)]
    assert json.loads(gateway.get(topology.PROCESSED)[1])["deviceId"] == "device-old"
    assert gateway.count(topology.DEAD) == 0


def test_an_unsigned_message_cannot_be_vouched_for(door: Door, gateway: Gateway) -> None:
    body = body_of()
    gateway.send(body, signed(body, secret="forged", timestamp=now_text(-4000)))
    gateway.get(topology.DEAD, take=False)

    assert replayed(door, "--vouch") == [("SIGNATURE_ERROR", "SIGNATURE_ERROR", False, False)]
    assert gateway.count(topology.DEAD) == 1


@pytest.mark.parametrize(("words", "is_replayed"), [((), False), (("--code", "REPLAY_ERROR"), True)], ids=["not", "named"])
def test_only_a_named_replay_can_be_vouched_for(door: Door, gateway: Gateway, words: tuple[str, ...], is_replayed: bool) -> None:
    """An attacker can send a captured message again under another idempotency key, which is not signed."""
    body = body_of("device-r")
    headers = signed(body, device="device-r", timestamp=now_text(-4000)) | {"x-error": '{"code": "REPLAY_ERROR"}'}
    gateway.publish(topology.DEAD_EXCHANGE, topology.DEAD, body, headers)

    assert replayed(door, "--vouch", *words) == [("REPLAY_ERROR", "STALE_ERROR", True, is_replayed)]


def test_a_status_returns_to_its_own_queue(door: Door, gateway: Gateway) -> None:
    body = json.dumps({"deviceId": "device-s", "status": "online", "lastSeen": now_text()}).encode()
    gateway.send(body, signed(body, device="device-s", timestamp=now_text(-4000)), queue=topology.STATUS)
    gateway.get(topology.DEAD, take=False)

    assert replayed(door, "--vouch") == [("STALE_ERROR", "STALE_ERROR", True, True)]
    wait_until(lambda: len(door.recorded(Stream.XRAY_STATUS)) == 2)
    [_, status] = door.recorded(Stream.XRAY_STATUS)
    assert status.refused_because is None
    assert status.topic.endswith("/device-s")
    assert door.recorded() == []


def refusals(door: Door) -> list[Envelope]:
    return [e for e in door.recorded() if e.refused_because]


def test_a_dead_letter_of_the_service_is_recorded_once(door: Door, gateway: Gateway) -> None:
    gateway.send(b"no JSON", {"x-device-id": "device-h"})
    gateway.get(topology.DEAD)
    gateway.send(b"no JSON", {"x-death": [{"queue": "forged"}]})
    gateway.get(topology.DEAD)
    wait_until(lambda: gateway.count(topology.DEAD_COPY) == 0)
    gateway.send_signed()
    gateway.get(topology.PROCESSED)
    found = refusals(door)

    assert [e.topic for e in found[:1]] == ["xray.raw.v1/device-h"]
    assert len({e.headers[DIGEST] for e in found}) == 2  # a forged death is recorded twice with one digest


def test_dead_letters_of_a_device_are_erased_and_others_stay(door: Door, gateway: Gateway) -> None:
    gone = "device-8f3a"
    about_it = json.dumps({"about": {"device": gone}}).encode()
    for device in (gone, f"{gone}-2"):
        gateway.send(body_of(device), signed(body_of(device), device=device, secret="forged"))
    gateway.send(b"{", {"x-device-id": gone})
    gateway.send(gzip.compress(about_it), {}, content_encoding="gzip")
    wait_until(lambda: gateway.count(topology.DEAD) == 4, what="the dead letters")

    assert erase_letters(door.settings, gone) == 3
    assert json.loads(gateway.get(topology.DEAD)[1])["deviceId"] == f"{gone}-2"
    assert erase_letters(door.settings, gone) == gateway.count(topology.DEAD) == 0
    with pytest.raises(Retryable, match="--leave-dead-letters"):
        erase_letters(door.settings.model_copy(update={"amqp_port": free_port()}), gone)


def test_a_list_shows_device_and_correlation_id_from_body_or_headers(door: Door, gateway: Gateway) -> None:
    gateway.send(body_of("device-list"), signed(body_of("device-list"), device="device-list", secret="forged"))
    gateway.send(b"{", {"x-device-id": "device-header", "x-correlation-id": "c-1"})
    gateway.send(b"{", {})
    wait_until(lambda: gateway.count(topology.DEAD) == 3, what="the dead letters")

    found = json.loads(manifold(door, "dlq", "ls", "--json"))["dead_letters"]
    printed = manifold(door, "dlq", "ls")

    assert {one["device_id"] for one in found} == {"device-list", "device-header", None}
    assert "c-1" in {one["correlation_id"] for one in found}
    assert "device-list" in printed
    assert "c-1" in printed
    gateway.channel.queue_purge(topology.DEAD)
