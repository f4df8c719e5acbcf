"""The checker passes valid histories of any shape and catches a violation planted into each of them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.checker import WENT_BACK, WIPED, check
from tests.faults.ecq_checker import DRAIN_S, LATE_S, NEAR_S
from tests.faults.history import History, Line, What, about, read

DEADLINE_S = 5.0
STEP_S = 0.05
SHA1 = "a" * 40
W = What


class Road:
    """Write the valid history of one vehicle, entry by entry, from drawn values."""

    def __init__(self, vin: str, draw: st.DrawFn, first_seq: int) -> None:
        self.vin, self.draw, self.at, self.seq = vin, draw, 1000.0, first_seq
        self.lines: list[Line] = []

    def tell(self, what: What, seq: int | None, request: str = "", **more: object) -> None:
        self.at += STEP_S
        sha1 = SHA1 if what in (W.ATTEMPTED, W.DELIVERED) else ""
        self.lines.append(Line(self.at, what, self.vin, seq, request, sha1=sha1, **more))  # type: ignore[arg-type]

    def entry(self, number: int) -> None:
        """One request from the attempt to the record."""
        seq, request, knows_seq = self.seq, f"task_{number}", self.draw(st.booleans())
        self.seq += self.draw(st.integers(1, 1 << 22))
        seen = seq if knows_seq else None  # MQTT 5, or 3.1.1
        trouble = self.draw(st.sampled_from(["none"] * 4 + ["crash", "fault", "deadline", "lost receipt", "wiped", "went back"]))
        self.tell(W.ATTEMPTED, None, request)
        self.tell(W.ENQUEUED, seq)
        receipt_first = self.draw(st.booleans()) and trouble != "lost receipt"
        if receipt_first:
            self.tell(W.ACCEPTED, seq, request)
        self.tell(W.PUBLISHED, seq)
        self.tell(W.DELIVERED, seen, request)
        if not receipt_first:  # with the second attempt, or late
            self.tell(W.ACCEPTED, seq, request)
        self._trouble(trouble, seq, seen, request)
        self.tell(W.ACKNOWLEDGED, seen, request)
        self.tell(W.ENDED, seq, note="delivered")
        if trouble == "wiped":
            self.lines.append(
                Line(self.at + DRAIN_S / 2, W.FAULT, until=self.at + 40, note=f"{WIPED} everything (FLUSHALL), then rebuild")
            )
            self.at += 40
            self.tell(W.PUBLISHED, seq)
            self.tell(W.DELIVERED, seen, request)
            self.tell(W.ACKNOWLEDGED, seen, request)
        if trouble == "went back":
            self.lines.append(Line(self.at - 2, W.FAULT, until=self.at + 10, note=WENT_BACK))
            self.tell(W.PUBLISHED, seq)
            self.tell(W.DELIVERED, seen, request)
            self.tell(W.ACKNOWLEDGED, seen, request)
            self.at += 12
        self.at += self.draw(st.sampled_from([0.0, 1.0, NEAR_S * 3]))
        self.tell(W.RECORDED, seq, note="delivered")

    def _trouble(self, trouble: str, seq: int, seen: int | None, request: str) -> None:
        match trouble:
            case "crash":
                self.tell(W.GONE, None, note="crashed")
                self.tell(W.CAME, None)
                self.tell(W.DELIVERED, seen, request, dup=True)
            case "fault":
                self.lines.append(Line(self.at + STEP_S / 2, W.FAULT, until=self.at + 10, note="dispatcher killed"))
                self.at += 12
                self.tell(W.PUBLISHED, seq)
                self.tell(W.DELIVERED, seen, request)
            case "deadline":
                self.at += DEADLINE_S + 1
                self.tell(W.PUBLISHED, seq)
                self.tell(W.DELIVERED, seen, request)


@st.composite
def good_histories(draw: st.DrawFn, least: int = 1) -> list[Line]:
    """Valid histories of some vehicles with some requests each."""
    lines: list[Line] = []
    for n in range(draw(st.integers(1, 3))):
        road = Road(f"VIN{n}", draw, draw(st.integers(1 << 50, 1 << 60)))
        for number in range(draw(st.integers(least, 6))):
            road.entry(number)
        lines += road.lines
    return lines


@given(good_histories())
@settings(max_examples=200, deadline=None)
def test_a_history_that_keeps_the_promises_passes(lines: list[Line]) -> None:
    verdict = check(lines, deadline_s=DEADLINE_S)
    assert verdict.broken == {}
    accepted = {(line.vin, line.seq) for line in lines if line.what is W.ACCEPTED}
    copies = sum(line.what is W.DELIVERED for line in lines)
    assert (verdict.attempted, verdict.accepted, verdict.delivered) == (len(accepted),) * 3
    assert verdict.duplicated == copies - len(accepted)


@given(good_histories(), st.randoms())
@settings(max_examples=50, deadline=None)
def test_the_order_of_lines_does_not_matter(lines: list[Line], random: Random) -> None:
    shuffled = list(lines)
    random.shuffle(shuffled)
    assert check(shuffled, deadline_s=DEADLINE_S).counts() == check(lines, deadline_s=DEADLINE_S).counts()


def last(lines: list[Line], what: What) -> Line:
    return [line for line in lines if line.what is what][-1]


def first(lines: list[Line], what: What) -> Line:
    return next(line for line in lines if line.what is what)


def request_lines(lines: list[Line], of: Line, what: What) -> list[Line]:
    return [line for line in lines if (line.vin, line.request, line.what) == (of.vin, of.request, what)]


def lose(lines: list[Line]) -> list[Line]:
    """The last entry never reached its vehicle."""
    victim = last(lines, W.ACCEPTED)
    gone = request_lines(lines, victim, W.DELIVERED) + request_lines(lines, victim, W.ACKNOWLEDGED)
    return [line for line in lines if line not in gone]


def swap(lines: list[Line]) -> list[Line]:
    """The first entry of the last vehicle was first delivered after its second one."""
    vin = lines[-1].vin
    one, two = [line for line in lines if line.what is W.ACCEPTED and line.vin == vin][:2]
    copies = request_lines(lines, one, W.DELIVERED)
    after = max(line.at for line in request_lines(lines, two, W.ACKNOWLEDGED)) + STEP_S / 3
    return [line for line in lines if line not in copies] + [replace(copies[0], at=after)]


def double(lines: list[Line]) -> list[Line]:
    """A second copy, long after the first, without a fault nearby."""
    copy = last(lines, W.DELIVERED)
    end = max(line.until or line.at for line in lines)
    ack = last(lines, W.ACKNOWLEDGED)
    quiet = [replace(copy, at=end + 60), replace(ack, at=end + 60.1), replace(copy, at=end + 60.2, dup=True)]
    return [*lines, *quiet, replace(copy, at=end + 60.3, dup=True)]


def resurrect(lines: list[Line]) -> list[Line]:
    """An entry was put in flight again long after its end."""
    ended = last(lines, W.ENDED)
    end = max(line.until or line.at for line in lines)
    calm = [line for line in lines if not line.note.startswith(WIPED)]
    return [*calm, replace(ended, at=end + LATE_S, what=W.PUBLISHED, note="")]


def resurrect_unseen(lines: list[Line]) -> list[Line]:
    """The same, seen only by the vehicle, with a nearby fault as an excuse."""
    copy, end = last(lines, W.DELIVERED), max(line.until or line.at for line in lines)
    calm = [line for line in lines if not line.note.startswith(WIPED)]
    return [*calm, Line(end + 50, W.FAULT, until=end + 90, note=WIPED), replace(copy, at=end + 91, dup=False)]


def two_in_flight(lines: list[Line]) -> list[Line]:
    """The second entry of the last vehicle arrived while the first was not acknowledged."""
    vin = lines[-1].vin
    one, two = [line for line in lines if line.what is W.ACCEPTED and line.vin == vin][:2]
    until = min(line.at for line in request_lines(lines, two, W.DELIVERED))
    ends = [*request_lines(lines, one, W.ACKNOWLEDGED), *(line for line in lines if line.what is W.ENDED and line.seq == one.seq)]
    late = [replace(line, at=until + STEP_S / 3) for line in ends if line.vin == vin]
    return [line for line in lines if line not in ends or line.vin != vin] + late


def never_asked(lines: list[Line]) -> list[Line]:
    """A vehicle received a message that nobody sent."""
    return [*lines, replace(last(lines, W.DELIVERED), at=lines[-1].at + 1, request="task_of_nobody", seq=7)]


def other_seq(lines: list[Line]) -> list[Line]:
    """A copy has another seq than the receipt."""
    accepted = last(lines, W.ACCEPTED)
    copy = request_lines(lines, accepted, W.DELIVERED)[-1]
    return [*lines, replace(copy, at=lines[-1].at + 1, seq=(accepted.seq or 0) + 1)]


def alter(lines: list[Line]) -> list[Line]:
    """One copy has other bytes."""
    copy = last(lines, W.DELIVERED)
    return [replace(line, sha1="b" * 40) if line is copy else line for line in lines]


def queue_twice(lines: list[Line]) -> list[Line]:
    """One request was accepted under two seqs."""
    accepted = last(lines, W.ACCEPTED)
    return [*lines, replace(accepted, at=accepted.at + 1, seq=(accepted.seq or 0) + 99)]


def forget_outcome(lines: list[Line]) -> list[Line]:
    """An acknowledged entry has no outcome in the archive, although others have."""
    recorded = first(lines, W.RECORDED)
    return [line for line in lines if line is not recorded]


def invent_outcome(lines: list[Line]) -> list[Line]:
    """An entry is recorded as delivered, but its vehicle never acknowledged it."""
    acks = request_lines(lines, last(lines, W.ACKNOWLEDGED), W.ACKNOWLEDGED)
    return [line for line in lines if line not in acks]


SPOILT: list[tuple[str, Callable[[list[Line]], list[Line]]]] = [
    ("lost", lose),
    ("out of order", swap),
    ("unexplained", double),
    ("resurrected", resurrect),
    ("resurrected", resurrect_unseen),
    ("in flight together", two_in_flight),
    ("unasked", never_asked),
    ("unasked", other_seq),
    ("altered", alter),
    ("queued twice", queue_twice),
    ("unrecorded", forget_outcome),
    ("never acknowledged", invent_outcome),
]


@pytest.mark.parametrize(("word", "spoil"), SPOILT, ids=[spoil.__name__ for _, spoil in SPOILT])
@given(lines=good_histories(least=2))
@settings(max_examples=60, deadline=None)
def test_a_broken_promise_is_caught(word: str, spoil: Callable[[list[Line]], list[Line]], lines: list[Line]) -> None:
    assert word in check(spoil(lines), deadline_s=DEADLINE_S).broken


def test_an_entry_parked_for_its_data_may_arrive_later() -> None:
    told = [
        Line(1, W.ATTEMPTED, "V", request="a", sha1=SHA1),
        Line(1, W.ATTEMPTED, "V", request="b", sha1=SHA1),
        Line(2, W.ACCEPTED, "V", 10, "a"),
        Line(3, W.ACCEPTED, "V", 20, "b"),
        Line(4, W.PARKED, "V", 10),
        Line(5, W.DELIVERED, "V", 20, "b", sha1=SHA1),
        Line(6, W.ACKNOWLEDGED, "V", 20, "b"),
        Line(7, W.DELIVERED, "V", 10, "a", sha1=SHA1),
        Line(8, W.ACKNOWLEDGED, "V", 10, "a"),
    ]
    assert check(told).broken == {}
    assert list(check([line for line in told if line.what is not W.PARKED]).broken) == ["out of order"]


def test_an_entry_with_another_outcome_is_not_lost() -> None:
    told = [Line(1, W.ATTEMPTED, "V", request="a", sha1=SHA1), Line(2, W.ACCEPTED, "V", 10, "a")]
    assert list(check(told).broken) == ["lost"]
    assert check([*told, Line(3, W.ENDED, "V", 10, note="cancelled")]).broken == {}


@given(good_histories())
@settings(max_examples=20, deadline=None)
def test_a_history_is_read_back_as_written(tmp_path_factory: pytest.TempPathFactory, lines: list[Line]) -> None:
    file: Path = tmp_path_factory.mktemp("history") / "history.jsonl"
    history = History(file)
    for line in lines:
        history.tell(line)
    history.close()
    assert read(file) == lines
    assert [line.vin for line in about(lines, "VIN0")].count("VIN0") == sum(line.vin == "VIN0" for line in lines)
