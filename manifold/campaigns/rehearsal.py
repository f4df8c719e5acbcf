"""The dry run: runs a campaign in virtual time, with the functions that run it in production.

The caller supplies when the vehicles are connected. The dry run assumes that people approve each gate at once, and that a
connected vehicle acknowledges after a fixed time. If a vehicle does not connect before its window ends, its entry is withdrawn.
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
from manifold.campaigns.step import Decide, Effect, Policy, Release, Wake, step
from manifold.campaigns.warnings import warnings_of
from manifold.campaigns.windows import is_sent
from manifold.contracts import campaigns as r
from manifold.contracts.messages import Refused, shown
from manifold.contracts.seq import SeqSource, unix_ms_of

STOPPED = OVER | {Stage.PAUSED}
Visits = Sequence[tuple[int, int]]  # when a vehicle connects and disconnects (Unix ms), ascending, without overlaps


class Fleet(Struct, frozen=True):
    """When the vehicles are connected, and how they respond."""

    visits: Mapping[str, Visits]
    ack_ms: int = 1000  # the time from delivery to acknowledgement
    failing: frozenset[str] = frozenset()  # vehicles whose entries fail
    answers: Mapping[str, Answer | None] = {}  # None: the vehicle does not answer; a vehicle that is not listed answers `done`
    answer_ms: int = 1000  # the time from acknowledgement to answer

    def connects_ms(self, vin: str, now_ms: int) -> int | None:
        """Return the first instant at or after `now_ms` at which a vehicle is connected (Unix ms), or None if there is none."""
        for start_ms, end_ms in self.visits.get(vin, ()):
            if now_ms < end_ms:
                return max(now_ms, start_ms)
        return None

    def ending(self, vin: str) -> Ending:
        """Return how each delivered entry of this vehicle ends."""
        return Ending.FAILED if vin in self.failing else Ending.DELIVERED


class Rehearsal(Struct, frozen=True):
    """The result of a dry run: the last state of the campaign, and its facts in order."""

    campaign: Campaign
    facts: tuple[Fact, ...]

    @property
    def releases(self) -> tuple[Released, ...]:
        """The releases, oldest first."""
        return tuple(fact for fact in self.facts if isinstance(fact, Released))


class Simulation:
    """A campaign in virtual time, with a single recorder and a simulated fleet."""

    def __init__(self, fleet: Fleet, policy: Policy, now_ms: int) -> None:
        self.fleet = fleet
        self.policy = policy
        self.now_ms = now_ms
        self.campaign = Campaign()
        self.facts: list[Fact] = []
        self._seqs = SeqSource(0, clock_ms=lambda: self.now_ms)
        # A heap of the endings and answers to come: when, event number, VIN, release, ending or answer.
        self._responses: list[tuple[int, int, str, int, Ending | Answer]] = []
        self._event_numbers = count()  # responses at the same instant keep the order in which they were pushed
        visits = [(vin, start, end) for vin, spans in fleet.visits.items() for start, end in spans if start < end]
        disconnects = [(end, False, vin) for vin, _, end in visits]
        connects = [(start, True, vin) for vin, start, _ in visits]
        # The next change is at the end of the list. At the same instant, disconnects come before connects.
        self._connection_changes = sorted(disconnects + connects, reverse=True)
        self._connected = set[str]()
        self._connect_times = sorted({start for _, start, _ in visits})

    def order(self, command: r.Command) -> None:
        """Record an order now."""
        self._fold([Recorded(self._seqs.next(), command)])

    def run(self, until_ms: int) -> None:
        """Run until `until_ms` (Unix ms), or until the campaign stops."""
        while self.campaign.decided.stage not in STOPPED:
            next_times: list[int] = []
            wake_ms = self._execute_effects()
            if wake_ms is not None:
                next_times.append(wake_ms)
            if self._responses:
                next_times.append(self._responses[0][0])
            next_connect = bisect_right(self._connect_times, self.now_ms)
            if next_connect < len(self._connect_times):
                next_times.append(self._connect_times[next_connect])
            if not next_times or min(next_times) > until_ms:
                self.now_ms = until_ms
                return
            self.now_ms = min(next_times)
            self._fold(self._endings_and_answers())

    def _execute_effects(self) -> int | None:
        """Execute the effects of the present state, and of each state that follows, until no fact follows.

        Return when to look for effects again (Unix ms), or None if time alone cannot change anything.
        """
        self._update_connected()
        while self.campaign.decided.stage not in STOPPED:
            facts: list[Fact] = []
            wake_ms: int | None = None
            for effect in step(self.campaign, self.now_ms, self._connected, self.policy):
                facts += self._execute(effect)
                if isinstance(effect, Wake):
                    wake_ms = effect.at_ms
            if not facts:
                return wake_ms
            self._fold(facts)
        return None

    def _update_connected(self) -> None:
        """Apply the connects and disconnects up to now."""
        while self._connection_changes and self._connection_changes[-1][0] <= self.now_ms:
            _, connects, vin = self._connection_changes.pop()
            if connects:
                self._connected.add(vin)
            else:
                self._connected.discard(vin)

    def _execute(self, effect: Effect) -> Iterator[Fact]:
        """Yield the facts that an effect causes at once, and schedule the responses of the vehicles. A wake causes none."""
        match effect:
            case Decide(command):
                yield Recorded(self._seqs.next(), command)
                if isinstance(command, r.Hold) and command.because == "gate":
                    yield from self._approvals(command)
            case Release(wave, number, until_ms, vins):
                released = Released(self._seqs.next(), wave, number, vins, until_ms)
                for vin in vins:
                    connects_ms = self.fleet.connects_ms(vin, self.now_ms)
                    if connects_ms is not None and is_sent(connects_ms, until_ms):
                        self._schedule(connects_ms + self.fleet.ack_ms, vin, released.seq, self.fleet.ending(vin))
                    elif until_ms is not None:
                        self._schedule(until_ms, vin, released.seq, Ending.WITHDRAWN)
                    # Without a window, the entry of a vehicle that never connects stays in its queue.
                yield released

    def _approvals(self, hold: r.Hold) -> Iterator[Fact]:
        """Yield as many approvals as the held gate requires."""
        plan = self.campaign.decided.plan
        assert plan is not None
        for person in range(plan.waves[hold.wave].gate.approve):
            yield Recorded(self._seqs.next(), r.Approve(plan.campaign, f"approver {person + 1}", wave=hold.wave))

    def _endings_and_answers(self) -> Iterator[Fact]:
        """Yield the endings and answers that are due now. An acknowledgement schedules the vehicle's answer if it is required."""
        while self._responses and self._responses[0][0] <= self.now_ms:
            at_ms, _, vin, release, response = heapq.heappop(self._responses)
            if isinstance(response, Answer):
                yield Answered(self._seqs.next(), vin, release, response)
                continue
            answer = self.fleet.answers.get(vin, Answer.DONE)
            requires_answer = self.campaign.decided.terms.by_answer
            if response is Ending.DELIVERED and requires_answer and answer is not None:
                self._schedule(at_ms + self.fleet.answer_ms, vin, release, answer)
            yield Ended(self._seqs.next(), vin, release, response)

    def _schedule(self, at_ms: int, vin: str, release: int, response: Ending | Answer) -> None:
        """Let a release to a vehicle end, or be answered, at `at_ms` (Unix ms)."""
        heapq.heappush(self._responses, (at_ms, next(self._event_numbers), vin, release, response))

    def _fold(self, facts: Iterable[Fact]) -> None:
        new_facts = list(facts)
        self.facts += new_facts
        self.campaign = fold(self.campaign, new_facts)


def rehearse(
    document: dict[str, Any], targets: Sequence[r.Target], fleet: Fleet, policy: Policy, now_ms: int, *, tzdata: str = ""
) -> Rehearsal | Refused:
    """Return the dry run of a plan that is proposed and approved at `now_ms` (Unix ms), or why the plan would be refused.

    `targets` is the list of targets from the plan's source; it is empty if the plan names its vehicles itself.
    """
    simulation = _simulate_approval(document, targets, fleet, policy, now_ms, tzdata)
    if isinstance(simulation, Refused):
        return simulation
    plan = simulation.campaign.decided.plan
    assert plan is not None
    simulation.run(plan.ends_ms)
    return Rehearsal(simulation.campaign, tuple(simulation.facts))


def propose(document: dict[str, Any], targets: Sequence[r.Target] | None, policy: Policy, now_ms: int) -> Campaign | Refused:
    """Return the campaign after its plan is proposed and approved at `now_ms` (Unix ms), or why the plan would be refused.

    If `targets` is None, because the list is not known yet, the plan is only proposed.
    """
    simulation = _simulate_approval(document, targets, Fleet({}), policy, now_ms, tzdata="")
    return simulation if isinstance(simulation, Refused) else simulation.campaign


def _simulate_approval(
    document: dict[str, Any], targets: Sequence[r.Target] | None, fleet: Fleet, policy: Policy, now_ms: int, tzdata: str
) -> Simulation | Refused:
    """Return a simulation in which the plan is proposed and approved, or why the plan would be refused.

    If `targets` is None, the plan is only proposed.
    """
    simulation = Simulation(fleet, policy, now_ms)
    name = str(document.get("campaign", ""))
    try:
        simulation.order(r.Propose(name, "author", plan=document, tzdata=tzdata))
    except ValueError as exc:
        return Refused(str(exc))
    listed = targets or ()
    for start in range(0, len(listed), r.MAX_TARGETS):
        simulation.order(r.AddTargets(name, "author", targets=tuple(listed[start : start + r.MAX_TARGETS])))
    plan, ignored = simulation.campaign.decided.plan, simulation.campaign.decided.ignored
    if ignored:
        _, first_reason = ignored[0]
        return Refused(first_reason)
    if plan is None:
        return Refused("nothing is proposed")
    if plan.ends_ms <= now_ms:
        return Refused(f"ends {shown(plan.ends)}: must be in the future")
    if plan.window is not None and plan.window.length_ms < policy.ack_deadline_ms:
        remedy = f"must be open for at least the ack deadline of {policy.ack_deadline_ms / 1000:g} s"
        return Refused(f"window.to {shown(plan.window.closes)}: {remedy}")
    if targets is None:
        return simulation
    if not simulation.campaign.decided.targets:
        return Refused("the list of targets is empty")
    for person in range(1, plan.approve.people + 1):
        simulation.order(r.Approve(name, f"approver {person}"))
    return simulation if simulation.campaign.problem is None else Refused(simulation.campaign.problem)


def report(rehearsal: Rehearsal) -> bytes:
    """Encode a rehearsal as canonical JSON. Equal plans, lists, fleets and instants give equal bytes."""
    campaign = rehearsal.campaign
    decided = campaign.decided
    releases = rehearsal.releases
    wave_vins = [campaign.roster.vins_of(wave) for wave in range(len(campaign.tallies))]
    listed_vins = {target.vin for target in decided.targets}
    proposed_ms = unix_ms_of(rehearsal.facts[0].seq)
    content = {
        "plan_sha256": decided.plan_sha256,
        "tzdata": decided.tzdata,
        "state": decided.stage,
        "because": decided.because,
        "waves": [{"targets": len(vins), "vins": vins} for vins in wave_vins],
        "in_no_wave": sorted(listed_vins - campaign.roster.number_of.keys()),
        "waiting": campaign.total(Status.WAITING),
        "warnings": warnings_of(campaign, proposed_ms),
        "releases": len(releases),
        "first_release_ms": releases[0].at_ms if releases else None,
        "last_release_ms": releases[-1].at_ms if releases else None,
    }
    return msgspec.json.encode(content, order="sorted")
