"""The brake that a campaign should have: by its folded state, once the fold has the order that set the present brake."""

from manifold.campaigns.decided import Stage
from manifold.campaigns.fold import Campaign
from manifold.contracts.brakes import OFF, Brake, braking_of

WORDS = {Stage.PAUSED: "pause", Stage.CANCELLED: "cancel", Stage.COMPLETED: "complete"}


def follows(campaign: Campaign, known: Brake) -> bool:
    """Whether the fold has taken in the order that put this brake on, or that order is of an earlier campaign of this name.

    Redis may keep a brake longer than the lake keeps the record of its campaign: after that, its name may be used again.
    """
    return known.seq in campaign.orders or known.seq < min(campaign.orders, default=0)


def right_brake(campaign: Campaign, known: Brake | None) -> Brake | None:
    """The brake that should replace `known`, the one in Redis; None if Redis has none and needs none.

    If the fold does not have the order that put `known` on, the brake stays: that order may stop the campaign.
    """
    word = WORDS.get(campaign.decided.stage, OFF)
    if known is not None:
        return Brake(known.seq, word) if follows(campaign, known) else known
    if word == OFF:
        return None
    return Brake(max(seq for seq, order in campaign.orders.items() if braking_of(seq, order)), word)
