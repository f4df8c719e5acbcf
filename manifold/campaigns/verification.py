"""Recomputes a campaign from its record, and reports contradictions.

Facts are replayed by seq, with the functions that run a campaign. A release is judged by the state that was in force when it was
recorded, or up to `grace_ms` before: an order may have been recorded while the release was on its way.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable

from msgspec.structs import replace

from manifold.campaigns import gates
from manifold.campaigns.decided import RELEASING, Decided, Stage
from manifold.campaigns.facts import Answered, Ended, Fact, Recorded, Released
from manifold.campaigns.falsifications import Falsification, Kind, Sent, words_of
from manifold.campaigns.fold import UNSETTLED, Campaign, fold
from manifold.campaigns.ledger import Ledger
from manifold.campaigns.membership import Roster
from manifold.campaigns.quantities import duration_ms
from manifold.campaigns.rate import MINUTE_MS
from manifold.campaigns.standing import STATUSES, WAITING
from manifold.campaigns.step import totals
from manifold.campaigns.windows import Span, span_at
from manifold.contracts import campaigns as r
from manifold.contracts.seq import unix_ms_of

GRACE_MS = 2000
RULE_GRACE_MS = 10_000  # the campaigner looks at least so often


def verify(facts: Iterable[Fact], sent: Iterable[Sent] = (), *, grace_ms: int = GRACE_MS) -> tuple[Falsification, ...]:
    """The contradictions in the record of a campaign, by seq; none, if it followed its plan."""
    replay = _Replay(grace_ms)
    replay.run(facts)
    replay.check_sent(sent)
    return tuple(sorted(replay.found, key=lambda each: (each.seq, each.vin)))


class _Replay:
    """A replay of the facts one by one, and its findings."""

    def __init__(self, grace_ms: int) -> None:
        self.found: list[Falsification] = []
        self._grace_ms = grace_ms
        self._campaign = Campaign(ledger=Ledger(Roster()))  # its ledger is changed here in place
        self._former = deque[tuple[int, Decided]]()  # states, and until when they were in force
        self._recent = deque[tuple[int, int]]()  # releases of the last minute: when, and of how many vehicles
        self._spent = 0  # vehicles in `_recent`
        self._releases: dict[int, Released] = {}
        self._outcomes: defaultdict[int, list[Ended]] = defaultdict(list)
        self._tripping: dict[str, int] = {}  # rule → since when it trips
        self._brakes: list[tuple[int, bool]] = [(0, False)]  # when a brake was put on or off

    def run(self, facts: Iterable[Fact]) -> None:
        """Replay all facts."""
        once = {(fact.seq, fact.vin if isinstance(fact, Ended | Answered) else ""): fact for fact in facts}
        ordered: list[tuple[int, bool, Fact]] = [(fact.seq, False, fact) for fact in once.values()]
        ordered += [  # each decision again, to be judged just after the newest fact that the campaigner knew
            (fact.command.seen or fact.seq, True, fact)
            for fact in once.values()
            if isinstance(fact, Recorded) and fact.command.by.startswith(r.CAMPAIGNER)
        ]
        for _, is_judged, fact in sorted(ordered, key=lambda each: each[:2]):
            if isinstance(fact, Ended):
                self._campaign.ledger.end(fact)
                self._outcomes[fact.release].append(fact)
            elif isinstance(fact, Answered):
                self._campaign.ledger.answer(fact)  # answers to other messages prove nothing
            elif isinstance(fact, Released):
                self._release(fact)
            elif is_judged:
                self._judge(fact)
            else:
                self._order(fact)
        self._check_completeness()

    def check_sent(self, sent: Iterable[Sent]) -> None:
        """Compare publishes with the windows of their releases, and with the brakes."""
        instants = [at_ms for at_ms, _ in self._brakes]
        for one in sent:
            release = self._releases.get(one.release)
            if release is None or one.vin not in release.vins:
                self._report(Kind.NOT_A_TARGET, one.release, "was sent, and is in no release on record", one.vin)
                continue
            if release.until_ms is not None and one.at_ms >= release.until_ms:
                detail = f"was sent {one.at_ms - release.until_ms} ms after its window had ended"
                self._report(Kind.OUTSIDE_WINDOW, one.release, detail, one.vin)
            latest = bisect_right(instants, one.at_ms) - 1
            since_ms, is_braked = self._brakes[latest]
            if is_braked and one.at_ms - since_ms > self._grace_ms:
                self._report(Kind.AFTER_STOP, one.release, f"was sent {one.at_ms - since_ms} ms after the brake", one.vin)

    def _report(self, kind: Kind, seq: int, detail: str, vin: str = "") -> None:
        self.found.append(Falsification(kind, seq, detail, vin))

    def _with_standings(self) -> Campaign:
        """The campaign with the standing of all targets."""
        self._campaign.ledger.judge(self._campaign.decided.terms, anew=False)
        return self._campaign

    def _with_tallies(self) -> Campaign:
        return replace(self._with_standings(), tallies=tuple(self._campaign.ledger.tallies()))

    def _order(self, fact: Recorded) -> None:
        before = self._with_standings().decided
        self._campaign = fold(self._campaign, [fact])
        after, at_ms = self._campaign.decided, unix_ms_of(fact.seq)
        self._former.append((at_ms, before))
        if after.is_braked != before.is_braked:
            self._brakes.append((at_ms, after.is_braked))
        if len(after.ignored) == len(before.ignored):
            return
        if isinstance(fact.command, r.Start) and not before.is_approved:
            self._report(Kind.WITHOUT_APPROVAL, fact.seq, f"was started with the approvals of {len(before.approved_by)} people")

    def _judge(self, fact: Recorded) -> None:
        """Compare a decision of the campaigner with the counts that caused it."""
        campaign, order, at_ms = self._with_tallies(), fact.command, unix_ms_of(fact.seq)
        decided, plan = campaign.decided, campaign.decided.plan
        if plan is None or not len(campaign.roster):
            return
        if isinstance(order, r.Start) and at_ms < plan.starts_ms:
            self._report(Kind.TOO_EARLY, fact.seq, f"was started {plan.starts_ms - at_ms} ms before its start")
        if isinstance(order, r.Silent) and at_ms < order.before_ms + plan.success.within_ms:
            early_ms = order.before_ms + plan.success.within_ms - at_ms
            self._report(Kind.TOO_EARLY, fact.seq, f"has vehicles silent {early_ms} ms before their answers were due")
        if isinstance(order, r.Hold | r.Unhold | r.Pass) and order.wave < len(plan.waves):
            self._compare(fact.seq, order.counts, gates.counts_of(campaign, order.wave))
        if isinstance(order, r.Pass) and order.wave == decided.wave:
            self._judge_pass(fact.seq, at_ms, campaign)
        if isinstance(order, r.Complete):
            self._compare(fact.seq, order.counts, totals(campaign))
            if order.because == "ends" and at_ms < plan.ends_ms:
                self._report(Kind.TOO_EARLY, fact.seq, f"was completed {plan.ends_ms - at_ms} ms before its end")
            open_targets = campaign.total(*UNSETTLED)
            if order.because == "settled" and open_targets:
                self._report(Kind.LOST, fact.seq, f"was completed while {open_targets} targets had not settled")
        rule = next((rule for rule in plan.rules if rule.name == getattr(order, "rule", None)), None)
        if rule is not None and isinstance(order, r.Pause | r.Cancel | r.Note) and rule.where in ("wave", "campaign"):
            counts = gates.rule_counts(campaign, rule, order.counts.get("wave"), at_ms)
            self._compare(fact.seq, {name: order.counts.get(name, 0) for name in counts}, counts)

    def _compare(self, seq: int, stated: r.Counts, recounted: r.Counts) -> None:
        if stated != recounted:
            self._report(Kind.MISCOUNTED, seq, f"says {words_of(stated)}; the record has {words_of(recounted)}")

    def _judge_pass(self, seq: int, at_ms: int, campaign: Campaign) -> None:
        decided = campaign.decided
        assert decided.plan is not None
        gate, counts = decided.plan.waves[decided.wave].gate, gates.counts_of(campaign, decided.wave)
        if not gates.holds(gate, counts):
            self._report(Kind.GATE, seq, f"wave {decided.wave} was passed with {words_of(counts)}")
        if len(decided.passed_by) < gate.approve:
            asked = f"{len(decided.passed_by)} of {gate.approve} people"
            self._report(Kind.WITHOUT_APPROVAL, seq, f"wave {decided.wave} was passed with the approval of {asked}")
        since_ms = decided.held_ms if decided.held_because == "gate" else at_ms
        if at_ms < since_ms + duration_ms(gate.soak):
            self._report(Kind.GATE, seq, f"wave {decided.wave} was passed after a soak of {at_ms - since_ms} ms")

    def _release(self, fact: Released) -> None:
        """Check a release against the states in force shortly before it, and note it for later facts."""
        while self._former and self._former[0][0] <= fact.at_ms - self._grace_ms:
            self._former.popleft()
        states = [self._campaign.decided, *(decided for _, decided in self._former)]
        in_force = [decided for decided in states if decided.stage in RELEASING]
        self._count(fact)
        if in_force:
            self._check_rate(fact, in_force)
            self._check_rules(fact)
            self._check_targets(fact, in_force)
        else:
            stage, because = states[0].stage, states[0].because
            kind = Kind.WITHOUT_APPROVAL if stage in (Stage.NEW, Stage.PROPOSED) else Kind.AFTER_STOP
            self._report(kind, fact.seq, f"{len(fact.vins)} vehicles were released while it was {stage}, because {because}")
        self._releases[fact.seq] = fact
        self._campaign.ledger.release(fact)

    def _count(self, fact: Released) -> None:
        while self._recent and self._recent[0][0] <= fact.at_ms - MINUTE_MS:
            self._spent -= self._recent.popleft()[1]
        self._recent.append((fact.at_ms, len(fact.vins)))
        self._spent += len(fact.vins)

    def _check_rate(self, fact: Released, states: Iterable[Decided]) -> None:
        plans = [decided.plan for decided in states if decided.plan is not None]
        if all(plan.rate is None for plan in plans):
            return
        successes = self._with_tallies().total(*gates.SUCCESSES)
        allowed = max(plan.per_minute(successes) for plan in plans)
        if self._spent > allowed:
            self._report(Kind.OVER_RATE, fact.seq, f"makes {self._spent} releases in 60 s; {allowed} are allowed")

    def _check_rules(self, fact: Released) -> None:
        """Whether a rule trips for longer than the campaigner may need to see it."""
        plan = self._campaign.decided.plan
        if plan is None or not plan.rules or self._campaign.decided.stage not in RELEASING:
            return
        trips = gates.tripped(self._with_tallies(), fact.at_ms)
        if trips is None:
            self._tripping.clear()
            return
        since_ms = self._tripping.setdefault(trips.rule.name, fact.at_ms)
        if fact.at_ms - since_ms > RULE_GRACE_MS:
            name = trips.rule.name
            self._report(
                Kind.RULE, fact.seq, f"rule {name} trips since {fact.at_ms - since_ms} ms, with {words_of(trips.counts)}"
            )
            self._tripping[name] = 1 << 62  # reported once

    def _check_targets(self, fact: Released, states: list[Decided]) -> None:
        """Check wave, status, retry time and window of each vehicle in a release."""
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
        for zone in dict.fromkeys(roster.zone_of(vin) for vin in fact.vins if vin in roster):
            spans = [_span(decided, zone, fact.at_ms) for decided in states]
            if not any(span.is_open and fact.until_ms == (None if span.until_ms < 0 else span.until_ms) for span in spans):
                detail = f"was released in zone {zone} with {fact.until_ms} as the end of its window"
                for vin in (vin for vin in fact.vins if vin in roster and roster.zone_of(vin) == zone):
                    self._report(Kind.OUTSIDE_WINDOW, fact.seq, detail, vin)

    def _check_completeness(self) -> None:
        """Releases are numbered without gaps, and every outcome has its release."""
        steps = {release.step for release in self._releases.values()}
        for step in sorted(set(range(1, max(steps, default=0))) - steps):
            self._report(Kind.LOST, self._campaign.newest, f"release {step} is not on record")
        for seq, outcomes in self._outcomes.items():
            vins = set(self._releases[seq].vins) if seq in self._releases else set()
            for outcome in outcomes:
                if outcome.vin not in vins:
                    detail = f"is {outcome.ending}, and no release {seq} to it is on record"
                    self._report(Kind.LOST, outcome.seq, detail, outcome.vin)


def _span(decided: Decided, zone: str | None, at_ms: int) -> Span:
    assert decided.plan is not None
    window = decided.plan.window
    return Span(True, -1) if window is None else span_at(window, window.zone_of(zone), at_ms)
