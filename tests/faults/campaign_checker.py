"""Proves what docs/guides/campaigns.md promises of a campaign on a history, by what vehicles and receipts told. Pure.

Lines of a campaign have its id as `request`. An entry is a vehicle and the seq of a release. The words, exactly:

- released twice: a target that a release names although no earlier entry of it had been withdrawn, or had failed, before.
- sent while braked: an entry that was put in flight and reached its vehicle while the brake was on, `BRAKE_S` after its receipt
  or later. What was put in flight before may arrive: no brake takes it back.
- outside its window: an entry that was put in flight, and arrived, after the end that its release names.
- over its rate: releases of which those of some 60 s, by the clock that gave the seqs, name more targets than the rate allows.
- campaign lost: targets that never got it by the end of the history.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from manifold.contracts.outcomes import Outcome
from tests.faults.history import Line, What
from tests.faults.verdict import Breach, Verdict

BRAKE_S = 2.0
MINUTE_S = 60.0
AGAIN = (Outcome.WITHDRAWN.value, Outcome.FAILED.value)


def without_campaigns(lines: Sequence[Line]) -> tuple[list[Line], dict[str, list[Line]]]:
    """The lines about other entries, and those about each campaign; both in the order of time."""
    campaign_of = {line.seq: line.request for line in lines if line.what is What.RELEASED}
    named = {line.request for line in lines if line.what in (What.TARGETED, What.BRAKED, What.RELEASED)}
    others, found = list[Line](), dict[str, list[Line]]()
    for line in lines:
        name = line.request if line.request in named else campaign_of.get(line.seq) if line.seq is not None else None
        (others if name is None else found.setdefault(name, [])).append(line)
    return others, found


def rate_of(lines: Iterable[Line]) -> int | None:
    """The targets that may be released in 60 s, as the note of a target says, such as "60 a minute"; None: any."""
    notes = (line.note for line in lines if line.what is What.TARGETED and line.note)
    return next((int(note.split()[0]) for note in notes), None)


def check_campaign(lines: Iterable[Line], verdict: Verdict, *, per_minute: int | None = None) -> None:
    """Add a campaign's part to the verdict; its lines are in the order of time."""
    told = list(lines)
    brakes = [(line.at + BRAKE_S, line.until or float("inf")) for line in told if line.what is What.BRAKED]
    until = {line.seq: line.until for line in told if line.what is What.RELEASED}
    _check_releases(told, verdict)
    if per_minute is not None:
        _check_rate(told, per_minute, verdict)
    targets = {line.vin for line in told if line.what is What.TARGETED}
    got, newest = set[str](), dict[str, Line]()  # newest: what was put in flight last for each vehicle
    for line in told:
        if line.what is What.PUBLISHED:
            newest[line.vin] = line
        elif line.what is What.DELIVERED:
            got.add(line.vin)
            _check_copy(line, newest.get(line.vin), brakes, until, verdict)
    verdict.campaign_targets += len(targets)
    verdict.campaign_delivered += len(got & targets)
    verdict.breach(Breach.CAMPAIGN_LOST, [(vin, 0) for vin in sorted(targets - got)])


def _check_copy(
    line: Line,
    published: Line | None,
    brakes: Sequence[tuple[float, float]],
    until: Mapping[int | None, float | None],
    verdict: Verdict,
) -> None:
    if published is None or line.dup:  # the broker's own repetition
        return
    entry = (line.vin, published.seq or 0)
    if any(since < published.at and line.at < end for since, end in brakes):
        verdict.breach(Breach.SENT_WHILE_BRAKED, [entry])
    end = until.get(published.seq)
    if end is not None and published.at > end:
        verdict.breach(Breach.OUTSIDE_ITS_WINDOW, [entry])


def _check_releases(told: Sequence[Line], verdict: Verdict) -> None:
    """Releases and the ends before them, by the seqs of the releases and by when Redis had the ends."""
    ended = {(line.vin, line.seq) for line in told if line.what in (What.ENDED, What.RECORDED) and line.note in AGAIN}
    before: dict[str, int] = {}
    for line in sorted((line for line in told if line.what is What.RELEASED), key=lambda line: line.seq or 0):
        last = before.get(line.vin)
        if last is not None and last != line.seq and (line.vin, last) not in ended:
            verdict.breach(Breach.RELEASED_TWICE, [(line.vin, line.seq or 0)])
        before[line.vin] = line.seq or 0


def _check_rate(told: Sequence[Line], per_minute: int, verdict: Verdict) -> None:
    recent = deque[float]()
    for line in sorted((line for line in told if line.what is What.RELEASED), key=lambda line: line.seq or 0):
        recent.append(line.at)
        while recent[0] <= line.at - MINUTE_S:
            recent.popleft()
        if len(recent) > per_minute:
            verdict.breach(Breach.OVER_ITS_RATE, [(line.vin, line.seq or 0)])
