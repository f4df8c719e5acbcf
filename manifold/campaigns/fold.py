"""Folds recorded facts into the state of a campaign.

The state is a function of the set of facts: neither the order in which facts arrive nor their repetition changes it. Orders are
sorted by seq; releases and endings are joined target by target. The clock is no input.
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
    tallies: tuple[Mapping[Status, int], ...] = ()  # for each wave, the number of targets by status
    recent: Recent = ()  # the releases that still count for the rate
    last_step: int = 0  # the highest `step` of any release
    newest: int = 0  # the highest seq of any fact

    @property
    def roster(self) -> Roster:
        """The numbered targets. The roster is empty until the first approval, which freezes the list of targets."""
        return self.ledger.roster

    def total(self, *statuses: Status) -> int:
        """The number of targets that have one of these statuses."""
        return sum(tally[status] for tally in self.tallies for status in statuses)

    def standing_of(self, vin: str) -> Standing:
        """The standing of a target."""
        return self.ledger.standing_of(vin)

    def status_of(self, vin: str) -> Status:
        """The status of a target. A target that still waits when its campaign is over counts as cancelled or expired."""
        return self.settled_by_the_end(self.standing_of(vin).status)

    def settled_by_the_end(self, status: Status) -> Status:
        """Return `status`, except that WAITING becomes CANCELLED in a cancelled campaign and EXPIRED in a completed one."""
        if status is Status.WAITING and self.decided.stage is Stage.CANCELLED:
            return Status.CANCELLED
        if status is Status.WAITING and self.decided.stage is Stage.COMPLETED:
            return Status.EXPIRED
        return status


def fold(campaign: Campaign, facts: Iterable[Fact]) -> Campaign:
    """Return the state of the campaign with more facts.

    The cost grows with the number of new facts; in addition, some 40 bytes per target are copied.
    """
    orders = dict(campaign.orders)
    target_facts: list[Released | Ended | Answered] = []
    newest = campaign.newest
    for fact in facts:
        newest = max(newest, fact.seq)
        if isinstance(fact, Recorded):
            orders.setdefault(fact.seq, fact.command)
        else:
            target_facts.append(fact)
    old_decided = campaign.decided
    decided = _decided(campaign, orders)
    problem, ledger = campaign.problem, campaign.ledger
    is_redrawn = _roster_inputs(decided) != _roster_inputs(old_decided)
    # The roster is drawn before facts are added to the ledger, because that is far faster for vehicles that are in the roster.
    if is_redrawn:
        roster, problem = _roster(decided)
        ledger = ledger.moved_to(roster)
    elif target_facts or decided is not old_decided:
        ledger = ledger.copy()  # it is changed below; that of `campaign` stays as it is
    releases = dict(campaign.releases)
    last_step = campaign.last_step
    new_releases: list[tuple[int, int, int]] = []  # when (Unix ms), seq, how many targets
    for fact in target_facts:
        if isinstance(fact, Ended):
            ledger.add_ending(fact)
        elif isinstance(fact, Answered):
            ledger.add_answer(fact)
        elif fact.seq not in releases:  # a release may be read twice, and counts once
            releases[fact.seq] = len(fact.vins)
            ledger.add_release(fact)
            new_releases.append((fact.at_ms, fact.seq, len(fact.vins)))
            last_step = max(last_step, fact.step)
    if ledger is not campaign.ledger:
        ledger.update_standings(decided.terms, of_all=is_redrawn or decided.terms != old_decided.terms)
    recent = recent_of(chain(campaign.recent, new_releases))
    return Campaign(orders, releases, decided, problem, ledger, tuple(ledger.tallies()), recent, last_step, newest)


def _decided(campaign: Campaign, orders: Mapping[int, Command]) -> Decided:
    """Return the state after all orders. If a new order is older than a known one, all orders are applied again."""
    new_orders = {seq: order for seq, order in orders.items() if seq not in campaign.orders}
    if not new_orders:
        return campaign.decided
    newest_known = max(campaign.orders, default=0)
    if min(new_orders) > newest_known:
        return decide(new_orders, campaign.decided)
    return decide(orders)


def _roster_inputs(decided: Decided) -> object:
    """Return everything on which the roster depends, to be compared; None while targets may still be listed.

    As long as it is None, no roster is drawn, so that a long list, which is recorded in parts, is drawn only once.
    """
    if decided.plan is None or (decided.is_proposal and not decided.approved_by):
        return None
    return decided.plan.campaign, [(wave.name, wave.vins, wave.size) for wave in decided.plan.waves], decided.targets


def _roster(decided: Decided) -> tuple[Roster, str | None]:
    """Draw the roster, and return it with the reason why it could not be drawn, in which case it is empty (None: no problem).

    While targets may still be listed, an empty roster is no problem.
    """
    if decided.plan is None or _roster_inputs(decided) is None:
        return Roster(), None
    if not decided.targets:
        return Roster(), "the list of targets is empty"
    members = assign(decided.plan, decided.targets)
    if isinstance(members, Refused):
        return Roster(), members.reason
    return Roster(members), None
