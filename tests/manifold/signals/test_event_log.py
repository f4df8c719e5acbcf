"""Log lines of message events: each message has one at info level, with the fields of the contract."""

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from manifold.contracts.signals import topology
from manifold.settings import Settings
from manifold.signals._disposition import EXPIRED, Disposition, Refused
from manifold.signals._outcome_log import log_outcomes
from manifold.signals._received import Accepted, Received
from manifold.signals._stated_identity import StatedIdentity
from tests.manifold.signals.gateway import Door, Gateway, body_of, now_text, signed
from tests.manifold.signals.test_checks import CHECKS, NOW, received
from tests.support.servers import Server, wait_until


def events(door: Door) -> list[dict[str, Any]]:
    """The message lines of a JSON log."""
    lines = [json.loads(line) for line in door.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "message settled"]


def test_every_message_has_one_info_line_in_json(
    tmp_path: Path, rabbitmq: Settings, redis_server: Server, gateway: Gateway
) -> None:
    gateway.purge()
    door = Door(tmp_path / "home", rabbitmq, redis_server.port, log_format="json")
    door.start()
    try:
        good, status = (
            body_of("logged-1"),
            json.dumps({"deviceId": "logged-2", "status": "online", "lastSeen": now_text()}).encode(),
        )
        of_good, of_status, of_bad = signed(good, device="logged-1"), signed(status, device="logged-2"), signed(b"{")
        gateway.send(good, of_good)
        wait_until(lambda: len(events(door)) == 1, what="the log line of the signal")
        gateway.send(good, of_good)  # a repetition
        wait_until(lambda: len(events(door)) == 2, what="the log line of the duplicate")
        gateway.send(status, of_status, queue=topology.STATUS)
        wait_until(lambda: len(events(door)) == 3, what="the log line of the status")
        gateway.send(b"{", of_bad | {"x-device-id": "logged-3"})
        wait_until(lambda: len(events(door)) == 4, what="the log line of the refused message")
        found = events(door)
    finally:
        door.stop()

    told = [(line["status"], line["device_id"], line["correlation_id"], line["queue"]) for line in found]
    assert told == [
        ("processed", "logged-1", of_good["x-correlation-id"], topology.RAW),
        ("duplicate", "logged-1", of_good["x-correlation-id"], topology.RAW),
        ("processed", "logged-2", of_status["x-correlation-id"], topology.STATUS),
        ("refused", "logged-3", of_bad["x-correlation-id"], topology.RAW),
    ]
    assert [line["level"] for line in found] == ["info", "info", "info", "warning"]
    assert all(0 <= line["duration_ms"] < 60_000 for line in found)
    assert (found[3]["code"], found[3]["reason"]) == ("MALFORMED_JSON", "the body is not JSON in UTF-8")
    assert found[3]["details"]


def _accepted() -> Accepted:
    judged = CHECKS.judge(received(), NOW)
    assert isinstance(judged, Accepted)
    return judged


def _told(disposition: Disposition, group: list[Received], share: float) -> list[dict[str, Any]]:
    with capture_logs() as lines:
        log_outcomes(disposition, group, log_accepted=share)
    return [dict(line) for line in lines]


def test_a_retried_message_is_logged_with_its_device_and_reason() -> None:
    [line] = _told(Disposition(to_retry=[(received(), "check raised an unexpected error: OSError")]), [received()], 0.0)

    assert (line["status"], line["reason"], line["retry_count"]) == ("retried", "check raised an unexpected error: OSError", 0)
    assert line["device_id"] == _accepted().parsed.device_id
    assert line["duration_ms"] >= 0


@pytest.mark.parametrize(("share", "least", "most"), [(1.0, 400, 400), (0.5, 120, 280), (0.0, 0, 0)])
def test_accepted_messages_are_sampled_and_others_all_logged(share: float, least: int, most: int) -> None:
    """With a share of one half, a count outside these bounds occurs once in 10^15 runs."""
    good, bad = _accepted(), Refused(received(), EXPIRED, StatedIdentity(), "")
    disposition = Disposition(claimed=[good] * 200, duplicates=[good] * 200, refused=[bad], expired=[bad])
    found = [line["status"] for line in _told(disposition, [good.received] * 402, share)]

    assert least <= found.count("processed") + found.count("duplicate") <= most
    assert (found.count("refused"), found.count("expired")) == (1, 1)
