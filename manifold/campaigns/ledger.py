"""What is on record of each target, in columns: its attempts, and the status that follows from them.

Most targets have at most one attempt, which takes three numbers. Of the others all attempts are kept.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from manifold.campaigns.facts import STRENGTH, SUCCESSES, Again, Attempt, Ended, Ending, Released, joined
from manifold.campaigns.membership import Numbers, Roster
from manifold.campaigns.plan import Retry
from manifold.campaigns.quantities import duration_ms
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT, unix_ms_of


class Status(StrEnum):
    """The state of a target: it waits, is released, or has settled in one of the ways of `Ending`, in the order of that."""

    WAITING = "waiting"
    RELEASED = "released"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    FAILED = "failed"
    SILENT = "silent"
    REJECTED = "rejected"
    DELIVERED = "delivered"
    CONFIRMED = "confirmed"


STATUSES = tuple(Status)
CODES = {status: code for code, status in enumerate(STATUSES)}
WAITING, RELEASED = CODES[Status.WAITING], CODES[Status.RELEASED]
FIRST_SETTLED = RELEASED + 1  # all codes from here on are of settled targets
_ENDINGS = tuple(Ending)
# What a target's column of endings says: it has several attempts, none, or one that has not ended. From 0 on: how its one ended.
_SEVERAL, _NONE, _UNDER_WAY = -3, -2, -1
_CODE_OF = np.array([WAITING, WAITING, RELEASED, WAITING, *(CODES[Status(str(ending))] for ending in _ENDINGS[1:])], np.int8)


class Standing(Struct, frozen=True, gc=False):
    """Where a target is."""

    status: Status
    since: int = 0  # the seq that made it so; 0: it waits from the beginning
    not_before_ms: int = 0  # of a target that waits for its retry


def standing(attempts: Sequence[Attempt], retry: Retry | None, again: Sequence[Again] = ()) -> Standing:
    """Where a target is after these attempts, oldest first. An acknowledgement of any of them settles it.

    `again` are orders by seq: a target whose last attempt had ended so before one of them waits from then on, and its attempts
    are counted from there.
    """
    success = next((attempt for attempt in reversed(attempts) if attempt.ending in SUCCESSES), None)
    if success is not None:
        return Standing(Status(str(success.ending)), success.ended)
    under_way = next((attempt for attempt in reversed(attempts) if attempt.ending is None), None)
    if under_way is not None:
        return Standing(Status.RELEASED, under_way.release)
    last = attempts[-1]
    assert last.ending is not None
    anew = max((order.seq for order in again if order.seq > last.ended and last.ending in order.endings), default=0)
    if anew:
        return Standing(Status.WAITING, anew)
    if last.ending is Ending.WITHDRAWN:
        return Standing(Status.WAITING, last.ended)
    if last.ending is Ending.FAILED and retry is not None:
        from_seq = max((order.seq for order in again if order.seq < last.ended and Ending.FAILED in order.endings), default=0)
        failures = sum(attempt.ending is Ending.FAILED and attempt.ended > from_seq for attempt in attempts)
        if failures <= retry.times:
            return Standing(Status.WAITING, last.ended, unix_ms_of(last.ended) + duration_ms(retry.after))
    return Standing(Status(str(last.ending)), last.ended)


class Ledger:
    """The attempts and the standing of every target of a roster, by its number; and the attempts of other vehicles.

    A ledger is changed only between `copy` and `judge`; whoever has it afterwards reads.
    """

    def __init__(self, roster: Roster) -> None:
        size = len(roster)
        self.roster = roster
        self.status: NDArray[np.int8] = np.zeros(size, np.int8)
        self.since: Numbers = np.zeros(size, np.int64)
        self.not_before_ms: Numbers = np.zeros(size, np.int64)
        self._release: Numbers = np.zeros(size, np.int64)
        self._ending: NDArray[np.int8] = np.full(size, _NONE, np.int8)
        self._ended: Numbers = np.zeros(size, np.int64)
        self._several: dict[int, tuple[Attempt, ...]] = {}  # all attempts of a target that has more than one
        self._others: dict[str, tuple[Attempt, ...]] = {}
        self._touched = bytearray(size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._content() == other._content()

    __hash__ = None  # type: ignore[assignment]  # it is as large as a campaign

    def _content(self) -> tuple[object, ...]:
        columns = (self.status, self.since, self.not_before_ms)
        return self.roster, *(column.tobytes() for column in columns), dict(self._attempts()), self._others

    def copy(self) -> Self:
        """A ledger that may be changed."""
        made = object.__new__(type(self))
        made.roster = self.roster
        for name in ("status", "since", "not_before_ms", "_release", "_ending", "_ended", "_several", "_others"):
            setattr(made, name, getattr(self, name).copy())
        made._touched = bytearray(len(self.roster))
        return made

    def moved_to(self, roster: Roster) -> "Ledger":
        """The same attempts, for another roster; it has to be judged."""
        made = Ledger(roster)
        for vin, attempts in self._attempts():
            for attempt in attempts:
                made._add(vin, attempt)
        return made

    def release(self, fact: Released) -> None:
        """Note that these vehicles were released."""
        seq, number_of = fact.seq, self.roster.number_of
        release, ending, touched = self._release.data, self._ending.data, self._touched  # quicker than arrays, one by one
        for vin in fact.vins:
            number = number_of.get(vin)
            if number is not None and ending[number] == _NONE:
                release[number], ending[number], touched[number] = seq, _UNDER_WAY, 1
            else:
                self._add(vin, Attempt(seq))

    def end(self, fact: Ended) -> None:
        """Note how an entry ended."""
        number = self.roster.number_of.get(fact.vin)
        if number is not None and self._ending[number] == _UNDER_WAY and self._release[number] == fact.release:
            self._ending[number], self._ended[number], self._touched[number] = STRENGTH[fact.ending], fact.seq, 1
        else:
            self._add(fact.vin, Attempt(fact.release, fact.ending, fact.seq))

    def judge(self, retry: Retry | None, again: Sequence[Again], *, anew: bool) -> None:
        """Conclude the standing of all targets if `anew`, else of those of which something new was noted."""
        numbers = np.arange(len(self.roster)) if anew else np.frombuffer(self._touched, np.uint8).nonzero()[0]
        endings, ended = self._ending[numbers], self._ended[numbers]
        status, not_before = _CODE_OF[endings.astype(np.int64) - _SEVERAL], np.zeros(len(numbers), np.int64)
        since = np.where(endings >= 0, ended, self._release[numbers])
        if retry is not None:
            failed = endings == STRENGTH[Ending.FAILED]
            status[failed] = WAITING
            not_before[failed] = (ended[failed] >> TIME_SHIFT) + EPOCH_MS + duration_ms(retry.after)
        for order in again:
            named = np.isin(endings, [STRENGTH[ending] for ending in order.endings]) & (ended < order.seq)
            status[named], since[named], not_before[named] = WAITING, order.seq, 0
        self.status[numbers], self.since[numbers], self.not_before_ms[numbers] = status, since, not_before
        for number in self._several.keys() if anew else self._several.keys() & set(numbers.tolist()):
            found = standing(self._several[number], retry, again)
            self.status[number], self.since[number] = CODES[found.status], found.since
            self.not_before_ms[number] = found.not_before_ms
        self._touched = bytearray(len(self.roster))

    def standing_of(self, vin: str) -> Standing:
        """Where a target is."""
        number = self.roster.number_of[vin]
        return Standing(STATUSES[self.status[number]], int(self.since[number]), int(self.not_before_ms[number]))

    def tallies(self) -> Iterator[dict[Status, int]]:
        """Of each wave, how many targets have which status."""
        width = len(STATUSES)
        counts = np.bincount(self.roster.waves * width + self.status, minlength=self.roster.wave_count * width)
        for wave in counts.reshape(-1, width).tolist() if len(self.roster) else ():
            yield dict(zip(STATUSES, wave, strict=True))

    def _add(self, vin: str, attempt: Attempt) -> None:
        number = self.roster.number_of.get(vin)
        if number is None:
            self._others[vin] = joined(self._others.get(vin, ()), attempt)
            return
        attempts = joined(self._of(number), attempt)
        self._touched[number] = 1
        if len(attempts) > 1:
            self._several[number], self._ending[number] = attempts, _SEVERAL
            return
        (only,) = attempts
        ending = _UNDER_WAY if only.ending is None else STRENGTH[only.ending]
        self._release[number], self._ending[number], self._ended[number] = only.release, ending, only.ended

    def _of(self, number: int) -> tuple[Attempt, ...]:
        if number in self._several:
            return self._several[number]
        ending = self._ending[number]
        if ending == _NONE:
            return ()
        release, ended = int(self._release[number]), int(self._ended[number])
        return (Attempt(release, None if ending == _UNDER_WAY else _ENDINGS[ending], ended),)

    def _attempts(self) -> Iterator[tuple[str, tuple[Attempt, ...]]]:
        yield from self._others.items()
        for number in (self._ending != _NONE).nonzero()[0].tolist():
            yield self.roster.vins[number], self._of(number)
