"""Checks in a history that a campaign kept what docs/guides/campaigns.md promises. Pure.

Lines of a campaign have its id as `request`. An entry is a vehicle and the seq of a release. The breaches:

- released twice: a target of a second release, although its entry of the release before had not been withdrawn, and had not
  failed, when the second entry reached Redis; by the clocks of Redis and the dispatcher, since runs move the recorder's.
- sent while braked: an entry that was put in flight and reached its vehicle while the brake was on, `BRAKE_S` after its receipt
  or later. What was put in flight before may arrive: no brake takes it back.
- outside its window: an entry that was put in flight, and arrived, after the end that its release names.
- over its rate: releases that name more targets in some 60 s, by the clock that gave the seqs, than the rate allows.
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
IN_REDIS = (What.ENQUEUED, What.PARKED, What.PUBLISHED)


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
    ordered = list(lines)
    brakes = [(line.at + BRAKE_S, line.until or float("inf")) for line in ordered if line.what is What.BRAKED]
    until = {line.seq: line.until for line in ordered if line.what is What.RELEASED}
    _check_releases(ordered, verdict)
    if per_minute is not None:
        _check_rate(ordered, per_minute, verdict)
    targets = {line.vin for line in ordered if line.what is What.TARGETED}
    got, newest = set[str](), dict[str, Line]()  # newest: what was put in flight last for each vehicle
    for line in ordered:
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


def _check_releases(ordered: Sequence[Line], verdict: Verdict) -> None:
    """Check for each release, by seq, that the vehicle's entry of the release before had ended when Redis got the new one."""
    ended, reached = dict[tuple[str, int | None], float](), dict[tuple[str, int | None], float]()
    for line in ordered:
        if line.what in (What.ENDED, What.RECORDED) and line.note in AGAIN:
            ended.setdefault((line.vin, line.seq), line.at)
        elif line.what in IN_REDIS:
            reached.setdefault((line.vin, line.seq), line.at)
    before: dict[str, int | None] = {}
    for line in sorted((line for line in ordered if line.what is What.RELEASED), key=lambda line: line.seq or 0):
        last = before.get(line.vin)
        if last is not None and last != line.seq:
            end = ended.get((line.vin, last))
            if end is None or end > reached.get((line.vin, line.seq), end):
                verdict.breach(Breach.RELEASED_TWICE, [(line.vin, line.seq or 0)])
        before[line.vin] = line.seq


def _check_rate(ordered: Sequence[Line], per_minute: int, verdict: Verdict) -> None:
    recent = deque[float]()
    for line in sorted((line for line in ordered if line.what is What.RELEASED), key=lambda line: line.seq or 0):
        recent.append(line.at)
        while recent[0] <= line.at - MINUTE_S:
            recent.popleft()
        if len(recent) > per_minute:
            verdict.breach(Breach.OVER_ITS_RATE, [(line.vin, line.seq or 0)])
