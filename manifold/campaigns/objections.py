"""Decides whether an order has an effect, and why not: it does not fit its campaign's state, or what people have approved."""

import hashlib
from collections.abc import Mapping

from msgspec.structs import replace

from manifold.campaigns.amendments import refusal
from manifold.campaigns.decided import RELEASING, Decided, Stage
from manifold.campaigns.parsing import plan_of
from manifold.contracts import campaigns as r
from manifold.contracts.messages import Refused

S = Stage
_ALIVE = RELEASING | {S.PROPOSED}
# The stages in which an order may take effect. For a paused campaign, the stage before the pause counts.
_STAGES_OF: Mapping[type[r.Order], frozenset[Stage]] = {
    r.Propose: frozenset({S.NEW}),
    r.AddTargets: frozenset({S.PROPOSED}),
    r.Approve: _ALIVE,
    r.Amend: _ALIVE,
    r.Retry: RELEASING,
    r.Silent: RELEASING,
    r.Refuse: frozenset({S.PROPOSED}),
    r.Start: frozenset({S.PROPOSED}),
    r.Hold: RELEASING,
    r.Unhold: frozenset({S.HELD}),
    r.Pass: RELEASING,
    r.Pause: _ALIVE,
    r.Resume: _ALIVE,
    r.Cancel: _ALIVE,
    r.Complete: RELEASING,
    r.Note: frozenset(S),
    r.Fence: frozenset(S),
}
_ONLY_WHILE_PAUSED = (r.Resume,)
_NOT_WHILE_PAUSED = (r.Start, r.Hold, r.Unhold, r.Pass, r.Pause)


def objection(decided: Decided, order: r.Command) -> str | None:
    """Return why an order would have no effect now, or None if it would have an effect."""
    if order.token is not None and order.token in decided.tokens:
        is_same = decided.tokens[order.token] == digest(order)
        return "repeats an order" if is_same else "its token was used for another order; choose a new one at random"
    if order.if_version is not None and order.if_version != decided.version:
        return f"if_version {order.if_version}: the campaign is at version {decided.version}; look at it again"
    if order.by.startswith(r.CAMPAIGNER) and order.epoch < decided.epoch:
        return f"epoch {order.epoch}: another campaigner has taken over with epoch {decided.epoch}"
    excluded_types = _NOT_WHILE_PAUSED if decided.stage is S.PAUSED else _ONLY_WHILE_PAUSED
    fits_stage = decided.unpaused_stage in _STAGES_OF[type(order)]
    if isinstance(order, excluded_types) or not fits_stage:
        return f"the campaign is {decided.stage}, because {decided.because}"
    return _objection_by_type(decided, order)


def _objection_by_type(decided: Decided, order: r.Command) -> str | None:
    """Return why an order that fits the stage has no effect, by the rules for its kind; None if it has an effect."""
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
        case r.Amend(plan=document):
            assert decided.plan is not None
            plan = plan_of(document)
            return plan.reason if isinstance(plan, Refused) else refusal(decided.plan, plan, decided.wave, decided.targets)
        case r.Approve(plan_sha256=approved) if approved and approved != sha256_to_approve(decided, order.wave):
            return f"plan_sha256 {approved[:12]}…: the plan was amended, look at it again"
        case r.Approve(wave=None):
            return _objection_to_plan_approval(decided, order.person)
        case r.Approve(wave=int(wave)) | r.Hold(wave=wave) | r.Unhold(wave=wave):
            return _objection_to_wave(decided, wave)
        case r.Pass(wave=wave):
            assert decided.plan is not None
            if not order.why and not order.by.startswith(r.CAMPAIGNER):
                return "why is missing; a person who opens a gate says why"
            if wave + 1 >= len(decided.plan.waves):
                return f"wave {wave} is the last; there is none to open"
            return _objection_to_wave(decided, wave)
        case r.Silent(before_ms=before_ms):
            latest_ms = decided.silences[-1].before_ms if decided.silences else 0
            return None if before_ms > latest_ms else f"before_ms {before_ms}: silence up to {latest_ms} is on record"
        case r.Resume(accept=accept):
            later_pauses = decided.pauses - set(order.ends)
            if order.ends and later_pauses:  # without `ends`, it ends all pauses
                return f"the campaign was paused again, by {max(later_pauses)}; look at it again"
            missing = sorted(decided.tripped - set(accept))
            return f"accept lacks {', '.join(missing)}; name the rules that tripped" if missing else None
    return None  # the other kinds have no further rules


def sha256_to_approve(decided: Decided, wave: int | None) -> str:
    """Return the SHA-256 of the plan that an approval is about.

    An approval without `wave` is about the amendment, if one waits for approval. Every other approval is about the plan in force.
    """
    if wave is None and decided.amendment is not None:
        return decided.amendment.plan_sha256
    return decided.plan_sha256


def _objection_to_plan_approval(decided: Decided, person: str) -> str | None:
    """Return why this person cannot approve the amendment that waits, or the proposed plan if none waits; None if they can."""
    assert decided.plan is not None
    amendment = decided.amendment
    if not decided.is_listed:
        return "the list of targets is not complete on record; propose the same plan again with its list"
    if not decided.is_proposal and amendment is None:
        return "the plan is approved already; name the wave whose gate is meant"
    authors = decided.authors if amendment is None else decided.authors | {amendment.by}
    if decided.plan.approve.not_the_author and person in authors:
        return f"{person} is the author; another person has to approve"
    if amendment is None:
        return None
    # Since the amendment was recorded, another wave may have opened, so it is checked again.
    return refusal(decided.plan, amendment.plan, decided.wave, decided.targets)


def _objection_to_wave(decided: Decided, wave: int) -> str | None:
    """Return the objection to an order about `wave` if that is not the open wave."""
    return None if wave == decided.wave else f"wave {wave}: the open wave is {decided.wave}"


def digest(order: r.Command) -> str:
    """Return the identity of an order, by which a repetition is recognized.

    Fields that `intake` adds from the campaign's state are left out, since they may differ in a repetition.
    """
    match order:
        case r.Resume():
            order = replace(order, ends=())
        case r.Approve():
            order = replace(order, plan_sha256="")
    return hashlib.sha256(r.encode(order)).hexdigest()
