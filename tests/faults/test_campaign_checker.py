"""The checker passes a campaign that was paused and went on, and catches each broken promise by its word."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.campaign_checker import BRAKE_S
from tests.faults.checker import check
from tests.faults.history import Line, What
from tests.faults.verdict import Breach

W, NAME, RATE = What, "campaign_1", 3
SHA1 = "a" * 40


def sent(vin: str, seq: int, at: float) -> list[Line]:
    """An entry from the claim to the end."""
    return [
        Line(at, W.PUBLISHED, vin, seq),
        Line(at + 0.1, W.DELIVERED, vin, seq, NAME, sha1=SHA1),
        Line(at + 0.2, W.ACKNOWLEDGED, vin, seq, NAME, sha1=SHA1),
        Line(at + 0.3, W.ENDED, vin, seq, note="delivered"),
    ]


def good() -> list[Line]:
    """Three targets: A at once, B withdrawn by the brake and released again, C withdrawn late, in flight when it came."""
    return [
        *(Line(1000, W.TARGETED, vin, request=NAME, note=f"{RATE} a minute") for vin in "ABC"),
        *(Line(1001, W.RELEASED, vin, 10, NAME, until=2000) for vin in "ABC"),
        *sent("A", 10, 1002),
        Line(1003, W.BRAKED, request=NAME, until=1100),
        *sent("C", 10, 1003 + BRAKE_S / 2),
        Line(1050, W.PUBLISHED, "B", 10),  # claimed, and withdrawn by the last look before the publish
        Line(1050.1, W.ENDED, "B", 10, note="withdrawn"),
        Line(1101, W.RELEASED, "B", 20, NAME, until=2000),
        Line(1101.1, W.ENQUEUED, "B", 20),
        *sent("B", 20, 1102),
    ]


def without(lines: list[Line], what: What, vin: str, note: str = "") -> list[Line]:
    return [line for line in lines if not (line.what is what and line.vin == vin and note in line.note)]


def release_again(lines: list[Line]) -> list[Line]:
    return [*lines, Line(1200, W.RELEASED, "A", 30, NAME)]


def forget_withdrawal(lines: list[Line]) -> list[Line]:
    return without(lines, W.ENDED, "B", "withdrawn")


def withdraw_after_the_second_release(lines: list[Line]) -> list[Line]:
    """B's first entry is withdrawn when Redis already has its second one."""
    return [replace(line, at=1101.2) if line.what is W.ENDED and line.note == "withdrawn" else line for line in lines]


def send_while_braked(lines: list[Line]) -> list[Line]:
    return [*lines, *sent("B", 10, 1060)]


def send_after_the_window(lines: list[Line]) -> list[Line]:
    return [replace(line, until=1101.5) if line.what is W.RELEASED and line.seq == 20 else line for line in lines]


def release_too_fast(lines: list[Line]) -> list[Line]:
    return [replace(line, at=1050) if line.what is W.RELEASED and line.seq == 20 else line for line in lines]


def lose(lines: list[Line]) -> list[Line]:
    return without(lines, W.DELIVERED, "C")


def test_a_campaign_that_was_paused_and_went_on_keeps_its_promises() -> None:
    verdict = check(good())
    assert verdict.broken == {}
    assert (verdict.campaign_targets, verdict.campaign_delivered) == (3, 3)


@pytest.mark.parametrize(
    ("word", "spoil"),
    [
        (Breach.RELEASED_TWICE, release_again),
        (Breach.RELEASED_TWICE, forget_withdrawal),
        (Breach.RELEASED_TWICE, withdraw_after_the_second_release),
        (Breach.SENT_WHILE_BRAKED, send_while_braked),
        (Breach.OUTSIDE_ITS_WINDOW, send_after_the_window),
        (Breach.OVER_ITS_RATE, release_too_fast),
        (Breach.CAMPAIGN_LOST, lose),
    ],
)
def test_a_broken_promise_of_a_campaign_is_caught(word: Breach, spoil: Callable[[list[Line]], list[Line]]) -> None:
    assert list(check(spoil(good())).broken) == [word]


def test_what_the_broker_repeats_after_a_brake_breaks_no_promise() -> None:
    repeated = Line(1060, W.DELIVERED, "A", 10, NAME, dup=True, sha1=SHA1)
    assert check([*good(), repeated]).broken == {}


def test_a_message_held_in_a_socket_when_the_brake_came_may_arrive() -> None:
    late = [replace(line, at=1070) if line.what is W.DELIVERED and line.vin == "A" else line for line in good()]
    assert check(late).broken == {}
