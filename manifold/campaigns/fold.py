"""Folds recorded facts into the state of a campaign.

The state is a function of the set of facts: their order and their repetition change nothing. Orders are sorted by seq; releases
and endings are joined target by target. The clock is no input.
"""

from collections.abc import Iterable, Mapping
from itertools import chain

from msgspec import Struct

from manifold.campaigns.decided import Decided, Stage
from manifold.campaigns.decisions import decide
from manifold.campaigns.facts import Answered, Ended, Fact, Recorded, Released
from manifold.campaigns.ledger import Ledger
from manifold.campaigns.membership import Roster, assign
from manifold.campaigns.rate import Recent, recent_of
from manifold.campaigns.standing import Standing, Status
from manifold.contracts.campaigns import Command
from manifold.contracts.messages import Refused

UNSETTLED = frozenset({Status.WAITING, Status.RELEASED})


class Campaign(Struct, frozen=True):
    """The state of one campaign."""

    orders: Mapping[int, Command] = {}
    releases: Mapping[int, int] = {}  # seq → how many vehicles it names
    decided: Decided = Decided()
    problem: str | None = None  # why the waves do not fit the list of targets
    ledger: Ledger = Ledger(Roster())
    tallies: tuple[Mapping[Status, int], ...] = ()  # of each wave, how many targets have which status
    recent: Recent = ()  # the releases that the rate still counts
    steps: int = 0  # the highest number of a release
    newest: int = 0  # the highest seq of a fact

    @property
    def roster(self) -> Roster:
        """The targets; empty until the first approval freezes the list."""
        return self.ledger.roster

    def total(self, *statuses: Status) -> int:
        """The number of targets that have one of these statuses."""
        return sum(tally[status] for tally in self.tallies for status in statuses)

    def standing_of(self, vin: str) -> Standing:
        """The standing of a target."""
        return self.ledger.standing_of(vin)

    def status_of(self, vin: str) -> Status:
        """The state of a target; one that still waits when its campaign is over has settled by that."""
        return self.settled_by_the_end(self.standing_of(vin).status)

    def settled_by_the_end(self, status: Status) -> Status:
        """The state of a target that has this status, now that the campaign is where it is."""
        if status is not Status.WAITING:
            return status
        return {Stage.CANCELLED: Status.CANCELLED, Stage.COMPLETED: Status.EXPIRED}.get(self.decided.stage, status)


def fold(campaign: Campaign, facts: Iterable[Fact]) -> Campaign:
    """The state with more facts. The cost is that of the facts, and of copying some 40 bytes per target."""
    orders, about_targets, newest = dict(campaign.orders), list[Released | Ended | Answered](), campaign.newest
    for fact in facts:
        newest = max(newest, fact.seq)
        if isinstance(fact, Recorded):
            orders.setdefault(fact.seq, fact.command)
        else:
            about_targets.append(fact)
    before, decided = campaign.decided, _decided(campaign, orders)
    problem, ledger = campaign.problem, campaign.ledger
    has_moved = _membership(decided) != _membership(before)
    if has_moved:  # first, because what is noted of targets is far cheaper than what is noted of others
        roster, problem = _roster(decided)
        ledger = ledger.moved_to(roster)
    elif about_targets or decided is not before:
        ledger = ledger.copy()
    releases, steps, fresh = dict(campaign.releases), campaign.steps, list[tuple[int, int, int]]()
    for fact in about_targets:
        if isinstance(fact, Ended):
            ledger.end(fact)
        elif isinstance(fact, Answered):
            ledger.answer(fact)
        elif fact.seq not in releases:
            releases[fact.seq] = len(fact.vins)
            ledger.release(fact)
            fresh.append((fact.at_ms, fact.seq, len(fact.vins)))
            steps = max(steps, fact.step)
    if ledger is not campaign.ledger:
        ledger.judge(decided.terms, anew=has_moved or decided.terms != before.terms)
    recent = recent_of(chain(campaign.recent, fresh))
    return Campaign(orders, releases, decided, problem, ledger, tuple(ledger.tallies()), recent, steps, newest)


def _decided(campaign: Campaign, orders: Mapping[int, Command]) -> Decided:
    """The state after all orders. If a new order is older than a known one, all are applied again."""
    new = {seq: order for seq, order in orders.items() if seq not in campaign.orders}
    if not new:
        return campaign.decided
    return decide(new, campaign.decided) if min(new) > max(campaign.orders, default=0) else decide(orders)


def _membership(decided: Decided) -> object:
    """What the roster depends on; None while targets may still be listed, so that a long list is drawn once."""
    if decided.plan is None or (decided.is_proposal and not decided.approved_by):
        return None
    return decided.plan.campaign, [(wave.name, wave.vins, wave.size) for wave in decided.plan.waves], decided.targets


def _roster(decided: Decided) -> tuple[Roster, str | None]:
    """Return the roster; it is empty before it is drawn, and also, with the reason, if the waves do not fit the list."""
    if decided.plan is None or _membership(decided) is None:
        return Roster(), None
    if not decided.targets:
        return Roster(), "the list of targets is empty"
    waves = assign(decided.plan, decided.targets)
    return (Roster(), waves.reason) if isinstance(waves, Refused) else (Roster(waves), None)
