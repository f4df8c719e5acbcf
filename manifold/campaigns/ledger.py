"""The attempts of each target and the status that follows from them, in NumPy columns.

Most targets have at most one attempt, which fits into the columns. The attempts of all other targets are kept in a dictionary.
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
# Values of the column `_ending`. A value of 0 or more is the strength of the ending of the target's only attempt.
_SEVERAL = -3  # the target has several attempts, which are in the dictionary
_NONE = -2  # the target has no attempt
_UNDER_WAY = -1  # the target's only attempt has not ended
# The status code that follows from a value of `_ending`, by value + 3: several attempts, no attempt, under way, withdrawn, …
_STATUS_OF_ENDING = np.array(
    [WAITING, WAITING, RELEASED, WAITING, *(CODES[Status(str(ending))] for ending in _ENDINGS[1:])], np.int8
)
_ENDING_OF_ANSWER = np.array([STRENGTH[ENDING_OF[answer]] for answer in _ANSWERS], np.int8)
_DELIVERED = STRENGTH[Ending.DELIVERED]
_NO_SILENCE = Silence(0, 1 << 62)  # later than every acknowledgement
_DICTIONARIES = ("_several", "_others", "_claims")
_COLUMNS = ("status", "since", "not_before_ms", "_release", "_ending", "_ended", "_answer", "_answered")


class Ledger:
    """The attempts and the standing of each target of a roster, and the attempts of other vehicles.

    A target's number in the roster is its index in every column. A ledger is changed only between `copy` and `judge`; after
    `judge` it is only read.
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
        self._several: dict[int, tuple[Attempt, ...]] = {}  # target number → all its attempts, if it has more than one
        self._others: dict[str, tuple[Attempt, ...]] = {}  # VIN of a vehicle that is not in the roster → its attempts
        self._claims: dict[str, tuple[Attempt, ...]] = {}  # VIN → answers to releases that are not known to name the vehicle
        self._touched = bytearray(size)  # 1 for each target that has changed since `judge`

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._content() == other._content()

    __hash__ = None  # type: ignore[assignment]  # unhashable, because it compares by value and can change

    def _content(self) -> tuple[object, ...]:
        columns = (self.status, self.since, self.not_before_ms)
        column_bytes = [column.tobytes() for column in columns]
        return self.roster, *column_bytes, dict(self._attempts()), self._others, self._claims

    def copy(self) -> Self:
        """Return a ledger with the same content that may be changed."""
        copied = object.__new__(type(self))
        copied.roster = self.roster
        for name in (*_COLUMNS, *_DICTIONARIES):
            setattr(copied, name, getattr(self, name).copy())
        copied._touched = bytearray(len(self.roster))
        return copied

    def moved_to(self, roster: Roster) -> "Ledger":
        """Return a ledger with the same attempts for a different roster. The caller has to call `judge` on it."""
        moved = Ledger(roster)
        for vin, attempts in self._attempts():
            for attempt in attempts:
                moved._add(vin, attempt)
        moved._claims = self._claims.copy()
        return moved

    def release(self, fact: Released) -> None:
        """Note that the vehicles of a release were released."""
        number_of = self.roster.number_of
        # Writing single items through a memoryview is faster than through an array.
        release_column, ending_column = self._release.data, self._ending.data
        for vin in fact.vins:
            number = number_of.get(vin)
            if number is not None and ending_column[number] == _NONE:
                release_column[number] = fact.seq
                ending_column[number] = _UNDER_WAY
                self._touched[number] = 1
            else:
                self._add(vin, Attempt(fact.seq))
            if vin in self._claims:
                self._move_claim(vin, fact.seq)

    def end(self, fact: Ended) -> None:
        """Note how an entry ended."""
        number = self.roster.number_of.get(fact.vin)
        if number is not None and self._ending[number] == _UNDER_WAY and self._release[number] == fact.release:
            self._ending[number] = STRENGTH[fact.ending]
            self._ended[number] = fact.seq
            self._touched[number] = 1
        else:
            self._add(fact.vin, Attempt(fact.release, fact.ending, fact.seq))
        if fact.vin in self._claims:
            self._move_claim(fact.vin, fact.release)

    def answer(self, fact: Answered) -> None:
        """Note a vehicle's answer.

        A vehicle may name any seq in its answer. The answer counts only once a release with that seq is known to name the
        vehicle; until then the answer is kept as a claim.
        """
        answered = Attempt(fact.release, answer=fact.answer, answered=fact.seq)
        number = self.roster.number_of.get(fact.vin)
        known = self._others.get(fact.vin, ()) if number is None else self._attempts_of(number)
        if any(attempt.release == fact.release for attempt in known):
            self._add(fact.vin, answered)
        else:
            self._claims[fact.vin] = joined(self._claims.get(fact.vin, ()), answered)

    def judge(self, terms: Terms, *, anew: bool) -> None:
        """Derive the standing of the targets that have changed since the last call; with `anew`, of all targets."""
        numbers = np.arange(len(self.roster)) if anew else np.frombuffer(self._touched, np.uint8).nonzero()[0]
        # First all targets are judged by the columns, which is wrong for those that have several attempts.
        endings, ended = self._settled(numbers, terms)
        status = _STATUS_OF_ENDING[endings.astype(np.int64) - _SEVERAL]
        since = np.where(endings >= 0, ended, self._release[numbers])
        not_before_ms = np.zeros(len(numbers), np.int64)
        if terms.retry is not None:
            is_retried = np.isin(endings, [STRENGTH[Ending(name)] for name in terms.retry.on])
            status[is_retried] = WAITING
            not_before_ms[is_retried] = _unix_ms_of(ended[is_retried]) + duration_ms(terms.retry.after)
        for order in terms.again:
            waits_again = np.isin(endings, [STRENGTH[ending] for ending in order.endings]) & (ended < order.seq)
            status[waits_again] = WAITING
            since[waits_again] = order.seq
            not_before_ms[waits_again] = 0
        self.status[numbers] = status
        self.since[numbers] = since
        self.not_before_ms[numbers] = not_before_ms
        # Then the targets that have several attempts are judged one by one.
        for number in self._several.keys() if anew else self._several.keys() & set(numbers.tolist()):
            result = standing(self._several[number], terms)
            self.status[number] = CODES[result.status]
            self.since[number] = result.since
            self.not_before_ms[number] = result.not_before_ms
        self._touched = bytearray(len(self.roster))

    def unanswered_since_ms(self, terms: Terms) -> int | None:
        """Return when the oldest entry was acknowledged whose answer is still awaited (Unix ms), or None if there is none.

        `terms` require answers.
        """
        is_awaited = (self.status == RELEASED) & (self._ending == _DELIVERED)
        acknowledgement_seqs: list[int] = self._ended[is_awaited].tolist()
        for number, attempts in self._several.items():
            if self.status[number] == RELEASED:
                acknowledgement_seqs += [attempt.ended for attempt in attempts if _is_unanswered(attempt, terms)]
        return unix_ms_of(min(acknowledgement_seqs)) if acknowledgement_seqs else None

    def _settled(self, numbers: Numbers, terms: Terms) -> tuple[NDArray[np.int8], Numbers]:
        """Return how the attempt of each of these targets has ended for the campaign, and the seqs of the records that say so.

        The endings are values as in the column `_ending`. Those of targets with several attempts are wrong, and the caller
        overwrites them.
        """
        endings, ended = self._ending[numbers], self._ended[numbers]
        if not terms.by_answer:
            return endings, ended
        acknowledged = (endings == _DELIVERED).nonzero()[0]
        # An acknowledged target is ended by the first silence whose `before_ms` is not before the acknowledgement. Without such a
        # silence it is still under way.
        silences = np.array([(silence.before_ms, silence.seq) for silence in (*terms.silences, _NO_SILENCE)])
        first_silence = np.searchsorted(silences[:, 0], _unix_ms_of(ended[acknowledged]))
        is_silent = first_silence < len(terms.silences)
        endings[acknowledged] = np.where(is_silent, STRENGTH[Ending.SILENT], _UNDER_WAY)
        ended[acknowledged] = silences[first_silence, 1]
        # An answer overrides silence.
        answered = (self._answer[numbers] >= 0).nonzero()[0]
        endings[answered] = _ENDING_OF_ANSWER[self._answer[numbers[answered]]]
        ended[answered] = self._answered[numbers[answered]]
        return endings, ended

    def standing_of(self, vin: str) -> Standing:
        """Return the standing of a target.

        Raises:
            KeyError: `vin` is not in the roster.
        """
        number = self.roster.number_of[vin]
        return Standing(STATUSES[self.status[number]], int(self.since[number]), int(self.not_before_ms[number]))

    def tallies(self) -> Iterator[dict[Status, int]]:
        """Yield the number of targets by status, for one wave after the other."""
        if not len(self.roster):
            return
        status_count = len(STATUSES)
        # Each pair of a wave and a status has its own bin: a row of `status_count` bins for each wave.
        bins = self.roster.waves * status_count + self.status
        counts = np.bincount(bins, minlength=self.roster.wave_count * status_count)
        for wave_counts in counts.reshape(-1, status_count).tolist():
            yield dict(zip(STATUSES, wave_counts, strict=True))

    def _move_claim(self, vin: str, release: int) -> None:
        """Move a vehicle's answer to this release, if there is one, from its claims to its attempts."""
        for claim in self._claims.pop(vin):
            if claim.release == release:
                self._add(vin, claim)
            else:
                self._claims[vin] = (*self._claims.get(vin, ()), claim)

    def _add(self, vin: str, attempt: Attempt) -> None:
        """Join a report about an attempt with the known attempts of its vehicle."""
        number = self.roster.number_of.get(vin)
        if number is None:
            self._others[vin] = joined(self._others.get(vin, ()), attempt)
            return
        attempts = joined(self._attempts_of(number), attempt)
        self._touched[number] = 1
        if len(attempts) > 1:
            self._several[number] = attempts
            self._ending[number] = _SEVERAL
            return
        (only_attempt,) = attempts
        self._release[number] = only_attempt.release
        self._ending[number] = _UNDER_WAY if only_attempt.ending is None else STRENGTH[only_attempt.ending]
        self._ended[number] = only_attempt.ended
        self._answer[number] = -1 if only_attempt.answer is None else ANSWER_STRENGTH[only_attempt.answer]
        self._answered[number] = only_attempt.answered

    def _attempts_of(self, number: int) -> tuple[Attempt, ...]:
        """Return the attempts of the target with this number, sorted by release."""
        if number in self._several:
            return self._several[number]
        ending, answer = self._ending[number], self._answer[number]
        if ending == _NONE:
            return ()
        only_attempt = Attempt(
            release=int(self._release[number]),
            ending=None if ending == _UNDER_WAY else _ENDINGS[ending],
            ended=int(self._ended[number]),
            answer=None if answer < 0 else _ANSWERS[answer],
            answered=int(self._answered[number]),
        )
        return (only_attempt,)

    def _attempts(self) -> Iterator[tuple[str, tuple[Attempt, ...]]]:
        """Yield each vehicle that has attempts, with its attempts, whether it is in the roster or not."""
        yield from self._others.items()
        for number in (self._ending != _NONE).nonzero()[0].tolist():
            yield self.roster.vins[number], self._attempts_of(number)


def _is_unanswered(attempt: Attempt, terms: Terms) -> bool:
    """Whether the attempt was acknowledged and its answer is still awaited."""
    ending, _ = settled(attempt, terms)
    return attempt.ending is not None and ending is None


def _unix_ms_of(seqs: Numbers) -> Numbers:
    """Return when these seqs were issued, in Unix milliseconds."""
    return (seqs >> TIME_SHIFT) + EPOCH_MS
