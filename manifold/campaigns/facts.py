"""The facts from which the state of a campaign follows: recorded orders, releases, the endings of entries, and answers."""

from enum import StrEnum

from msgspec import Struct

from manifold.campaigns.success import Retry
from manifold.contracts.answers import Answer as Answer
from manifold.contracts.campaigns import Command
from manifold.contracts.seq import unix_ms_of


class Ending(StrEnum):
    """How a released entry ended for its target, weakest first. If two records contradict each other, the stronger one counts."""

    WITHDRAWN = "withdrawn"  # released, and not sent: the target waits again
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    BUSY = "busy"  # the vehicle answered that it cannot now
    FAILED = "failed"
    SILENT = "silent"  # acknowledged, but no answer came in time
    REJECTED = "rejected"  # the vehicle answered that it will not
    DELIVERED = "delivered"
    CONFIRMED = "confirmed"  # the vehicle answered that it has done it


STRENGTH = {ending: strength for strength, ending in enumerate(Ending)}
SUCCESSES = frozenset({Ending.DELIVERED, Ending.CONFIRMED})


class Recorded(Struct, frozen=True):
    """An order, and the seq under which it is on record."""

    seq: int
    command: Command


class Released(Struct, frozen=True):
    """A trigger of the campaign, recorded as `seq`, that has put an entry into the queue of each of its vehicles."""

    seq: int
    wave: int
    step: int  # the number of the release within the campaign, from 1
    vins: tuple[str, ...]
    until_ms: int | None = None  # when the window ends in which it may be sent

    @property
    def at_ms(self) -> int:
        """When the release was recorded (Unix ms)."""
        return unix_ms_of(self.seq)


class Ended(Struct, frozen=True, gc=False):
    """How the entry (vin, release) ended, recorded as `seq`."""

    seq: int
    vin: str
    release: int  # the seq of the trigger
    ending: Ending


ENDING_OF = {
    Answer.BUSY: Ending.BUSY,
    Answer.FAILED: Ending.FAILED,
    Answer.REFUSED: Ending.REJECTED,
    Answer.DONE: Ending.CONFIRMED,
}
ANSWER_STRENGTH = {answer: strength for strength, answer in enumerate(Answer)}


class Answered(Struct, frozen=True, gc=False):
    """A vehicle's answer to the entry (vin, release), recorded as `seq`. It counts only if the plan requires answers."""

    seq: int
    vin: str
    release: int
    answer: Answer


Fact = Recorded | Released | Ended | Answered


def identity(fact: Fact) -> tuple[int, str]:
    """Return what identifies a fact: its seq, and the VIN of an ending or answer (empty for other facts).

    The seq alone is not enough, because endings that were never recorded, only written to the lake, may have the same seq.
    """
    return fact.seq, fact.vin if isinstance(fact, Ended | Answered) else ""


class Attempt(Struct, frozen=True, gc=False):
    """One release of one target, how its entry ended, and what the vehicle answered."""

    release: int  # the seq of the trigger
    ending: Ending | None = None
    ended_seq: int = 0  # of the record of the ending
    answer: Answer | None = None
    answered_seq: int = 0  # of the record of the answer


class Again(Struct, frozen=True):
    """An order after which targets whose entries have ended in one of `endings` wait for another release."""

    seq: int
    endings: frozenset[Ending]


class Silence(Struct, frozen=True):
    """From `seq` on, vehicles that acknowledged at or before `before_ms` (Unix ms) and have not answered count as silent."""

    seq: int
    before_ms: int


class Terms(Struct, frozen=True):
    """The terms that, together with a target's attempts, decide its standing."""

    retry: Retry | None = None
    again: tuple[Again, ...] = ()  # by seq
    by_answer: bool = False  # whether the plan requires the vehicle's answer
    silences: tuple[Silence, ...] = ()  # by seq, with ascending `before_ms`


def joined(attempts: tuple[Attempt, ...], new: Attempt) -> tuple[Attempt, ...]:
    """Return the attempts of a target, updated with `new`, a report about one attempt. Attempts are sorted by release.

    The result does not depend on the order in which reports are joined, or on repeated reports.
    """
    if not attempts:
        return (new,)
    by_release = {attempt.release: attempt for attempt in attempts}
    known = by_release.get(new.release)
    by_release[new.release] = new if known is None else _merged(known, new)
    return tuple(by_release[release] for release in sorted(by_release))


def _merged(one: Attempt, other: Attempt) -> Attempt:
    """Merge two reports about the same attempt: the ending and the answer that count may come from different reports."""
    ended = max(one, other, key=_ending_rank)
    answered = max(one, other, key=_answer_rank)
    return Attempt(one.release, ended.ending, ended.ended_seq, answered.answer, answered.answered_seq)


def effective_ending(attempt: Attempt, terms: Terms) -> tuple[Ending | None, int]:
    """Return how an attempt has ended for the campaign, and the seq of the record that ended it; (None, 0) if it is open.

    If the plan requires the vehicle's answer, an acknowledged attempt stays open until the vehicle answers or counts as silent.
    """
    if not terms.by_answer:
        return attempt.ending, attempt.ended_seq
    if attempt.answer is not None:
        return ENDING_OF[attempt.answer], attempt.answered_seq
    if attempt.ending is not Ending.DELIVERED:  # without an acknowledgement no answer is awaited
        return attempt.ending, attempt.ended_seq
    acknowledged_ms = unix_ms_of(attempt.ended_seq)
    for silence in terms.silences:
        if acknowledged_ms <= silence.before_ms:
            return Ending.SILENT, silence.seq
    return None, 0


def _ending_rank(attempt: Attempt) -> tuple[int, int]:
    """The sort key of reports about one release: the stronger ending counts, and of equal endings the one recorded first."""
    return (-1, 0) if attempt.ending is None else (STRENGTH[attempt.ending], -attempt.ended_seq)


def _answer_rank(attempt: Attempt) -> tuple[int, int]:
    """The sort key of answers to one release: the stronger answer counts, and of equal answers the one recorded first."""
    return (-1, 0) if attempt.answer is None else (ANSWER_STRENGTH[attempt.answer], -attempt.answered_seq)
