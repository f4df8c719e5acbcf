"""Takes orders: checks that an order fits the record, publishes it, and reports its effect.

A pause or cancellation is published without that check, unless it names the version of the campaign for which it is meant. The
caller supplies the functions that read the record and publish orders.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace

from manifold.campaigns.fold import Campaign
from manifold.campaigns.objections import digest, objection, sha256_to_approve
from manifold.campaigns.proposals import target_orders
from manifold.contracts import campaigns as r
from manifold.contracts.errors import Retryable
from manifold.contracts.messages import Receipt, ReceiptStatus

BRAKES = (r.Pause, r.Cancel)
Read = Callable[[str], Awaitable[Campaign | None]]  # campaign id → the campaign as it is on record now; None: it is not recorded
Publish = Callable[[Iterable[r.Command]], Awaitable[list[Receipt]]]  # publishes orders up to the first that is refused


class Effect(StrEnum):
    """The effect of an order that is on disk."""

    APPLIED = "applied"
    NONE = "none"  # the order did not fit the state of the campaign
    # A pause or cancellation that is not set in Redis yet as the campaign's brake, by which dispatchers stop sending.
    NOT_IN_FORCE = "not in force yet"
    UNKNOWN = "unknown"  # the record could not be read after the order was published


class Problem(StrEnum):
    """Why an order was not published, or not recorded."""

    MISSING = "missing"  # there is no such campaign
    STALE = "stale"  # the campaign has a different version
    UNFIT = "unfit"  # the order would have no effect
    REFUSED = "refused"  # the recorder refused the order


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
    """Publish an order, unless it would have no effect or is already on record. Return its effect, or why it was not recorded.

    A pause or cancellation without `if_version` is published without reading the record first.

    Raises:
        Retryable: the record cannot be read, or it is unknown whether the order is on disk.
    """
    is_unconditional_brake = isinstance(order, BRAKES) and order.if_version is None
    if not is_unconditional_brake:
        campaign = await read(order.campaign)
        if campaign is None:
            return Declined(Problem.MISSING, f"no campaign {order.campaign!r} is on record; see manifold campaign ls")
        result = _result_without_publish(campaign, order)
        if result is not None:
            return result
        order = _with_reviewed_state(order, campaign)
    (receipt,) = await publish([order])
    if receipt.status is ReceiptStatus.REFUSED:
        return Declined(Problem.REFUSED, f"the recorder refused it: {receipt.reason}")
    if receipt.reason:  # the order is recorded, but its brake is not set yet
        return Taken(receipt.seq, Effect.NOT_IN_FORCE, receipt.reason)
    return await _result_of(order, receipt.seq, read)


async def take_proposal(proposal: r.Propose, listed: Sequence[r.Target], read: Read, publish: Publish) -> Taken | Declined:
    """Publish a proposal and its list of targets.

    If the same plan is on record already, only the missing rest of its list is published, and the result is that of the recorded
    proposal.

    Raises:
        Retryable: as for `take`.
    """
    campaign = await read(proposal.campaign) or Campaign()
    recorded = _result_without_publish(campaign, proposal)
    if isinstance(recorded, Declined):
        return recorded
    orders: list[r.Command] = []
    missing = tuple(listed)
    if recorded is None:
        orders.append(proposal)
    else:
        known = campaign.decided.targets
        if listed and tuple(listed[: len(known)]) != known:
            return Declined(Problem.UNFIT, "targets: the list on record is another; choose another id, or give the same list")
        # Once the campaign has started, its list is complete.
        missing = missing[len(known) :] if campaign.decided.is_proposal else ()
    orders += target_orders(proposal.campaign, proposal.by, missing)
    receipts = await publish(orders)
    refused = next((receipt for receipt in receipts if receipt.status is ReceiptStatus.REFUSED), None)
    if refused is not None:
        return Declined(Problem.REFUSED, f"the recorder refused it: {refused.reason}")
    if recorded is not None:
        return recorded
    proposal_receipt = receipts[0]
    return await _result_of(proposal, proposal_receipt.seq, read)


def _with_reviewed_state(order: r.Command, campaign: Campaign) -> r.Command:
    """Return the order with a reference to the state on record, which its author has reviewed.

    A resume gets the pauses that it ends, and an approval that names no plan gets the plan that it approves. So if another pause
    or amendment is recorded before the order, the order does not apply to it. Other orders need no reference.
    """
    match order:
        case r.Resume():
            return replace(order, ends=tuple(sorted(campaign.decided.pauses)))
        case r.Approve(plan_sha256=""):
            return replace(order, plan_sha256=sha256_to_approve(campaign.decided, order.wave))
    return order


def _result_without_publish(campaign: Campaign, order: r.Command) -> Taken | Declined | None:
    """Return the result of an order that is already on record or does not fit; None if the order has to be published."""
    decided = campaign.decided
    seq = _recorded_seq(campaign, order)
    if seq is not None:
        return _result_on_record(campaign, seq)
    reason = objection(decided, order)
    if reason is None:
        return None
    if order.if_version is not None and order.if_version != decided.version:
        return Declined(Problem.STALE, reason)
    if isinstance(order, r.Propose) and decided.plan is not None:
        conflict = f"was proposed with another plan (SHA-256 {decided.plan_sha256[:12]}…)"
        return Declined(Problem.UNFIT, f"campaign {order.campaign!r}: {conflict}; choose another id, or amend that campaign")
    return Declined(Problem.UNFIT, reason)


def _recorded_seq(campaign: Campaign, order: r.Command) -> int | None:
    """Return the seq under which the same order is on record, or None if it is not.

    A proposal is the same if it has the same plan and had an effect. Any other order is the same if it has the same token and
    content; without a token it is always a new order.
    """
    ignored = dict(campaign.decided.ignored)
    for seq, known in sorted(campaign.orders.items()):
        if isinstance(order, r.Propose):
            if isinstance(known, r.Propose) and known.plan == order.plan and seq not in ignored:
                return seq
        elif order.token is not None and known.token == order.token and digest(known) == digest(order):
            return seq
    return None


async def _result_of(order: r.Command, seq: int, read: Read) -> Taken:
    """Return the result of the order recorded as `seq`. If the order repeats an earlier one, return the earlier one's result."""
    try:
        campaign = await read(order.campaign)
    except Retryable as exc:
        return Taken(seq, Effect.UNKNOWN, str(exc))
    if campaign is None or seq not in campaign.orders:
        return Taken(seq, Effect.UNKNOWN, "the record does not show it yet")
    first_seq = _recorded_seq(campaign, order)
    return _result_on_record(campaign, seq if first_seq is None else first_seq)


def _result_on_record(campaign: Campaign, seq: int) -> Taken:
    """Return the result of the order that is on record as `seq`."""
    reason = dict(campaign.decided.ignored).get(seq)
    return Taken(seq, Effect.APPLIED if reason is None else Effect.NONE, reason)
