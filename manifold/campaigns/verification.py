"""Recomputes a campaign from its record, and reports contradictions.

Facts are replayed by seq, with the functions that run a campaign. A release is accepted if it fits any state that was in force in
the `grace_ms` before it was recorded, because an order may be recorded while a release is on its way.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from manifold.campaigns import gates
from manifold.campaigns.decided import RELEASING, Decided, Stage
from manifold.campaigns.facts import Answered, Ended, Fact, Recorded, Released, identity
from manifold.campaigns.falsifications import Falsification, Kind, Sent, words_of
from manifold.campaigns.fold import UNSETTLED, Campaign, fold
from manifold.campaigns.ledger import Ledger
from manifold.campaigns.membership import Roster
from manifold.campaigns.quantities import duration_ms
from manifold.campaigns.rate import MINUTE_MS
from manifold.campaigns.standing import STATUSES, WAITING
from manifold.campaigns.step import totals
from manifold.campaigns.windows import span_at
from manifold.contracts import campaigns as r
from manifold.contracts.seq import unix_ms_of

GRACE_MS = 2000  # how long a campaign may take to react to an order
RULE_GRACE_MS = 10_000  # how long a rule may trip before the campaigner has to react


def verify(facts: Iterable[Fact], sent: Iterable[Sent] = (), *, grace_ms: int = GRACE_MS) -> tuple[Falsification, ...]:
    """Return the contradictions in the record of a campaign, by seq. There are none if the campaign followed its plan.

    `sent` are the first publishes of its entries. A campaign has `grace_ms` to react to an order.
    """
    replay = _Replay(grace_ms)
    replay.run(facts)
    replay.check_sent(sent)
    return tuple(sorted(replay.findings, key=lambda finding: (finding.seq, finding.vin)))


class _Step(NamedTuple):
    """A step of the replay: at this seq the fact is applied, or only checked. Of equal seqs, facts are applied first."""

    seq: int
    is_check: bool
    fact: Fact


class _Replay:
    """A replay of the facts one by one, and its findings."""

    def __init__(self, grace_ms: int) -> None:
        self.findings: list[Falsification] = []
        self._grace_ms = grace_ms
        self._campaign = Campaign(ledger=Ledger(Roster()))  # the replay changes this ledger in place
        self._former_states = deque[tuple[int, Decided]]()  # until when a state was in force (Unix ms), and the state
        self._recent = deque[tuple[int, int]]()  # releases of the last minute: when (Unix ms), number of vehicles
        self._released_in_minute = 0  # the number of vehicles in `_recent`
        self._releases: dict[int, Released] = {}  # by seq
        self._outcomes: defaultdict[int, list[Ended]] = defaultdict(list)  # by seq of the release
        self._tripping_rule, self._tripping_since_ms = "", 0  # the rule that trips, and since when (Unix ms)
        self._reported_rules: set[str] = set()  # rules that trip and are reported already
        self._brakes: list[tuple[int, bool]] = [(0, False)]  # when the brake changed (Unix ms), and whether it was set

    def run(self, facts: Iterable[Fact]) -> None:
        """Replay all facts."""
        distinct = {identity(fact): fact for fact in facts}
        steps = [_Step(fact.seq, False, fact) for fact in distinct.values()]
        for fact in distinct.values():
            if isinstance(fact, Recorded) and fact.command.by.startswith(r.CAMPAIGNER):
                # A decision of a campaigner is applied at its own seq, and checked just after the newest fact that the campaigner
                # knew when it decided. A fence depends on no fact, and names none.
                known_upto = fact.command.seen or fact.seq
                steps.append(_Step(known_upto, True, fact))
        for _, is_check, fact in sorted(steps, key=lambda step: (step.seq, step.is_check)):
            if isinstance(fact, Ended):
                self._campaign.ledger.add_ending(fact)
                self._outcomes[fact.release].append(fact)
            elif isinstance(fact, Answered):
                self._campaign.ledger.add_answer(fact)  # unlike an ending, an answer without its release is no finding
            elif isinstance(fact, Released):
                self._check_and_apply_release(fact)
            elif is_check:
                self._check_decision(fact)
            else:
                self._apply_order(fact)
        self._check_completeness()

    def check_sent(self, sent: Iterable[Sent]) -> None:
        """Compare publishes with their releases, with the windows of these, and with the brakes. Call this after `run`."""
        brake_times = [at_ms for at_ms, _ in self._brakes]
        for publish in sent:
            release = self._releases.get(publish.release)
            if release is None or publish.vin not in release.vins:
                self._report(Kind.NOT_A_TARGET, publish.release, "was sent, and is in no release on record", publish.vin)
                continue
            if release.until_ms is not None and publish.at_ms >= release.until_ms:
                detail = f"was sent {publish.at_ms - release.until_ms} ms after its window had ended"
                self._report(Kind.OUTSIDE_WINDOW, publish.release, detail, publish.vin)
            last_change = bisect_right(brake_times, publish.at_ms) - 1
            since_ms, is_braked = self._brakes[last_change]
            braked_ms = publish.at_ms - since_ms
            if is_braked and braked_ms > self._grace_ms:
                self._report(Kind.AFTER_STOP, publish.release, f"was sent {braked_ms} ms after the brake", publish.vin)

    def _report(self, kind: Kind, seq: int, detail: str, vin: str = "") -> None:
        self.findings.append(Falsification(kind, seq, detail, vin))

    def _with_standings(self) -> Campaign:
        """Return the campaign after updating the standing of its targets in its ledger."""
        self._campaign.ledger.update_standings(self._campaign.decided.terms, of_all=False)
        return self._campaign

    def _with_tallies(self) -> Campaign:
        """Return the campaign after updating the standing of its targets and their number by status."""
        return replace(self._with_standings(), tallies=tuple(self._campaign.ledger.tallies()))

    def _apply_order(self, fact: Recorded) -> None:
        """Apply an order, and keep the state before it with the time until which it was in force."""
        old = self._with_standings().decided
        self._campaign = fold(self._campaign, [fact])
        new = self._campaign.decided
        at_ms = unix_ms_of(fact.seq)
        self._former_states.append((at_ms, old))
        if new.is_braked != old.is_braked:
            self._brakes.append((at_ms, new.is_braked))
        has_effect = len(new.ignored) == len(old.ignored)
        if isinstance(fact.command, r.Start) and not has_effect and not old.is_approved:
            self._report(Kind.WITHOUT_APPROVAL, fact.seq, f"was started with the approvals of {len(old.approved_by)} people")

    def _check_decision(self, fact: Recorded) -> None:
        """Compare a decision of the campaigner with the state and counts that the campaigner knew."""
        campaign = self._with_tallies()
        order = fact.command
        at_ms = unix_ms_of(fact.seq)
        decided, plan = campaign.decided, campaign.decided.plan
        if plan is None or not len(campaign.roster):  # nothing to recount; `_apply_order` reports a start without approval
            return
        if isinstance(order, r.Start) and at_ms < plan.starts_ms:
            self._report(Kind.TOO_EARLY, fact.seq, f"was started {plan.starts_ms - at_ms} ms before its start")
        if isinstance(order, r.Silent) and at_ms < order.before_ms + plan.success.within_ms:
            early_ms = order.before_ms + plan.success.within_ms - at_ms
            self._report(Kind.TOO_EARLY, fact.seq, f"has vehicles silent {early_ms} ms before their answers were due")
        if isinstance(order, r.Hold | r.Unhold | r.Pass) and order.wave < len(plan.waves):
            self._compare_counts(fact.seq, order.counts, gates.counts_of(campaign, order.wave))
        if isinstance(order, r.Pass) and order.wave == decided.wave:  # a pass of another wave has no effect
            self._check_pass(fact.seq, at_ms, campaign)
        if isinstance(order, r.Complete):
            self._compare_counts(fact.seq, order.counts, totals(campaign))
            if order.because == "ends" and at_ms < plan.ends_ms:
                self._report(Kind.TOO_EARLY, fact.seq, f"was completed {plan.ends_ms - at_ms} ms before its end")
            open_targets = campaign.total(*UNSETTLED)
            if order.because == "settled" and open_targets:
                self._report(Kind.LOST, fact.seq, f"was completed while {open_targets} targets had not settled")
        if isinstance(order, r.Pause | r.Cancel | r.Note):
            self._check_rule_counts(fact.seq, order, campaign)

    def _check_rule_counts(self, seq: int, order: r.Pause | r.Cancel | r.Note, campaign: Campaign) -> None:
        """Check the counts of the rule by which the campaigner gave this order.

        The counts of a rule over a duration are not checked, because they depend on the exact instant of the decision.
        """
        assert campaign.decided.plan is not None
        for rule in campaign.decided.plan.rules:
            if rule.name == order.rule and rule.where in ("wave", "campaign"):
                recounted = gates.rule_counts(campaign, rule, order.counts.get("wave"), unix_ms_of(seq))
                stated = {name: order.counts.get(name, 0) for name in recounted}
                self._compare_counts(seq, stated, recounted)

    def _compare_counts(self, seq: int, stated: r.Counts, recounted: r.Counts) -> None:
        if stated != recounted:
            self._report(Kind.MISCOUNTED, seq, f"says {words_of(stated)}; the record has {words_of(recounted)}")

    def _check_pass(self, seq: int, at_ms: int, campaign: Campaign) -> None:
        """Check that the gate of the open wave could pass: its conditions, approvals and soak."""
        decided = campaign.decided
        assert decided.plan is not None
        gate = decided.plan.waves[decided.wave].gate
        counts = gates.counts_of(campaign, decided.wave)
        if not gates.is_met(gate, counts):
            self._report(Kind.GATE, seq, f"wave {decided.wave} was passed with {words_of(counts)}")
        if len(decided.passed_by) < gate.approve:
            approvals = f"{len(decided.passed_by)} of {gate.approve} people"
            self._report(Kind.WITHOUT_APPROVAL, seq, f"wave {decided.wave} was passed with the approval of {approvals}")
        since_ms = decided.held_ms if decided.held_because == "gate" else at_ms
        if at_ms < since_ms + duration_ms(gate.soak):
            self._report(Kind.GATE, seq, f"wave {decided.wave} was passed after a soak of {at_ms - since_ms} ms")

    def _check_and_apply_release(self, fact: Released) -> None:
        """Check a release against the states that were in force in the grace time before it, then apply the release."""
        while self._former_states and self._former_states[0][0] <= fact.at_ms - self._grace_ms:
            self._former_states.popleft()
        present = self._campaign.decided
        states = [present, *(decided for _, decided in self._former_states)]
        releasing_states = [decided for decided in states if decided.stage in RELEASING]
        self._count_in_last_minute(fact)
        if releasing_states:
            self._check_rate(fact, releasing_states)
            self._check_rules(fact)
            self._check_targets(fact, releasing_states)
        else:
            kind = Kind.WITHOUT_APPROVAL if present.stage in (Stage.NEW, Stage.PROPOSED) else Kind.AFTER_STOP
            detail = f"{len(fact.vins)} vehicles were released while it was {present.stage}, because {present.because}"
            self._report(kind, fact.seq, detail)
        self._releases[fact.seq] = fact
        self._campaign.ledger.add_release(fact)

    def _count_in_last_minute(self, fact: Released) -> None:
        """Add the vehicles of a release to those released in the last minute, and drop releases that are older."""
        while self._recent and self._recent[0][0] <= fact.at_ms - MINUTE_MS:
            _, number = self._recent.popleft()
            self._released_in_minute -= number
        self._recent.append((fact.at_ms, len(fact.vins)))
        self._released_in_minute += len(fact.vins)

    def _check_rate(self, fact: Released, states: Iterable[Decided]) -> None:
        """Check that no more vehicles were released in the last minute than any of the states allows."""
        plans = [decided.plan for decided in states if decided.plan is not None]
        if all(plan.rate is None for plan in plans):  # none has a limit
            return
        successes = self._with_tallies().total(*gates.SUCCESSES)
        allowed = max(plan.per_minute(successes) for plan in plans)
        if self._released_in_minute > allowed:
            detail = f"makes {self._released_in_minute} releases in 60 s; {allowed} are allowed"
            self._report(Kind.OVER_RATE, fact.seq, detail)

    def _check_rules(self, fact: Released) -> None:
        """Check that no rule trips for longer than the campaigner may take to react. Report a rule once, until none trips."""
        plan = self._campaign.decided.plan
        if plan is None or not plan.rules or self._campaign.decided.stage not in RELEASING:  # no rules, or it is stopped already
            return
        tripped = gates.tripped(self._with_tallies(), fact.at_ms)
        if tripped is None:
            self._tripping_rule = ""
            self._reported_rules.clear()
            return
        name = tripped.rule.name
        if name != self._tripping_rule:  # of another rule, it is not known whether it trips all the time
            self._tripping_rule, self._tripping_since_ms = name, fact.at_ms
        tripping_ms = fact.at_ms - self._tripping_since_ms
        if tripping_ms > RULE_GRACE_MS and name not in self._reported_rules:
            self._report(Kind.RULE, fact.seq, f"rule {name} trips since {tripping_ms} ms, with {words_of(tripped.counts)}")
            self._reported_rules.add(name)

    def _check_targets(self, fact: Released, states: list[Decided]) -> None:
        """Check wave, status and retry time of each vehicle in a release, and its window. One of the states has to allow it."""
        campaign = self._with_standings()
        roster, ledger = campaign.roster, campaign.ledger
        if fact.wave > max(decided.wave for decided in states):
            self._report(Kind.GATE, fact.seq, f"wave {fact.wave} was released while wave {states[0].wave} was open")
        for vin in fact.vins:
            number = roster.number_of.get(vin)
            if number is None or roster.waves[number] != fact.wave:
                self._report(Kind.NOT_A_TARGET, fact.seq, f"is not a target of wave {fact.wave}", vin)
                continue
            if ledger.status[number] != WAITING:
                self._report(Kind.RELEASED_TWICE, fact.seq, f"was {STATUSES[ledger.status[number]]} already", vin)
            elif ledger.not_before_ms[number] > fact.at_ms:
                early_ms = int(ledger.not_before_ms[number]) - fact.at_ms
                self._report(Kind.TOO_EARLY, fact.seq, f"was released {early_ms} ms before its retry", vin)
        self._check_windows(fact, states)

    def _check_windows(self, fact: Released, states: list[Decided]) -> None:
        """Check for each zone with targets in a release that its window was open in at least one of the states."""
        roster = self._campaign.roster
        vins_of_zone: defaultdict[str | None, list[str]] = defaultdict(list)
        for vin in fact.vins:
            if vin in roster:
                vins_of_zone[roster.zone_of(vin)].append(vin)
        for zone, vins in vins_of_zone.items():
            if not any(_is_in_window(fact, decided, zone) for decided in states):
                detail = f"was released in zone {zone} with {fact.until_ms} as the end of its window"
                for vin in vins:
                    self._report(Kind.OUTSIDE_WINDOW, fact.seq, detail, vin)

    def _check_completeness(self) -> None:
        """Check that releases are numbered without gaps, and that every outcome has its release."""
        steps = {release.step for release in self._releases.values()}
        missing_steps = set(range(1, max(steps, default=0))) - steps
        for step in sorted(missing_steps):
            self._report(Kind.LOST, self._campaign.newest, f"release {step} is not on record")
        for seq, outcomes in self._outcomes.items():
            vins = set(self._releases[seq].vins) if seq in self._releases else set()
            for outcome in outcomes:
                if outcome.vin not in vins:
                    detail = f"is {outcome.ending}, and no release {seq} to it is on record"
                    self._report(Kind.LOST, outcome.seq, detail, outcome.vin)


def _is_in_window(fact: Released, decided: Decided, zone: str | None) -> bool:
    """Whether the plan's window is open in `zone` at the instant of the release, and ends at the `until_ms` of the release."""
    assert decided.plan is not None
    window = decided.plan.window
    if window is None:
        return fact.until_ms is None
    span = span_at(window, window.zone_of(zone), fact.at_ms)
    return span.is_open and span.until_ms == fact.until_ms
