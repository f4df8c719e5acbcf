"""What is on record of each target, in columns: its attempts, and the status that follows from them.

Most targets have at most one attempt, which takes three numbers. Of the others all attempts are kept.
"""

from collections.abc import Iterator
from typing import Self

import numpy as np
from numpy.typing import NDArray

from manifold.campaigns.facts import (
    ANSWER_STRENGTH,
    ENDING_OF,
    STRENGTH,
    Answer,
    Answered,
    Attempt,
    Ended,
    Ending,
    Released,
    Silence,
    Terms,
    joined,
    settled,
)
from manifold.campaigns.membership import Numbers, Roster
from manifold.campaigns.quantities import duration_ms
from manifold.campaigns.standing import CODES, RELEASED, STATUSES, WAITING, Standing, Status, standing
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT, unix_ms_of

_ENDINGS, _ANSWERS = tuple(Ending), tuple(Answer)
# Codes in the column of endings: several attempts, none, or one that has not ended. From 0 on: how the only attempt ended.
_SEVERAL, _NONE, _UNDER_WAY = -3, -2, -1
_CODE_OF = np.array([WAITING, WAITING, RELEASED, WAITING, *(CODES[Status(str(ending))] for ending in _ENDINGS[1:])], np.int8)

_BY_ANSWER = np.array([STRENGTH[ENDING_OF[answer]] for answer in _ANSWERS], np.int8)
_SUCCESS = STRENGTH[Ending.DELIVERED]
_NO_SILENCE = Silence(0, 1 << 62)  # later than every acknowledgement
_TABLES = ("_several", "_others", "_claims")
_COLUMNS = ("status", "since", "not_before_ms", "_release", "_ending", "_ended", "_answer", "_answered")


class Ledger:
    """The attempts and the standing of every target of a roster, by its number; and the attempts of other vehicles.

    A ledger is changed only between `copy` and `judge`; afterwards it is only read.
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
        self._answer: NDArray[np.int8] = np.full(size, -1, np.int8)
        self._answered: Numbers = np.zeros(size, np.int64)
        self._several: dict[int, tuple[Attempt, ...]] = {}  # all attempts of a target that has more than one
        self._others: dict[str, tuple[Attempt, ...]] = {}
        self._claims: dict[str, tuple[Attempt, ...]] = {}  # answers to messages that the vehicle was not sent, as far as known
        self._touched = bytearray(size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._content() == other._content()

    __hash__ = None  # type: ignore[assignment]  # it is as large as a campaign

    def _content(self) -> tuple[object, ...]:
        columns = (self.status, self.since, self.not_before_ms)
        return self.roster, *(column.tobytes() for column in columns), dict(self._attempts()), self._others, self._claims

    def copy(self) -> Self:
        """A ledger that may be changed."""
        made = object.__new__(type(self))
        made.roster = self.roster
        for name in (*_COLUMNS, *_TABLES):
            setattr(made, name, getattr(self, name).copy())
        made._touched = bytearray(len(self.roster))
        return made

    def moved_to(self, roster: Roster) -> "Ledger":
        """The same attempts, for another roster; it has to be judged."""
        made = Ledger(roster)
        for vin, attempts in self._attempts():
            for attempt in attempts:
                made._add(vin, attempt)
        made._claims = self._claims.copy()
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
            if vin in self._claims:
                self._grant(vin, seq)

    def end(self, fact: Ended) -> None:
        """Note how an entry ended."""
        number = self.roster.number_of.get(fact.vin)
        if number is not None and self._ending[number] == _UNDER_WAY and self._release[number] == fact.release:
            self._ending[number], self._ended[number], self._touched[number] = STRENGTH[fact.ending], fact.seq, 1
        else:
            self._add(fact.vin, Attempt(fact.release, fact.ending, fact.seq))
        if fact.vin in self._claims:
            self._grant(fact.vin, fact.release)

    def answer(self, fact: Answered) -> None:
        """Note what a vehicle answered. It may name any seq; only answers to its own releases count, whatever is known first."""
        word = Attempt(fact.release, answer=fact.answer, answered=fact.seq)
        number = self.roster.number_of.get(fact.vin)
        known = self._others.get(fact.vin, ()) if number is None else self._attempts_of(number)
        if any(attempt.release == fact.release for attempt in known):
            self._add(fact.vin, word)
        else:
            self._claims[fact.vin] = joined(self._claims.get(fact.vin, ()), word)

    def judge(self, terms: Terms, *, anew: bool) -> None:
        """Conclude the standing of all targets if `anew`, else of those of which something new was noted."""
        numbers = np.arange(len(self.roster)) if anew else np.frombuffer(self._touched, np.uint8).nonzero()[0]
        endings, ended = self._settled(numbers, terms)
        status, not_before = _CODE_OF[endings.astype(np.int64) - _SEVERAL], np.zeros(len(numbers), np.int64)
        since = np.where(endings >= 0, ended, self._release[numbers])
        if terms.retry is not None:
            failed = np.isin(endings, [STRENGTH[Ending(name)] for name in terms.retry.on])
            status[failed] = WAITING
            not_before[failed] = _unix_ms_of(ended[failed]) + duration_ms(terms.retry.after)
        for order in terms.again:
            named = np.isin(endings, [STRENGTH[ending] for ending in order.endings]) & (ended < order.seq)
            status[named], since[named], not_before[named] = WAITING, order.seq, 0
        self.status[numbers], self.since[numbers], self.not_before_ms[numbers] = status, since, not_before
        for number in self._several.keys() if anew else self._several.keys() & set(numbers.tolist()):
            found = standing(self._several[number], terms)
            self.status[number], self.since[number] = CODES[found.status], found.since
            self.not_before_ms[number] = found.not_before_ms
        self._touched = bytearray(len(self.roster))

    def unanswered_since_ms(self, terms: Terms) -> int | None:
        """Since when the oldest answer is awaited, in a campaign that asks for answers; None if none is awaited."""
        awaited = (self.status == RELEASED) & (self._ending == _SUCCESS)
        acknowledged = self._ended[awaited].tolist()
        for number, attempts in self._several.items():
            if self.status[number] == RELEASED:
                awaited_of = (each for each in attempts if each.ending is not None and settled(each, terms)[0] is None)
                acknowledged += [each.ended for each in awaited_of]
        return unix_ms_of(min(acknowledged)) if acknowledged else None

    def _settled(self, numbers: Numbers, terms: Terms) -> tuple[NDArray[np.int8], Numbers]:
        """How the only attempt of each of these targets has ended for the campaign, and the seq of the record that ended it."""
        endings, ended = self._ending[numbers], self._ended[numbers]
        if not terms.by_answer:
            return endings, ended
        acknowledged = (endings == _SUCCESS).nonzero()[0]
        silences = np.array([(silence.before_ms, silence.seq) for silence in (*terms.silences, _NO_SILENCE)])
        first = np.searchsorted(silences[:, 0], _unix_ms_of(ended[acknowledged]))
        is_silent = first < len(terms.silences)
        endings[acknowledged] = np.where(is_silent, STRENGTH[Ending.SILENT], _UNDER_WAY)
        ended[acknowledged] = silences[first, 1]
        answered = (self._answer[numbers] >= 0).nonzero()[0]
        endings[answered] = _BY_ANSWER[self._answer[numbers[answered]]]
        ended[answered] = self._answered[numbers[answered]]
        return endings, ended

    def standing_of(self, vin: str) -> Standing:
        """The standing of a target."""
        number = self.roster.number_of[vin]
        return Standing(STATUSES[self.status[number]], int(self.since[number]), int(self.not_before_ms[number]))

    def tallies(self) -> Iterator[dict[Status, int]]:
        """For each wave, the number of targets by status."""
        width = len(STATUSES)
        counts = np.bincount(self.roster.waves * width + self.status, minlength=self.roster.wave_count * width)
        for wave in counts.reshape(-1, width).tolist() if len(self.roster) else ():
            yield dict(zip(STATUSES, wave, strict=True))

    def _grant(self, vin: str, release: int) -> None:
        """Count a vehicle's answer to a release that has become known."""
        for claim in self._claims.pop(vin):
            if claim.release == release:
                self._add(vin, claim)
            else:
                self._claims[vin] = (*self._claims.get(vin, ()), claim)

    def _add(self, vin: str, attempt: Attempt) -> None:
        number = self.roster.number_of.get(vin)
        if number is None:
            self._others[vin] = joined(self._others.get(vin, ()), attempt)
            return
        attempts = joined(self._attempts_of(number), attempt)
        self._touched[number] = 1
        if len(attempts) > 1:
            self._several[number], self._ending[number] = attempts, _SEVERAL
            return
        (only,) = attempts
        ending = _UNDER_WAY if only.ending is None else STRENGTH[only.ending]
        self._release[number], self._ending[number], self._ended[number] = only.release, ending, only.ended
        self._answer[number] = -1 if only.answer is None else ANSWER_STRENGTH[only.answer]
        self._answered[number] = only.answered

    def _attempts_of(self, number: int) -> tuple[Attempt, ...]:
        if number in self._several:
            return self._several[number]
        ending, answer = self._ending[number], self._answer[number]
        if ending == _NONE:
            return ()
        only = Attempt(
            int(self._release[number]),
            None if ending == _UNDER_WAY else _ENDINGS[ending],
            int(self._ended[number]),
            None if answer < 0 else _ANSWERS[answer],
            int(self._answered[number]),
        )
        return (only,)

    def _attempts(self) -> Iterator[tuple[str, tuple[Attempt, ...]]]:
        yield from self._others.items()
        for number in (self._ending != _NONE).nonzero()[0].tolist():
            yield self.roster.vins[number], self._attempts_of(number)


def _unix_ms_of(seqs: Numbers) -> Numbers:
    """Milliseconds since 1970 at which these seqs were given."""
    return (seqs >> TIME_SHIFT) + EPOCH_MS
