"""The dry run: runs a campaign in virtual time, with the functions that run it in production.

The presence of the fleet is given. It is assumed that people approve each gate at once, and that a connected vehicle acknowledges
after a fixed time. An entry whose vehicle does not connect before its window ends is withdrawn then.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec
from msgspec import Struct

from manifold.campaigns.decided import OVER, Stage
from manifold.campaigns.facts import Answer, Answered, Ended, Ending, Fact, Recorded, Released
from manifold.campaigns.fold import Campaign, fold
from manifold.campaigns.standing import Status
from manifold.campaigns.step import Decide, Policy, Release, Wake, step
from manifold.campaigns.warnings import warnings_of
from manifold.campaigns.windows import is_sent
from manifold.contracts import campaigns as r
from manifold.contracts.messages import Refused, shown
from manifold.contracts.seq import SeqSource, unix_ms_of

STOPPED = OVER | {Stage.PAUSED}
Visits = Sequence[tuple[int, int]]  # from when until when a vehicle is connected (Unix ms), in order, and none within another


class Fleet(Struct, frozen=True):
    """The presence of vehicles, and how they end what they get."""

    visits: Mapping[str, Visits]
    ack_ms: int = 1000
    failing: frozenset[str] = frozenset()
    answers: Mapping[str, Answer | None] = {}  # None: it stays silent; others answer `done`
    answer_ms: int = 1000  # after the acknowledgement

    def comes_after(self, vin: str, now_ms: int) -> int | None:
        """When a vehicle is connected, from `now_ms` on; None: never."""
        return next((max(now_ms, start) for start, end in self.visits.get(vin, ()) if now_ms < end), None)

    def ending(self, vin: str) -> Ending:
        """How the entries of this vehicle end."""
        return Ending.FAILED if vin in self.failing else Ending.DELIVERED


class Rehearsal(Struct, frozen=True):
    """What happened in virtual time."""

    campaign: Campaign
    facts: tuple[Fact, ...]

    @property
    def releases(self) -> tuple[Released, ...]:
        """The releases, oldest first."""
        return tuple(fact for fact in self.facts if isinstance(fact, Released))


class Simulation:
    """A campaign in virtual time: one recorder that gives seqs, and a fleet that acknowledges."""

    def __init__(self, fleet: Fleet, policy: Policy, now_ms: int) -> None:
        self.fleet, self.policy, self.now_ms = fleet, policy, now_ms
        self.campaign, self.facts = Campaign(), list[Fact]()
        self._seqs = SeqSource(0, clock_ms=lambda: self.now_ms)
        self._to_come: list[
            tuple[int, int, str, int, Ending | Answer]
        ] = []  # endings and answers: when, number, vehicle, release
        self._numbers = count()  # so that endings and answers of one instant keep their order
        visits = [(vin, start, end) for vin, spans in fleet.visits.items() for start, end in spans if start < end]
        leaves, comes = [(end, False, vin) for vin, _, end in visits], [(start, True, vin) for vin, start, _ in visits]
        self._moves = sorted(leaves + comes, reverse=True)  # the next is the last; who leaves, leaves first
        self._here = set[str]()
        self._arrivals = sorted({start for _, start, _ in visits})

    def order(self, command: r.Command) -> None:
        """Record an order now."""
        self._fold([Recorded(self._seqs.next(), command)])

    def run(self, until_ms: int) -> None:
        """Run up to `until_ms`, or until the campaign stops."""
        while self.campaign.decided.stage not in STOPPED:
            wake_ms = self._settle()
            waits = [wake_ms] if wake_ms is not None else []
            if self._to_come:
                waits.append(self._to_come[0][0])
            place = bisect_right(self._arrivals, self.now_ms)
            waits += self._arrivals[place : place + 1]
            if not waits or min(waits) > until_ms:
                self.now_ms = until_ms
                return
            self.now_ms = min(waits)
            self._fold(self._endings_and_answers())

    def _settle(self) -> int | None:
        """Ask for effects and carry them out until there are none; return when to ask again."""
        while self._moves and self._moves[-1][0] <= self.now_ms:
            _, comes, vin = self._moves.pop()
            (self._here.add if comes else self._here.discard)(vin)
        while self.campaign.decided.stage not in STOPPED:
            effects = step(self.campaign, self.now_ms, self._here, self.policy)
            facts = [fact for effect in effects for fact in self._execute(effect)]
            if not facts:
                return next((effect.at_ms for effect in effects if isinstance(effect, Wake)), None)
            self._fold(facts)
        return None

    def _execute(self, effect: Any) -> Iterator[Fact]:
        match effect:
            case Decide(command):
                yield Recorded(self._seqs.next(), command)
                if isinstance(command, r.Hold) and command.because == "gate":
                    yield from self._approvals(command)
            case Release(wave, number, until_ms, vins):
                released = Released(self._seqs.next(), wave, number, vins, until_ms)
                for vin in vins:
                    comes_ms = self.fleet.comes_after(vin, self.now_ms)
                    if comes_ms is not None and is_sent(comes_ms, until_ms):
                        self._expect(comes_ms + self.fleet.ack_ms, vin, released.seq, self.fleet.ending(vin))
                    elif until_ms is not None:
                        self._expect(until_ms, vin, released.seq, Ending.WITHDRAWN)
                yield released

    def _approvals(self, hold: r.Hold) -> Iterator[Fact]:
        plan = self.campaign.decided.plan
        assert plan is not None
        for person in range(plan.waves[hold.wave].gate.approve):
            yield Recorded(self._seqs.next(), r.Approve(plan.campaign, f"approver {person + 1}", wave=hold.wave))

    def _endings_and_answers(self) -> Iterator[Fact]:
        while self._to_come and self._to_come[0][0] <= self.now_ms:
            at_ms, _, vin, release, word = heapq.heappop(self._to_come)
            if isinstance(word, Answer):
                yield Answered(self._seqs.next(), vin, release, word)
                continue
            answer = self.fleet.answers.get(vin, Answer.DONE)
            if word is Ending.DELIVERED and self.campaign.decided.terms.by_answer and answer is not None:
                self._expect(at_ms + self.fleet.answer_ms, vin, release, answer)
            yield Ended(self._seqs.next(), vin, release, word)

    def _expect(self, at_ms: int, vin: str, release: int, word: Ending | Answer) -> None:
        heapq.heappush(self._to_come, (at_ms, next(self._numbers), vin, release, word))

    def _fold(self, facts: Iterable[Fact]) -> None:
        new = list(facts)
        self.facts += new
        self.campaign = fold(self.campaign, new)


def rehearse(
    document: dict[str, Any], targets: Sequence[r.Target], fleet: Fleet, policy: Policy, now_ms: int, *, tzdata: str = ""
) -> Rehearsal | Refused:
    """The dry run of a plan that is proposed and approved at `now_ms`, or why it would be refused.

    `targets` is the resolved list; empty, if the plan names its vehicles itself.
    """
    world = _simulate_approval(document, targets, fleet, policy, now_ms, tzdata)
    if isinstance(world, Refused):
        return world
    plan = world.campaign.decided.plan
    assert plan is not None
    world.run(plan.ends_ms)
    return Rehearsal(world.campaign, tuple(world.facts))


def propose(document: dict[str, Any], targets: Sequence[r.Target] | None, policy: Policy, now_ms: int) -> Campaign | Refused:
    """The campaign that a plan gives when it is proposed and approved at `now_ms`, or why it would be refused.

    Without `targets`, whose list is resolved later, it stays a proposal.
    """
    world = _simulate_approval(document, targets, Fleet({}), policy, now_ms, "")
    return world if isinstance(world, Refused) else world.campaign


def _simulate_approval(
    document: dict[str, Any], targets: Sequence[r.Target] | None, fleet: Fleet, policy: Policy, now_ms: int, tzdata: str
) -> Simulation | Refused:
    """Simulate that the plan is proposed and approved; refused with the reason for which it could not be."""
    world, name = Simulation(fleet, policy, now_ms), str(document.get("campaign", ""))
    try:
        world.order(r.Propose(name, "author", plan=document, tzdata=tzdata))
    except ValueError as exc:
        return Refused(str(exc))
    listed = targets or ()
    for first in range(0, len(listed), r.MAX_TARGETS):
        world.order(r.AddTargets(name, "author", targets=tuple(listed[first : first + r.MAX_TARGETS])))
    plan, ignored = world.campaign.decided.plan, world.campaign.decided.ignored
    if plan is None or ignored:
        return Refused(ignored[0][1] if ignored else "nothing is proposed")
    if plan.ends_ms <= now_ms:
        return Refused(f"ends {shown(plan.ends)}: must be in the future")
    if plan.window is not None and plan.window.length_ms < policy.ack_deadline_ms:
        long_enough = f"must be open for at least the ack deadline of {policy.ack_deadline_ms / 1000:g} s"
        return Refused(f"window.to {shown(plan.window.closes)}: {long_enough}")
    if targets is None:
        return world
    if not world.campaign.decided.targets:
        return Refused("the list of targets is empty")
    for person in range(plan.approve.people):
        world.order(r.Approve(name, f"approver {person + 1}"))
    return world if world.campaign.problem is None else Refused(world.campaign.problem)


def report(rehearsal: Rehearsal) -> bytes:
    """A rehearsal as canonical JSON: the same plan, list, fleet and instant give the same bytes."""
    campaign = rehearsal.campaign
    waves = [campaign.roster.vins_of(wave) for wave in range(len(campaign.tallies))]
    decided, releases = campaign.decided, rehearsal.releases
    listed = {target.vin for target in decided.targets}
    content = {
        "plan_sha256": decided.plan_sha256,
        "tzdata": decided.tzdata,
        "state": decided.stage,
        "because": decided.because,
        "waves": [{"targets": len(vins), "vins": vins} for vins in waves],
        "in_no_wave": sorted(listed - campaign.roster.number_of.keys()),
        "waiting": campaign.total(Status.WAITING),
        "warnings": warnings_of(campaign, unix_ms_of(rehearsal.facts[0].seq)),
        "releases": len(releases),
        "first_release_ms": releases[0].at_ms if releases else None,
        "last_release_ms": releases[-1].at_ms if releases else None,
    }
    return msgspec.json.encode(content, order="sorted")
