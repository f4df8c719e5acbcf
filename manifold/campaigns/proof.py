"""Computes the proof of a campaign from its record: the orders, the releases, how they ended, and the falsifications."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from manifold.campaigns.facts import Fact, Recorded, Released, identity
from manifold.campaigns.falsifications import Falsification, Sent
from manifold.campaigns.fold import Campaign, fold
from manifold.campaigns.rate import MINUTE_MS
from manifold.campaigns.verification import verify
from manifold.contracts import campaigns as r
from manifold.contracts.seq import unix_ms_of

MAX_LISTED_VINS = 1000  # in one list of a report


def report(facts: Iterable[Fact], sent: Iterable[Sent] = ()) -> dict[str, Any]:
    """Return the proof of a campaign as JSON values. Equal sets of facts give equal reports.

    `sent` are the first publishes of the campaign's entries, which are verified as well.
    """
    distinct = {identity(fact): fact for fact in facts}
    ordered = [distinct[key] for key in sorted(distinct)]
    campaign = fold(Campaign(), ordered)
    decided = campaign.decided
    ignored = dict(decided.ignored)
    releases = [fact for fact in ordered if isinstance(fact, Released)]
    releases_of_vin = Counter(vin for release in releases for vin in release.vins)
    vins_with_several = sorted(vin for vin, number in releases_of_vin.items() if number > 1)
    vehicles_by_releases = Counter(releases_of_vin.values())  # number of releases → number of vehicles released so often
    falsifications = verify(ordered, sent)
    return {
        "campaign": "" if decided.plan is None else decided.plan.campaign,
        "plan_sha256": decided.plan_sha256,
        "tzdata": decided.tzdata,
        "state": str(decided.stage),
        "because": decided.because,
        "version": decided.version,
        "authors": sorted(decided.authors),
        "approved_by": sorted(decided.approved_by),
        "targets": len(campaign.roster),
        "waves": wave_counts(campaign),
        "orders": [
            order_summary(fact.seq, fact.command, ignored)
            for fact in ordered
            if isinstance(fact, Recorded) and not isinstance(fact.command, r.AddTargets)
        ],
        "releases": len(releases),
        "first_release_ms": releases[0].at_ms if releases else None,
        "last_release_ms": releases[-1].at_ms if releases else None,
        "most_released_in_60_s": most_in_a_minute(releases),
        "vehicles_by_releases": {str(number): vehicles for number, vehicles in sorted(vehicles_by_releases.items())},
        "released_more_than_once": vins_with_several[:MAX_LISTED_VINS],
        "is_proved": not falsifications,
        "falsifications": [finding(falsification) for falsification in falsifications],
    }


def encode(proof: dict[str, Any]) -> bytes:
    """Encode a report as canonical JSON."""
    return msgspec.json.encode(proof, order="sorted")


def most_in_a_minute(releases: Sequence[Released]) -> int:
    """Return the largest number of vehicles that were released in any 60 s. `releases` are sorted by time."""
    largest = 0
    in_minute = 0  # vehicles released in the 60 s that end with the current release
    first = 0  # index of the first release in these 60 s
    for release in releases:
        in_minute += len(release.vins)
        while releases[first].at_ms <= release.at_ms - MINUTE_MS:
            in_minute -= len(releases[first].vins)
            first += 1
        largest = max(largest, in_minute)
    return largest


def wave_counts(campaign: Campaign) -> list[dict[str, Any]]:
    """Return each wave with its number of targets by state; an empty list before the first approval freezes the targets."""
    plan = campaign.decided.plan
    if plan is None:
        return []
    waves = []
    for wave, tally in zip(plan.waves, campaign.tallies, strict=False):  # without frozen targets there are no tallies
        states = Counter[str]()
        for status, number in tally.items():
            if number:
                states[str(campaign.settled_by_the_end(status))] += number
        waves.append({"name": wave.name, "targets": sum(tally.values()), "states": dict(states)})
    return waves


def order_summary(seq: int, command: r.Command, ignored: Mapping[int, str]) -> dict[str, Any]:
    """Return an order as JSON values, without its plan; of a list of targets, only the length.

    `ignored` maps the seq of each order without effect to the reason, which the summary includes.
    """
    order = msgspec.to_builtins(command)
    summary: dict[str, Any] = {"seq": seq, "at_ms": unix_ms_of(seq)}
    for field in ("do", "by", "why", "wave", "because", "rule", "accept", "ended", "counts"):
        if field in order:
            summary[field] = order[field]
    if isinstance(command, r.AddTargets):
        summary["targets"] = len(command.targets)
    if seq in ignored:
        summary["without_effect"] = ignored[seq]
    return summary


def finding(falsification: Falsification) -> dict[str, Any]:
    """Return a falsification as JSON values."""
    return {
        "kind": str(falsification.kind),
        "seq": falsification.seq,
        "vin": falsification.vin,
        "detail": falsification.detail,
    }
