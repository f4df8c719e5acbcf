"""The state machine of a campaign: its orders, by seq, give its stage. An order that does not fit is kept, and has no effect."""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from functools import reduce

from msgspec import Struct
from msgspec.structs import replace

from manifold.campaigns.facts import Again, Recorded
from manifold.campaigns.parsing import plan_of, plan_sha256
from manifold.campaigns.plan import Plan
from manifold.contracts import campaigns as r
from manifold.contracts.messages import Refused
from manifold.contracts.seq import unix_ms_of


class Stage(StrEnum):
    """Where a campaign is."""

    NEW = "new"  # nothing is proposed yet
    PROPOSED = "proposed"
    REFUSED = "refused"
    RUNNING = "running"
    HELD = "held"  # the open wave goes on, and its gate waits
    PAUSED = "paused"
    CANCELLED = "cancelled"
    COMPLETED = "completed"


S = Stage
_OPEN = frozenset({S.RUNNING, S.HELD})
_ALIVE = _OPEN | {S.PROPOSED, S.PAUSED}
_FITS: Mapping[type[r.Order], frozenset[Stage]] = {
    r.Propose: frozenset({S.NEW}),
    r.AddTargets: frozenset({S.PROPOSED}),
    r.Approve: _OPEN | {S.PROPOSED},
    r.Refuse: frozenset({S.PROPOSED}),
    r.Start: frozenset({S.PROPOSED}),
    r.Hold: _OPEN,
    r.Unhold: frozenset({S.HELD}),
    r.Pass: _OPEN,
    r.Pause: _OPEN,
    r.Resume: frozenset({S.PAUSED}),
    r.Cancel: _ALIVE,
    r.Complete: _OPEN | {S.PAUSED},
    r.Note: frozenset(S),
    r.Fence: frozenset(S),
}


class Decided(Struct, frozen=True):
    """What the orders say, up to the newest."""

    stage: Stage = S.NEW
    because: str = "nothing is proposed"
    version: int = 0  # orders that had an effect
    plan: Plan | None = None
    plan_sha256: str = ""
    tzdata: str = ""
    author: str = ""
    targets: tuple[r.Target, ...] = ()
    approved_by: frozenset[str] = frozenset()
    wave: int = 0  # the open one
    opened_ms: int = 0  # when it was opened
    held_because: str = ""  # gate, patience
    held_ms: int = 0  # since when
    passed_by: frozenset[str] = frozenset()  # who approves the gate of the open wave
    paused_from: Stage = S.RUNNING
    tripped: frozenset[str] = frozenset()  # rules that a resume has to accept
    counts_from: Mapping[str, int] = {}  # rule → the seq after which it counts
    again: tuple[Again, ...] = ()  # orders to try targets again, by seq
    epoch: int = 0  # of the newest campaigner
    tokens: Mapping[str, str] = {}  # token → digest of its order
    ignored: tuple[tuple[int, str], ...] = ()  # seq of an order without effect, and why

    @property
    def is_approved(self) -> bool:
        """Whether as many people have approved as the plan asks for."""
        return self.plan is not None and len(self.approved_by) >= self.plan.approve.people

    @property
    def is_braked(self) -> bool:
        """Whether nothing of this campaign may be sent."""
        return self.stage in (S.PAUSED, S.CANCELLED)


def decide(orders: Mapping[int, r.Command], before: Decided | None = None) -> Decided:
    """The state after all orders, by seq; `before` is the state that older ones gave."""
    return reduce(_apply, (Recorded(seq, orders[seq]) for seq in sorted(orders)), before or Decided())


def objection(decided: Decided, order: r.Command) -> str | None:
    """Why an order has no effect now; None: it has."""
    if order.token is not None and order.token in decided.tokens:
        same = decided.tokens[order.token] == _digest(order)
        return "repeats an order" if same else "its token was used for another order; choose a new one at random"
    if order.if_version is not None and order.if_version != decided.version:
        return f"if_version {order.if_version}: the campaign is at version {decided.version}; look at it again"
    if order.by.startswith(r.CAMPAIGNER) and order.epoch < decided.epoch:
        return f"epoch {order.epoch}: another campaigner has taken over with epoch {decided.epoch}"
    if decided.stage not in _FITS[type(order)]:
        return f"the campaign is {decided.stage}, because {decided.because}"
    return _own_objection(decided, order)


def _own_objection(decided: Decided, order: r.Command) -> str | None:
    match order:
        case r.Propose(plan=document, campaign=campaign):
            plan = plan_of(document)
            if isinstance(plan, Refused):
                return plan.reason
            return None if plan.campaign == campaign else f"campaign {campaign!r} proposes the plan of {plan.campaign!r}"
        case r.AddTargets():
            return "the list is frozen, because people have approved it" if decided.approved_by else None
        case r.Start():
            return None if decided.is_approved else "the plan is not approved"
        case r.Approve(by=by, wave=None):
            assert decided.plan is not None
            if decided.stage is not S.PROPOSED:
                return "the plan is approved already; name the wave whose gate is meant"
            author = decided.plan.approve.not_the_author and by == decided.author
            return f"{by} is the author; another person has to approve" if author else None
        case r.Approve(wave=int(wave)) | r.Hold(wave=wave) | r.Unhold(wave=wave):
            return _of_another_wave(decided, wave)
        case r.Pass(wave=wave):
            assert decided.plan is not None
            if not order.why and not order.by.startswith(r.CAMPAIGNER):
                return "why is missing; a person who opens a gate says why"
            if wave + 1 >= len(decided.plan.waves):
                return f"wave {wave} is the last; there is none to open"
            return _of_another_wave(decided, wave)
        case r.Resume(accept=accept):
            missing = sorted(decided.tripped - set(accept))
            return f"accept lacks {', '.join(missing)}; name the rules that tripped" if missing else None
    return None


def _of_another_wave(decided: Decided, wave: int) -> str | None:
    return None if wave == decided.wave else f"wave {wave}: the open wave is {decided.wave}"


def _apply(decided: Decided, recorded: Recorded) -> Decided:
    order = recorded.command
    reason = objection(decided, order)
    if reason is not None:
        return replace(decided, ignored=(*decided.ignored, (recorded.seq, reason)))
    after = _effect(decided, recorded.seq, order)
    tokens = decided.tokens if order.token is None else {**decided.tokens, order.token: _digest(order)}
    return replace(after, version=decided.version + 1, tokens=tokens)


def _effect(decided: Decided, seq: int, order: r.Command) -> Decided:
    now_ms = unix_ms_of(seq)
    match order:
        case r.Propose(plan=document, tzdata=tzdata, by=by):
            plan = plan_of(document)
            assert isinstance(plan, Plan)
            listed = tuple(r.Target(vin) for vin in plan.targets.vins or ())
            made = Decided(S.PROPOSED, f"{by} proposed it", plan=plan, plan_sha256=plan_sha256(document), tzdata=tzdata)
            return replace(made, author=by, targets=listed, epoch=decided.epoch, ignored=decided.ignored)
        case r.AddTargets(targets=targets):
            return replace(decided, targets=decided.targets + targets)
        case r.Approve(wave=None, by=by):
            return replace(decided, approved_by=decided.approved_by | {by})
        case r.Approve(by=by):
            return replace(decided, passed_by=decided.passed_by | {by})
        case r.Refuse():
            return replace(decided, stage=S.REFUSED, because=_because("refused", order))
        case r.Start():
            return replace(decided, stage=S.RUNNING, because="it is approved", opened_ms=now_ms)
        case r.Hold(because=cause):
            words = "the soak runs, or an approval is missing" if cause == "gate" else "the patience of the gate is over"
            return replace(decided, stage=S.HELD, because=words, held_because=cause, held_ms=now_ms)
        case r.Unhold():
            return replace(decided, stage=S.RUNNING, because="the gate's conditions broke", held_because="", held_ms=0)
        case r.Pass(wave=wave):
            opened = replace(decided, stage=S.RUNNING, because=_because(f"gate of wave {wave} passed", order), opened_ms=now_ms)
            return replace(opened, wave=wave + 1, held_because="", held_ms=0, passed_by=frozenset())
        case r.Pause(rule=rule):
            tripped = decided.tripped if rule is None else decided.tripped | {rule}
            because = _because("paused" if rule is None else f"rule {rule} tripped", order)
            return replace(decided, stage=S.PAUSED, because=because, paused_from=decided.stage, tripped=tripped)
        case r.Resume(accept=accept):
            counts_from = {**decided.counts_from, **dict.fromkeys(accept, seq)}
            resumed = replace(decided, stage=decided.paused_from, because=_because("resumed", order))
            return replace(resumed, tripped=frozenset(), counts_from=counts_from)
        case r.Cancel(rule=rule):
            because = _because("cancelled" if rule is None else f"rule {rule} tripped", order)
            return replace(decided, stage=S.CANCELLED, because=because)
        case r.Complete(because=cause):
            words = "every target has settled" if cause == "settled" else "its end has come"
            return replace(decided, stage=S.COMPLETED, because=words)
        case r.Note(rule=str(rule)):
            return replace(decided, counts_from={**decided.counts_from, rule: seq})
        case r.Fence(epoch=epoch):
            return replace(decided, epoch=max(epoch, decided.epoch))
    return decided


def _because(done: str, order: r.Command) -> str:
    return f"{done} by {order.by}" + (f": {order.why}" if order.why else "")


def _digest(order: r.Command) -> str:
    return hashlib.sha256(r.encode(order)).hexdigest()
