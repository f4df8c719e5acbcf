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
    """A rule whose limit is exceeded, and the counts that exceed it; for a rule about single waves, with the wave."""

    rule: Rule
    counts: Counts


def counts_of(campaign: Campaign, wave: int) -> Counts:
    """Return the counts that a gate compares: targets of the wave, and how many are released, known (settled), and successes."""
    tally = campaign.tallies[wave]
    targets = sum(tally.values())
    return {
        "targets": targets,
        "released": targets - tally[Status.WAITING],
        "known": sum(tally[status] for status in _SETTLED),
        "success": sum(tally[status] for status in SUCCESSES),
    }


def is_met(gate: Gate, counts: Counts) -> bool:
    """Whether these counts meet the conditions of a gate; never before a target is known, whatever shares the gate requires."""
    return (
        counts["known"] > 0
        and reaches(counts["released"], counts["targets"], share(gate.released))
        and reaches(counts["known"], counts["released"], share(gate.known))
        and reaches(counts["success"], counts["known"], share(gate.success))
    )


def tripped(campaign: Campaign, now_ms: int) -> Tripped | None:
    """Return the first rule of the plan that trips at `now_ms` (Unix ms), or None if no rule trips."""
    decided = campaign.decided
    assert decided.plan is not None
    for rule in decided.plan.rules:
        if rule.where == "wave":
            for wave in range(decided.wave + 1):
                counts = rule_counts(campaign, rule, wave, now_ms)
                if _is_exceeded(rule, counts):
                    return Tripped(rule, {**counts, "wave": wave})
        else:
            counts = rule_counts(campaign, rule, None, now_ms)
            if _is_exceeded(rule, counts):
                return Tripped(rule, counts)
    return None


def _is_exceeded(rule: Rule, counts: Counts) -> bool:
    """Whether these counts exceed the limit of the rule. A share is compared only if enough targets are known."""
    if isinstance(rule.over, int):
        return counts["count"] > rule.over
    return counts["known"] >= rule.at_least and exceeds(counts["count"], counts["known"], share(rule.over))


def rule_counts(campaign: Campaign, rule: Rule, wave: int | None, now_ms: int) -> Counts:
    """Return how many targets of a wave (None: of all waves) are known, and how many of these have a status that the rule counts.

    Only targets count that have settled after the rule's last reset. If the rule looks back over a duration, only those count
    that have settled within that duration before `now_ms` (Unix ms).
    """
    counted = {Status(name) for name in rule.count}
    reset_seq = campaign.decided.counts_from.get(rule.name, 0)
    looks_back = rule.where not in ("wave", "campaign")
    if not reset_seq and not looks_back:  # every settled target counts, so the tallies suffice
        tallies = campaign.tallies if wave is None else (campaign.tallies[wave],)
        return {
            "known": sum(tally[status] for tally in tallies for status in _SETTLED),
            "count": sum(tally[status] for tally in tallies for status in counted),
        }
    first_seq = reset_seq + 1
    if looks_back:
        first_ms = now_ms - duration_ms(rule.where) + 1
        first_seq = max(first_seq, (first_ms - EPOCH_MS) << TIME_SHIFT)  # the lowest seq of that millisecond
    ledger = campaign.ledger
    is_known = (ledger.status >= FIRST_SETTLED) & (ledger.since >= first_seq)
    if wave is not None:
        is_known &= ledger.roster.waves == wave
    known_codes = ledger.status[is_known]
    is_counted = np.isin(known_codes, [CODES[status] for status in counted])
    return {"known": len(known_codes), "count": int(is_counted.sum())}
