"""The state machine of a campaign: its orders, by seq, give its state. An order that does not fit is kept, and has no effect."""

from collections.abc import Mapping
from functools import reduce

from msgspec.structs import replace

from manifold.campaigns.amendments import widened
from manifold.campaigns.decided import Amendment, Decided, Stage
from manifold.campaigns.facts import Again, Ending, Recorded, Silence
from manifold.campaigns.objections import digest, objection
from manifold.campaigns.parsing import plan_of, plan_sha256
from manifold.campaigns.plan import Plan
from manifold.contracts import campaigns as r
from manifold.contracts.seq import unix_ms_of


def decide(orders: Mapping[int, r.Command], before: Decided | None = None) -> Decided:
    """The state after all orders, by seq; `before` is the state that older ones gave."""
    return reduce(_apply, (Recorded(seq, orders[seq]) for seq in sorted(orders)), before or Decided())


def _apply(decided: Decided, recorded: Recorded) -> Decided:
    order = recorded.command
    reason = objection(decided, order)
    if reason is not None:
        is_another = isinstance(order, r.Pause) and decided.stage is Stage.PAUSED
        pauses = decided.pauses | {recorded.seq} if is_another else decided.pauses
        return replace(decided, ignored=(*decided.ignored, (recorded.seq, reason)), pauses=pauses)
    after = _effect(decided, recorded.seq, order)
    tokens = decided.tokens if order.token is None else {**decided.tokens, order.token: digest(order)}
    return replace(after, version=decided.version + 1, tokens=tokens)


def _effect(decided: Decided, seq: int, order: r.Command) -> Decided:
    """The state after an order, recorded as `seq`, to which there is no objection."""
    now_ms = unix_ms_of(seq)
    match order:
        case r.Propose(plan=document, tzdata=tzdata, by=by):
            plan = plan_of(document)
            assert isinstance(plan, Plan)
            listed = tuple(r.Target(vin) for vin in plan.targets.vins or ())
            made = Decided(Stage.PROPOSED, f"{by} proposed it", plan=plan, plan_sha256=plan_sha256(document), tzdata=tzdata)
            made = replace(made, targets=listed, is_listed=plan.targets.vins is not None)
            return replace(made, authors=frozenset({order.person}), epoch=decided.epoch, ignored=decided.ignored)
        case r.AddTargets(targets=targets, more=more):
            return replace(decided, targets=decided.targets + targets, is_listed=not more)
        case r.Approve(wave=None):
            if decided.amendment is None:
                return replace(decided, approved_by=decided.approved_by | {order.person})
            return _after_approval(
                decided, replace(decided.amendment, approved_by=decided.amendment.approved_by | {order.person})
            )
        case r.Amend():
            return _after_amendment(decided, order)
        case r.Retry(ended=ended):
            again = Again(seq, frozenset(map(Ending, ended)))
            return replace(decided, again=(*decided.again, again))
        case r.Approve():
            return replace(decided, passed_by=decided.passed_by | {order.person})
        case r.Refuse():
            return replace(decided, stage=Stage.REFUSED, because=_reason("refused", order))
        case r.Start():
            return replace(decided, stage=Stage.RUNNING, because="it is approved", opened_ms=now_ms)
        case r.Hold(because=cause):
            words = "the soak runs, or an approval is missing" if cause == "gate" else "the patience of the gate is over"
            return replace(decided, stage=Stage.HELD, because=words, held_because=cause, held_ms=now_ms)
        case r.Unhold():
            return replace(decided, stage=Stage.RUNNING, because="the gate's conditions broke", held_because="", held_ms=0)
        case r.Pass(wave=wave):
            because = _reason(f"gate of wave {wave} passed", order)
            opened = replace(decided, stage=Stage.RUNNING, because=because, opened_ms=now_ms)
            return replace(opened, wave=wave + 1, held_because="", held_ms=0, passed_by=frozenset())
        case r.Pause(rule=rule):
            tripped = decided.tripped if rule is None else decided.tripped | {rule}
            because = _reason("paused" if rule is None else f"rule {rule} tripped", order)
            paused = replace(decided, stage=Stage.PAUSED, because=because, paused_from=decided.stage, tripped=tripped)
            return replace(paused, pauses=decided.pauses | {seq})
        case r.Resume(accept=accept):
            counts_from = {**decided.counts_from, **dict.fromkeys(accept, seq)}
            resumed = replace(decided, stage=decided.paused_from, because=_reason("resumed", order))
            return replace(resumed, tripped=frozenset(), counts_from=counts_from, pauses=frozenset())
        case r.Cancel(rule=rule):
            because = _reason("cancelled" if rule is None else f"rule {rule} tripped", order)
            return replace(decided, stage=Stage.CANCELLED, because=because)
        case r.Complete(because=cause):
            words = "every target has settled" if cause == "settled" else "its end has come"
            return replace(decided, stage=Stage.COMPLETED, because=words)
        case r.Silent(before_ms=before_ms):
            return replace(decided, silences=(*decided.silences, Silence(seq, before_ms)))
        case r.Note(rule=str(rule)):
            return replace(decided, counts_from={**decided.counts_from, rule: seq})
        case r.Fence(epoch=epoch):
            return replace(decided, epoch=max(epoch, decided.epoch))
    return decided


def _after_amendment(decided: Decided, order: r.Amend) -> Decided:
    """The state with another plan: at once, if it allows no more or is not approved yet; else it waits for its approval."""
    plan = plan_of(order.plan)
    assert isinstance(plan, Plan)
    assert decided.plan is not None
    amendment = Amendment(plan, plan_sha256(order.plan), order.tzdata, order.person, widened(decided.plan, plan))
    if decided.is_proposal:
        approved_by = frozenset[str]() if amendment.widened else decided.approved_by
        return replace(_with_plan(decided, amendment), approved_by=approved_by)
    return replace(decided, amendment=amendment) if amendment.widened else _with_plan(decided, amendment)


def _after_approval(decided: Decided, amendment: Amendment) -> Decided:
    """The state with one more approval of an amendment, which has effect with the last."""
    assert decided.plan is not None
    if len(amendment.approved_by) < decided.plan.approve.people:
        return replace(decided, amendment=amendment)
    return replace(_with_plan(decided, amendment), approved_by=amendment.approved_by)


def _with_plan(decided: Decided, amendment: Amendment) -> Decided:
    replaced = replace(decided, plan=amendment.plan, plan_sha256=amendment.plan_sha256, tzdata=amendment.tzdata)
    return replace(replaced, authors=decided.authors | {amendment.by}, amendment=None)


def _reason(done: str, order: r.Command) -> str:
    return f"{done} by {order.by}" + (f": {order.why}" if order.why else "")
