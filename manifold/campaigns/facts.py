"""What the fold takes: recorded orders, releases, and how entries ended, each under the seq that makes it one fact."""

from enum import StrEnum

from msgspec import Struct

from manifold.campaigns.success import Retry
from manifold.contracts.answers import Answer as Answer
from manifold.contracts.campaigns import Command
from manifold.contracts.seq import unix_ms_of


class Ending(StrEnum):
    """How a released entry ended for its target, weakest first. If two records say so differently, the stronger counts."""

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
    """A trigger of the campaign, recorded as `seq`: its vehicles have taken their places in their queues."""

    seq: int
    wave: int
    step: int  # counts the campaign's releases
    vins: tuple[str, ...]
    until_ms: int | None = None  # end of the window

    @property
    def at_ms(self) -> int:
        """When it was recorded (Unix ms)."""
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
    """What the vehicle answered to the entry (vin, release), recorded as `seq`. It counts where the plan asks for answers."""

    seq: int
    vin: str
    release: int
    answer: Answer


Fact = Recorded | Released | Ended | Answered


class Attempt(Struct, frozen=True, gc=False):
    """One release of one target, how its entry ended, and what the vehicle answered."""

    release: int
    ending: Ending | None = None
    ended: int = 0  # the seq of that record
    answer: Answer | None = None
    answered: int = 0


class Again(Struct, frozen=True):
    """An order to let targets that have ended in certain ways wait again."""

    seq: int
    endings: frozenset[Ending]


class Silence(Struct, frozen=True):
    """From `seq` on, vehicles that had acknowledged by `before_ms` and not answered count as silent."""

    seq: int
    before_ms: int


class Terms(Struct, frozen=True):
    """What decides the standing of a target, besides its attempts."""

    retry: Retry | None = None
    again: tuple[Again, ...] = ()  # by seq
    by_answer: bool = False
    silences: tuple[Silence, ...] = ()  # by seq, each later than the one before


def joined(attempts: tuple[Attempt, ...], new: Attempt) -> tuple[Attempt, ...]:
    """The attempts of a target, joined with a report about one of them. Order and repetition of reports change nothing."""
    if not attempts:
        return (new,)
    known = {attempt.release: attempt for attempt in attempts}
    old = known.get(new.release, new)
    ended, answered = max(old, new, key=_strength), max(old, new, key=_answer_strength)
    known[new.release] = Attempt(new.release, ended.ending, ended.ended, answered.answer, answered.answered)
    return tuple(known[release] for release in sorted(known))


def settled(attempt: Attempt, terms: Terms) -> tuple[Ending | None, int]:
    """How an attempt has ended for the campaign (None: not yet), and the seq of the record that ended it."""
    if not terms.by_answer:
        return attempt.ending, attempt.ended
    if attempt.answer is not None:
        return ENDING_OF[attempt.answer], attempt.answered
    if attempt.ending is not Ending.DELIVERED:
        return attempt.ending, attempt.ended
    silent = (silence.seq for silence in terms.silences if unix_ms_of(attempt.ended) <= silence.before_ms)
    seq = next(silent, None)
    return (None, 0) if seq is None else (Ending.SILENT, seq)


def _strength(attempt: Attempt) -> tuple[int, int]:
    """By which of two reports about one release counts: the stronger ending, then the record that came first."""
    return (-1, 0) if attempt.ending is None else (STRENGTH[attempt.ending], -attempt.ended)


def _answer_strength(attempt: Attempt) -> tuple[int, int]:
    return (-1, 0) if attempt.answer is None else (ANSWER_STRENGTH[attempt.answer], -attempt.answered)
