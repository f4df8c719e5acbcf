"""Folds recorded facts into the state of a campaign.

The state is a function of the set of facts: their order and their repetition change nothing. Orders are sorted by seq; releases
and endings are joined target by target. The clock is no input.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import chain

from msgspec import Struct

from manifold.campaigns.decisions import Decided, Stage, decide
from manifold.campaigns.facts import SUCCESSES, Attempt, Ended, Ending, Fact, Recorded, Released, joined
from manifold.campaigns.membership import Members, assign
from manifold.campaigns.plan import Retry
from manifold.campaigns.quantities import duration_ms
from manifold.campaigns.rate import Recent, within_a_minute
from manifold.contracts.campaigns import Command
from manifold.contracts.messages import Refused
from manifold.contracts.seq import unix_ms_of


class Status(StrEnum):
    """The state of a target: it waits, is released, or has settled in one of the ways of `Ending`."""

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


UNSETTLED = frozenset({Status.WAITING, Status.RELEASED})


class Standing(Struct, frozen=True, gc=False):
    """Where a target is."""

    status: Status
    since: int = 0  # the seq that made it so; 0: it waits from the beginning
    not_before_ms: int = 0  # of a target that waits for its retry


class Member(Struct, frozen=True, gc=False):
    """The place of a target in the campaign."""

    wave: int
    place: int  # in the draw
    zone: str | None


class Campaign(Struct, frozen=True):
    """The state of one campaign."""

    orders: Mapping[int, Command] = {}
    releases: Mapping[int, Released] = {}
    attempts: Mapping[str, tuple[Attempt, ...]] = {}
    decided: Decided = Decided()
    members: Mapping[str, Member] = {}
    problem: str | None = None  # why the waves do not fit the list of targets
    standings: Mapping[str, Standing] = {}
    tallies: tuple[Mapping[Status, int], ...] = ()  # of each wave, how many targets have which status
    recent: Recent = ()  # the releases that the rate still counts
    steps: int = 0  # the highest number of a release

    def total(self, *statuses: Status) -> int:
        """The number of targets that have one of these statuses."""
        return sum(tally[status] for tally in self.tallies for status in statuses)

    def status_of(self, vin: str) -> Status:
        """The state of a target; one that still waits when its campaign is over has settled by that."""
        status = self.standings[vin].status
        if status is not Status.WAITING:
            return status
        return {Stage.CANCELLED: Status.CANCELLED, Stage.COMPLETED: Status.EXPIRED}.get(self.decided.stage, status)


def fold(campaign: Campaign, facts: Iterable[Fact]) -> Campaign:
    """The state with more facts."""
    orders, releases, attempts = dict(campaign.orders), dict(campaign.releases), dict(campaign.attempts)
    touched: set[str] = set()
    new_releases: list[Released] = []
    for fact in facts:
        match fact:
            case Recorded(seq, command):
                orders.setdefault(seq, command)
            case Released(seq=seq) if seq not in releases:
                releases[seq] = fact
                new_releases.append(fact)
                for vin in fact.vins:
                    attempts[vin] = joined(attempts.get(vin, ()), Attempt(seq))
                touched.update(fact.vins)
            case Ended(seq, vin, release, ending):
                attempts[vin] = joined(attempts.get(vin, ()), Attempt(release, ending, seq))
                touched.add(vin)
    decided = _decided(campaign, orders)
    members, problem, standings = campaign.members, campaign.problem, dict(campaign.standings)
    tallies = tuple(Counter(tally) for tally in campaign.tallies)
    if (decided.plan, decided.targets) != (campaign.decided.plan, campaign.decided.targets):
        members, problem, tallies = _members(decided)
        standings = dict.fromkeys(members, Standing(Status.WAITING))
        touched = set(attempts)
    retry = None if decided.plan is None else decided.plan.retry
    for vin in touched & members.keys():
        tally = tallies[members[vin].wave]
        tally[standings[vin].status] -= 1
        standings[vin] = standing(attempts[vin], retry)
        tally[standings[vin].status] += 1
    recent = within_a_minute(
        chain(campaign.recent, ((release.at_ms, release.seq, len(release.vins)) for release in new_releases))
    )
    steps = max((release.step for release in new_releases), default=0)
    return Campaign(
        orders,
        releases,
        attempts,
        decided,
        members,
        problem,
        standings,
        tallies,
        recent,
        max(steps, campaign.steps),
    )


def _decided(campaign: Campaign, orders: Mapping[int, Command]) -> Decided:
    """The orders' state. Only what is older than something known makes all of them be applied again."""
    new = {seq: order for seq, order in orders.items() if seq not in campaign.orders}
    if not new:
        return campaign.decided
    return decide(new, campaign.decided) if min(new) > max(campaign.orders, default=0) else decide(orders)


def standing(attempts: tuple[Attempt, ...], retry: Retry | None) -> Standing:
    """Where a target is after these attempts, oldest first. An acknowledgement of any of them settles it."""
    success = next((attempt for attempt in reversed(attempts) if attempt.ending in SUCCESSES), None)
    if success is not None:
        return Standing(Status(str(success.ending)), success.ended)
    under_way = next((attempt for attempt in reversed(attempts) if attempt.ending is None), None)
    if under_way is not None:
        return Standing(Status.RELEASED, under_way.release)
    last = attempts[-1]
    if last.ending is Ending.WITHDRAWN:
        return Standing(Status.WAITING, last.ended)
    if last.ending is Ending.FAILED and retry is not None:
        failures = sum(attempt.ending is Ending.FAILED for attempt in attempts)
        if failures <= retry.times:
            return Standing(Status.WAITING, last.ended, unix_ms_of(last.ended) + duration_ms(retry.after))
    return Standing(Status(str(last.ending)), last.ended)


def _members(decided: Decided) -> tuple[Mapping[str, Member], str | None, tuple[Counter[Status], ...]]:
    if decided.plan is None or not decided.targets:
        return {}, "the list of targets is empty", ()
    waves: Members | Refused = assign(decided.plan, decided.targets)
    if isinstance(waves, Refused):
        return {}, waves.reason, ()
    members = {
        target.vin: Member(wave, place, target.zone) for wave, targets in enumerate(waves) for place, target in enumerate(targets)
    }
    return members, None, tuple(Counter({Status.WAITING: len(targets)}) for targets in waves)
