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
    effective_ending,
    joined,
)
from manifold.campaigns.membership import Numbers, Roster
from manifold.campaigns.quantities import duration_ms
from manifold.campaigns.standing import CODES, RELEASED, STATUSES, WAITING, Standing, Status, standing
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT, unix_ms_of

_ENDINGS, _ANSWERS = tuple(Ending), tuple(Answer)
# Values of the column `_ending`. A value of 0 or more is the strength of the ending of the target's only attempt, which is the
# index of the ending in `_ENDINGS`.
_SEVERAL = -3  # the target has several attempts, which are in the dictionary
_NONE = -2  # the target has no attempt
_UNDER_WAY = -1  # the target's only attempt has not ended
_STATUS_OF_SEVERAL = WAITING  # without meaning, because targets with several attempts are judged one by one
_STATUS_OF_WITHDRAWN = WAITING
_STATUS_OF_OTHER_ENDINGS = [CODES[Status(str(ending))] for ending in _ENDINGS[1:]]
# The status code that follows from a value of `_ending`. The index is the value minus `_SEVERAL`, which is the lowest value.
_STATUS_OF_ENDING = np.array([_STATUS_OF_SEVERAL, WAITING, RELEASED, _STATUS_OF_WITHDRAWN, *_STATUS_OF_OTHER_ENDINGS], np.int8)
_ENDING_OF_ANSWER = np.array([STRENGTH[ENDING_OF[answer]] for answer in _ANSWERS], np.int8)
_NO_ANSWER = -1  # in the column `_answer`; any other value is the index of the answer in `_ANSWERS`
_DELIVERED = STRENGTH[Ending.DELIVERED]
_NO_SILENCE = Silence(0, 1 << 62)  # stands after the last silence, for acknowledgements that none of them covers
_DICTIONARIES = ("_several", "_others", "_claims")
_COLUMNS = ("status", "since", "not_before_ms", "_release", "_ending", "_ended_seq", "_answer", "_answered_seq")


class Ledger:
    """The attempts and the standing of each target of a roster, and the attempts of other vehicles.

    A target's number in the roster is its index in every column. A ledger is changed only between `copy` and `update_standings`;
    after that it is only read.
    """

    def __init__(self, roster: Roster) -> None:
        size = len(roster)
        self.roster = roster
        self.status: NDArray[np.int8] = np.zeros(size, np.int8)
        self.since: Numbers = np.zeros(size, np.int64)  # the seq of the record that caused the status
        self.not_before_ms: Numbers = np.zeros(size, np.int64)
        # The target's only attempt, field by field as in `Attempt`.
        self._release: Numbers = np.zeros(size, np.int64)
        self._ending: NDArray[np.int8] = np.full(size, _NONE, np.int8)
        self._ended_seq: Numbers = np.zeros(size, np.int64)
        self._answer: NDArray[np.int8] = np.full(size, _NO_ANSWER, np.int8)
        self._answered_seq: Numbers = np.zeros(size, np.int64)
        self._several: dict[int, tuple[Attempt, ...]] = {}  # target number → all its attempts, if it has more than one
        self._others: dict[str, tuple[Attempt, ...]] = {}  # VIN of a vehicle that is not in the roster → its attempts
        self._claims: dict[str, tuple[Attempt, ...]] = {}  # VIN → answers to releases that are not known to name the vehicle
        self._touched = bytearray(size)  # 1 for each target that has changed since `update_standings`

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
        """Return a ledger with the same attempts for a different roster. The caller has to call `update_standings`."""
        moved = Ledger(roster)
        for vin, attempts in self._attempts():
            for attempt in attempts:
                moved._add(vin, attempt)
        moved._claims = self._claims.copy()
        return moved

    def add_release(self, fact: Released) -> None:
        """Add an attempt to each vehicle of a release."""
        number_of = self.roster.number_of
        # Writing single items through a memoryview is faster than through an array.
        release_column, ending_column = self._release.data, self._ending.data
        for vin in fact.vins:
            number = number_of.get(vin)
            if number is not None and ending_column[number] == _NONE:  # a target's first attempt, by far the most frequent case
                release_column[number] = fact.seq
                ending_column[number] = _UNDER_WAY
                self._touched[number] = 1
            else:
                self._add(vin, Attempt(fact.seq))
            if vin in self._claims:
                self._move_claim(vin, fact.seq)

    def add_ending(self, fact: Ended) -> None:
        """Add the ending of an entry to the attempts of its vehicle."""
        number = self.roster.number_of.get(fact.vin)
        # By far the most frequent case is the first ending of a target's only attempt.
        if number is not None and self._ending[number] == _UNDER_WAY and self._release[number] == fact.release:
            self._ending[number] = STRENGTH[fact.ending]
            self._ended_seq[number] = fact.seq
            self._touched[number] = 1
        else:
            self._add(fact.vin, Attempt(fact.release, fact.ending, fact.seq))
        if fact.vin in self._claims:
            self._move_claim(fact.vin, fact.release)

    def add_answer(self, fact: Answered) -> None:
        """Add a vehicle's answer to its attempts, or keep it as a claim.

        A vehicle may name any seq in its answer. The answer counts only once a release with that seq is known to name the
        vehicle; until then the answer is kept as a claim.
        """
        answered = Attempt(fact.release, answer=fact.answer, answered_seq=fact.seq)
        number = self.roster.number_of.get(fact.vin)
        known = self._others.get(fact.vin, ()) if number is None else self._attempts_of(number)
        if any(attempt.release == fact.release for attempt in known):
            self._add(fact.vin, answered)
        else:
            self._claims[fact.vin] = joined(self._claims.get(fact.vin, ()), answered)

    def update_standings(self, terms: Terms, *, of_all: bool) -> None:
        """Derive the standing of the targets that have changed since the last call; with `of_all`, of all targets."""
        numbers = np.arange(len(self.roster)) if of_all else np.frombuffer(self._touched, np.uint8).nonzero()[0]
        # The columns give wrong results for targets with several attempts, which are then judged one by one.
        self._judge_by_columns(numbers, terms)
        several = set(self._several) if of_all else self._several.keys() & set(numbers.tolist())
        for number in several:
            result = standing(self._several[number], terms)
            self.status[number] = CODES[result.status]
            self.since[number] = result.since
            self.not_before_ms[number] = result.not_before_ms
        self._touched = bytearray(len(self.roster))

    def _judge_by_columns(self, numbers: Numbers, terms: Terms) -> None:
        """Derive the standing of these targets as if each had at most one attempt; the same rules as in `standing`."""
        endings, ended_seqs = self._effective_endings(numbers, terms)
        status = _STATUS_OF_ENDING[endings.astype(np.int64) - _SEVERAL]
        has_ended = endings >= 0
        since = np.where(has_ended, ended_seqs, self._release[numbers])
        not_before_ms = np.zeros(len(numbers), np.int64)
        if terms.retry is not None:  # it allows at least one retry, so a first failure is always retried
            is_retried = np.isin(endings, [STRENGTH[Ending(name)] for name in terms.retry.on])
            status[is_retried] = WAITING
            not_before_ms[is_retried] = _unix_ms_of(ended_seqs[is_retried]) + duration_ms(terms.retry.after)
        for order in terms.again:  # an order to try targets again overrides the plan's retry, and an earlier order
            waits_again = np.isin(endings, [STRENGTH[ending] for ending in order.endings]) & (ended_seqs < order.seq)
            status[waits_again] = WAITING
            since[waits_again] = order.seq
            not_before_ms[waits_again] = 0
        self.status[numbers] = status
        self.since[numbers] = since
        self.not_before_ms[numbers] = not_before_ms

    def unanswered_since_ms(self, terms: Terms) -> int | None:
        """Return when the entry whose answer is awaited longest was acknowledged (Unix ms), or None if no answer is awaited.

        Call this only with `terms` that require answers.
        """
        # Of targets with a single attempt: an acknowledged target stays RELEASED until it has answered or counts as silent.
        is_awaited = (self.status == RELEASED) & (self._ending == _DELIVERED)
        acknowledgement_seqs: list[int] = self._ended_seq[is_awaited].tolist()
        for number, attempts in self._several.items():
            if self.status[number] == RELEASED:
                acknowledgement_seqs += [attempt.ended_seq for attempt in attempts if _is_unanswered(attempt, terms)]
        return unix_ms_of(min(acknowledgement_seqs)) if acknowledgement_seqs else None

    def _effective_endings(self, numbers: Numbers, terms: Terms) -> tuple[NDArray[np.int8], Numbers]:
        """Return how the only attempt of each target has ended for the campaign, and the seqs of the records that say so.

        The endings are values as in the column `_ending`. The results for targets with several attempts mean nothing.
        """
        endings, ended_seqs = self._ending[numbers], self._ended_seq[numbers]
        if not terms.by_answer:
            return endings, ended_seqs
        acknowledged = (endings == _DELIVERED).nonzero()[0]
        # An acknowledged target is ended by the first silence whose `before_ms` is not before the acknowledgement. Without such a
        # silence it is still under way.
        silences = np.array([(silence.before_ms, silence.seq) for silence in (*terms.silences, _NO_SILENCE)])
        first_silence = np.searchsorted(silences[:, 0], _unix_ms_of(ended_seqs[acknowledged]))
        is_silent = first_silence < len(terms.silences)
        endings[acknowledged] = np.where(is_silent, STRENGTH[Ending.SILENT], _UNDER_WAY)
        ended_seqs[acknowledged] = silences[first_silence, 1]
        # An answer overrides silence.
        answered = (self._answer[numbers] != _NO_ANSWER).nonzero()[0]
        endings[answered] = _ENDING_OF_ANSWER[self._answer[numbers[answered]]]
        ended_seqs[answered] = self._answered_seq[numbers[answered]]
        return endings, ended_seqs

    def standing_of(self, vin: str) -> Standing:
        """Return the standing of a target.

        Raises:
            KeyError: `vin` is not in the roster.
        """
        number = self.roster.number_of[vin]
        return Standing(STATUSES[self.status[number]], int(self.since[number]), int(self.not_before_ms[number]))

    def tallies(self) -> Iterator[dict[Status, int]]:
        """Yield the number of targets by status, for one wave after the other."""
        if not len(self.roster):  # no target is in a wave yet
            return
        status_count = len(STATUSES)
        # Each pair of a wave and a status has its own bin: a row of `status_count` bins for each wave.
        bins = self.roster.waves * status_count + self.status
        counts = np.bincount(bins, minlength=self.roster.wave_count * status_count)
        for wave_counts in counts.reshape(-1, status_count).tolist():
            yield dict(zip(STATUSES, wave_counts, strict=True))

    def _move_claim(self, vin: str, release: int) -> None:
        """Move a vehicle's answer to this release, if there is one, from its claims to its attempts."""
        claims = self._claims.pop(vin)
        other_claims = tuple(claim for claim in claims if claim.release != release)
        if other_claims:
            self._claims[vin] = other_claims
        for claim in claims:
            if claim.release == release:
                self._add(vin, claim)

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
        self._ended_seq[number] = only_attempt.ended_seq
        self._answer[number] = _NO_ANSWER if only_attempt.answer is None else ANSWER_STRENGTH[only_attempt.answer]
        self._answered_seq[number] = only_attempt.answered_seq

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
            ended_seq=int(self._ended_seq[number]),
            answer=None if answer == _NO_ANSWER else _ANSWERS[answer],
            answered_seq=int(self._answered_seq[number]),
        )
        return (only_attempt,)

    def _attempts(self) -> Iterator[tuple[str, tuple[Attempt, ...]]]:
        """Yield each vehicle that has attempts, with its attempts, whether it is in the roster or not."""
        yield from self._others.items()
        for number in (self._ending != _NONE).nonzero()[0].tolist():
            yield self.roster.vins[number], self._attempts_of(number)


def _is_unanswered(attempt: Attempt, terms: Terms) -> bool:
    """Whether the attempt was acknowledged and its answer is still awaited."""
    ending, _ = effective_ending(attempt, terms)
    return attempt.ending is not None and ending is None


def _unix_ms_of(seqs: Numbers) -> Numbers:
    """Return when these seqs were issued, in Unix milliseconds."""
    return (seqs >> TIME_SHIFT) + EPOCH_MS
