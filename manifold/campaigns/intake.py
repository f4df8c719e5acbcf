"""Takes orders: checks that they fit the record, publishes them, and reports their effect. A brake is published unchecked.

The caller supplies the functions that read the record and publish orders.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace

from manifold.campaigns.fold import Campaign
from manifold.campaigns.objections import asked_sha256, digest, objection
from manifold.campaigns.proposals import lists
from manifold.contracts import campaigns as r
from manifold.contracts.errors import Retryable
from manifold.contracts.messages import Receipt, ReceiptStatus

BRAKES = (r.Pause, r.Cancel)
Read = Callable[[str], Awaitable[Campaign | None]]  # the campaign as it is on record now; None: no record names it
Publish = Callable[[Iterable[r.Command]], Awaitable[list[Receipt]]]  # up to the first that is refused


class Effect(StrEnum):
    """What is known of an order that is on disk."""

    APPLIED = "applied"
    NONE = "none"  # it did not fit the campaign
    NOT_IN_FORCE = "not in force yet"  # a brake that is not on yet
    UNKNOWN = "unknown"  # the record could not be read afterwards


class Problem(StrEnum):
    """Why an order was not published, or not recorded."""

    MISSING = "missing"  # there is no such campaign
    STALE = "stale"  # the campaign has another version
    UNFIT = "unfit"  # it would have no effect
    REFUSED = "refused"  # by the recorder


@dataclass(frozen=True, slots=True)
class Taken:
    """An order that is on disk."""

    seq: int
    effect: Effect
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Declined:
    """An order that was not published, or that the recorder refused."""

    problem: Problem
    reason: str


async def take(order: r.Command, read: Read, publish: Publish) -> Taken | Declined:
    """Publish an order, unless it would have no effect; a brake in any case, if no version of the campaign is asked for.

    Raises:
        Retryable: the record cannot be read, or the order is not known to be on disk.
    """
    if not isinstance(order, BRAKES) or order.if_version is not None:
        campaign = await read(order.campaign)
        if campaign is None:
            return Declined(Problem.MISSING, f"no campaign {order.campaign!r} is on record; see manifold campaign ls")
        found = _objection(campaign, order)
        if found is not None:
            return found
        order = _with_present_state(order, campaign)
    (receipt,) = await publish([order])
    if receipt.status is ReceiptStatus.REFUSED:
        return Declined(Problem.REFUSED, f"the recorder refused it: {receipt.reason}")
    if receipt.reason:
        return Taken(receipt.seq, Effect.NOT_IN_FORCE, receipt.reason)
    return await _effect_of(order, receipt.seq, read)


async def take_proposal(proposal: r.Propose, listed: Sequence[r.Target], read: Read, publish: Publish) -> Taken | Declined:
    """Publish a proposal and its list. The same plan again completes its list, and gives the receipt of the first.

    Raises:
        Retryable: as for `take`.
    """
    campaign = await read(proposal.campaign) or Campaign()
    found, missing = _objection(campaign, proposal), tuple(listed)
    if isinstance(found, Declined):
        return found
    if found is not None:
        known = campaign.decided.targets
        if listed and tuple(listed[: len(known)]) != known:
            return Declined(Problem.UNFIT, "targets: the list on record is another; choose another id, or give the same list")
        missing = missing[len(known) :] if campaign.decided.is_proposal else ()
    records: list[r.Command] = [] if found is not None else [proposal]
    receipts = await publish([*records, *lists(proposal.campaign, proposal.by, missing)])
    refused = next((receipt for receipt in receipts if receipt.status is ReceiptStatus.REFUSED), None)
    if refused is not None:
        return Declined(Problem.REFUSED, f"the recorder refused it: {refused.reason}")
    return found or await _effect_of(proposal, receipts[0].seq, read)


def _with_present_state(order: r.Command, campaign: Campaign) -> r.Command:
    """The order with the state that it is about, because other orders may still be recorded before it."""
    match order:
        case r.Resume():
            return replace(order, ends=tuple(sorted(campaign.decided.pauses)))
        case r.Approve(plan_sha256=""):
            return replace(order, plan_sha256=asked_sha256(campaign.decided, order.wave))
    return order


def _objection(campaign: Campaign, order: r.Command) -> Taken | Declined | None:
    """Why this order is not published: it is on record, or does not fit; None: it can be published."""
    decided = campaign.decided
    seq = _recorded_as(campaign, order)
    if seq is not None:
        return _on_record(campaign, seq)
    reason = objection(decided, order)
    if reason is None:
        return None
    if order.if_version is not None and order.if_version != decided.version:
        return Declined(Problem.STALE, reason)
    if isinstance(order, r.Propose) and decided.plan is not None:
        was = f"was proposed with another plan (SHA-256 {decided.plan_sha256[:12]}…)"
        return Declined(Problem.UNFIT, f"campaign {order.campaign!r}: {was}; choose another id, or amend that campaign")
    return Declined(Problem.UNFIT, reason)


def _recorded_as(campaign: Campaign, order: r.Command) -> int | None:
    """The seq of the same order: of one with its token, or of the proposal of the same plan."""
    ignored = dict(campaign.decided.ignored)
    for seq, known in sorted(campaign.orders.items()):
        if isinstance(order, r.Propose):
            if isinstance(known, r.Propose) and known.plan == order.plan and seq not in ignored:
                return seq
        elif order.token is not None and known.token == order.token and digest(known) == digest(order):
            return seq
    return None


async def _effect_of(order: r.Command, seq: int, read: Read) -> Taken:
    """The effect of the order recorded as `seq`; if it repeats another order, the effect of that one."""
    try:
        campaign = await read(order.campaign)
    except Retryable as exc:
        return Taken(seq, Effect.UNKNOWN, str(exc))
    if campaign is None or seq not in campaign.orders:
        return Taken(seq, Effect.UNKNOWN, "the record does not show it yet")
    return _on_record(campaign, _recorded_as(campaign, order) or seq)


def _on_record(campaign: Campaign, seq: int) -> Taken:
    reason = dict(campaign.decided.ignored).get(seq)
    return Taken(seq, Effect.APPLIED if reason is None else Effect.NONE, reason)
