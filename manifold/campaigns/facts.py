"""What the fold takes: recorded orders, releases, and how entries ended, each under the seq that makes it one fact."""

from enum import StrEnum

from msgspec import Struct

from manifold.contracts.campaigns import Command
from manifold.contracts.seq import unix_ms_of


class Ending(StrEnum):
    """How a released entry ended for its target, weakest first. Of two words about one entry the stronger counts."""

    WITHDRAWN = "withdrawn"  # released, and not sent: the target waits again
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    FAILED = "failed"
    SILENT = "silent"  # acknowledged, but no answer came; for campaigns that wait for answers
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


Fact = Recorded | Released | Ended


class Attempt(Struct, frozen=True, gc=False):
    """One release of one target, and how it ended, if it has."""

    release: int
    ending: Ending | None = None
    ended: int = 0  # the seq of the record that says so


class Again(Struct, frozen=True):
    """An order by which targets that have ended in certain ways wait again."""

    seq: int
    endings: frozenset[Ending]


def joined(attempts: tuple[Attempt, ...], new: Attempt) -> tuple[Attempt, ...]:
    """The attempts of a target with one more word about one of them. The order of words, and their repetition, change nothing."""
    if not attempts:
        return (new,)
    known = {attempt.release: attempt for attempt in attempts}
    known[new.release] = max(known.get(new.release, new), new, key=_word)
    return tuple(known[release] for release in sorted(known))


def _word(attempt: Attempt) -> tuple[int, int]:
    """Orders words about one release: the stronger ending, then the record that came first."""
    return (-1, 0) if attempt.ending is None else (STRENGTH[attempt.ending], -attempt.ended)
