"""The state machine of a campaign: applies its orders by seq. An order that does not fit the state is kept without effect."""

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
    """Return the state after applying `orders` by seq to the state `before`, or to a new campaign if `before` is None."""
    recorded_orders = (Recorded(seq, orders[seq]) for seq in sorted(orders))
    return reduce(_apply, recorded_orders, before or Decided())


def _apply(decided: Decided, recorded: Recorded) -> Decided:
    """Return the state after one more order. An order that has no effect is added to `ignored` with the reason."""
    order = recorded.command
    reason = objection(decided, order)
    if reason is not None:
        ignored = (*decided.ignored, (recorded.seq, reason))
        # A pause of a paused campaign changes nothing else, but a resume has to name every pause.
        is_second_pause = isinstance(order, r.Pause) and decided.stage is Stage.PAUSED
        pauses = decided.pauses | {recorded.seq} if is_second_pause else decided.pauses
        return replace(decided, ignored=ignored, pauses=pauses)
    changed = _effect(decided, recorded.seq, order)
    tokens = decided.tokens if order.token is None else {**decided.tokens, order.token: digest(order)}
    return replace(changed, version=decided.version + 1, tokens=tokens)


def _effect(decided: Decided, seq: int, order: r.Command) -> Decided:
    """Return the state after an order that is recorded as `seq`. There is no objection to the order."""
    now_ms = unix_ms_of(seq)
    match order:
        case r.Propose(plan=document, tzdata=tzdata, by=by):
            plan = plan_of(document)
            assert isinstance(plan, Plan)
            return Decided(
                Stage.PROPOSED,
                f"{by} proposed it",
                plan=plan,
                plan_sha256=plan_sha256(document),
                tzdata=tzdata,
                targets=tuple(r.Target(vin) for vin in plan.targets.vins or ()),
                is_listed=plan.targets.vins is not None,
                authors=frozenset({order.person}),
                epoch=decided.epoch,
                ignored=decided.ignored,
            )
        case r.AddTargets(targets=targets, more=more):
            return replace(decided, targets=decided.targets + targets, is_listed=not more)
        case r.Approve(wave=None):  # of the amendment that waits, or else of the plan
            if decided.amendment is None:
                return replace(decided, approved_by=decided.approved_by | {order.person})
            amendment_approvers = decided.amendment.approved_by | {order.person}
            return _after_approval(decided, replace(decided.amendment, approved_by=amendment_approvers))
        case r.Approve():  # with a wave: of the gate of the open wave
            return replace(decided, passed_by=decided.passed_by | {order.person})
        case r.Amend():
            return _after_amendment(decided, order)
        case r.Retry(ended=ended):
            new_again = Again(seq, frozenset(map(Ending, ended)))
            return replace(decided, again=(*decided.again, new_again))
        case r.Refuse():
            return replace(decided, stage=Stage.REFUSED, because=_reason("refused", order))
        case r.Start():
            return replace(decided, stage=Stage.RUNNING, because="it is approved", opened_ms=now_ms)
        case r.Hold(because=cause):
            because = "the soak runs, or an approval is missing" if cause == "gate" else "the patience of the gate is over"
            return replace(decided, stage=Stage.HELD, because=because, held_because=cause, held_ms=now_ms)
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
            because = "every target has settled" if cause == "settled" else "its end has come"
            return replace(decided, stage=Stage.COMPLETED, because=because)
        case r.Silent(before_ms=before_ms):
            return replace(decided, silences=(*decided.silences, Silence(seq, before_ms)))
        case r.Note(rule=str(rule)):  # an alert of this rule, which counts from zero again
            return replace(decided, counts_from={**decided.counts_from, rule: seq})
        case r.Fence(epoch=epoch):
            return replace(decided, epoch=max(epoch, decided.epoch))
    return decided  # a remark that is not the alert of a rule changes nothing


def _after_amendment(decided: Decided, order: r.Amend) -> Decided:
    """Return the state after an amendment of the plan.

    The amended plan of a proposal takes effect at once; if it allows more than the old plan, it loses the approvals so far.
    The amended plan of a started campaign takes effect at once if it allows no more; otherwise it waits for approvals.
    """
    new_plan = plan_of(order.plan)
    assert isinstance(new_plan, Plan)
    assert decided.plan is not None
    wider_fields = widened(decided.plan, new_plan)
    amendment = Amendment(new_plan, plan_sha256(order.plan), order.tzdata, order.person, wider_fields)
    if decided.is_proposal:
        approved_by = frozenset[str]() if wider_fields else decided.approved_by
        return replace(_with_amended_plan(decided, amendment), approved_by=approved_by)
    if wider_fields:
        return replace(decided, amendment=amendment)
    return _with_amended_plan(decided, amendment)


def _after_approval(decided: Decided, amendment: Amendment) -> Decided:
    """Return the state after another approval, which `amendment` includes. With enough approvals the amendment takes effect."""
    assert decided.plan is not None
    if len(amendment.approved_by) < decided.plan.approve.people:
        return replace(decided, amendment=amendment)
    return replace(_with_amended_plan(decided, amendment), approved_by=amendment.approved_by)


def _with_amended_plan(decided: Decided, amendment: Amendment) -> Decided:
    """Return the state in which the amended plan is in force."""
    return replace(
        decided,
        plan=amendment.plan,
        plan_sha256=amendment.plan_sha256,
        tzdata=amendment.tzdata,
        authors=decided.authors | {amendment.by},
        amendment=None,
    )


def _reason(action: str, order: r.Command) -> str:
    """Format who took the action, and why: `paused by ana: too many failures`."""
    sentence = f"{action} by {order.by}"
    return f"{sentence}: {order.why}" if order.why else sentence
