"""Evaluates gates and rules: compares counts with the plan, in integer arithmetic."""

import numpy as np
from msgspec import Struct

from manifold.campaigns.fold import UNSETTLED, Campaign
from manifold.campaigns.plan import Gate, Rule
from manifold.campaigns.quantities import duration_ms, exceeds, reaches, share
from manifold.campaigns.standing import CODES, FIRST_SETTLED, Status
from manifold.contracts.campaigns import Counts
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT

SUCCESSES = (Status.DELIVERED, Status.CONFIRMED)
_SETTLED = tuple(status for status in Status if status not in UNSETTLED)


class Tripped(Struct, frozen=True):
    """A rule that stops the campaign, and the counts that tripped it."""

    rule: Rule
    counts: Counts


def counts_of(campaign: Campaign, wave: int) -> Counts:
    """What a gate compares: the targets of a wave, and how many of them are released, known, and successes."""
    tally = campaign.tallies[wave]
    targets = sum(tally.values())
    return {
        "targets": targets,
        "released": targets - tally[Status.WAITING],
        "known": sum(tally[status] for status in _SETTLED),
        "success": sum(tally[status] for status in SUCCESSES),
    }


def holds(gate: Gate, counts: Counts) -> bool:
    """Whether the conditions of a gate hold."""
    return (
        counts["known"] > 0
        and reaches(counts["released"], counts["targets"], share(gate.released))
        and reaches(counts["known"], counts["released"], share(gate.known))
        and reaches(counts["success"], counts["known"], share(gate.success))
    )


def tripped(campaign: Campaign, now_ms: int) -> Tripped | None:
    """The first rule of the plan that trips now."""
    decided = campaign.decided
    assert decided.plan is not None
    for rule in decided.plan.rules:
        waves = range(decided.wave + 1) if rule.where == "wave" else (None,)
        for wave in waves:
            counts = rule_counts(campaign, rule, wave, now_ms)
            if _is_tripped(rule, counts):
                return Tripped(rule, counts if wave is None else {**counts, "wave": wave})
    return None


def _is_tripped(rule: Rule, counts: Counts) -> bool:
    if isinstance(rule.over, int):
        return counts["count"] > rule.over
    return counts["known"] >= rule.at_least and exceeds(counts["count"], counts["known"], share(rule.over))


def rule_counts(campaign: Campaign, rule: Rule, wave: int | None, now_ms: int) -> Counts:
    """How many targets are known, in one wave or all, and how many of them the rule counts, since it began to count."""
    counted = {Status(name) for name in rule.count}
    from_seq = campaign.decided.counts_from.get(rule.name, 0)
    from_ms = 0 if rule.where in ("wave", "campaign") else now_ms - duration_ms(rule.where)
    if not from_seq and not from_ms:
        tallies = campaign.tallies if wave is None else (campaign.tallies[wave],)
        settled = sum(tally[status] for tally in tallies for status in _SETTLED)
        return {"known": settled, "count": sum(tally[status] for tally in tallies for status in counted)}
    first_seq = max(from_seq + 1, (from_ms + 1 - EPOCH_MS) << TIME_SHIFT)
    ledger = campaign.ledger
    known = (ledger.status >= FIRST_SETTLED) & (ledger.since >= first_seq)
    if wave is not None:
        known &= ledger.roster.waves == wave
    found = ledger.status[known]
    return {"known": len(found), "count": int(np.isin(found, [CODES[status] for status in counted]).sum())}
