"""The brake that a campaign should have, as its folded state requires.

A brake is the value in Redis from which dispatchers know whether the campaign is stopped.
"""

from manifold.campaigns.decided import Stage
from manifold.campaigns.fold import Campaign
from manifold.contracts.brakes import OFF, Brake, braking_of

BRAKE_WORDS = {Stage.PAUSED: "pause", Stage.CANCELLED: "cancel", Stage.COMPLETED: "complete"}


def may_change(campaign: Campaign, known: Brake) -> bool:
    """Whether the brake `known`, which is set in Redis, may be changed to what the folded state requires.

    It may be changed once the state includes the order that set it, or if an earlier campaign of the same name set it.
    (Redis may keep a brake longer than the lake keeps the record of its campaign, after which a new campaign may use the name.)
    """
    is_folded = known.seq in campaign.orders
    is_of_earlier_campaign = known.seq < min(campaign.orders, default=0)
    return is_folded or is_of_earlier_campaign


def required_brake(campaign: Campaign, known: Brake | None) -> Brake | None:
    """Return the brake that Redis should have instead of `known`, which it has now; None if it has no brake and needs none.

    If the folded state does not include the order that set `known`, the brake stays, because that order may stop the campaign.
    """
    word = BRAKE_WORDS.get(campaign.decided.stage, OFF)
    if known is not None:
        return Brake(known.seq, word) if may_change(campaign, known) else known
    if word == OFF:
        return None
    newest_braking_seq = max(seq for seq, order in campaign.orders.items() if braking_of(seq, order))
    return Brake(newest_braking_seq, word)
