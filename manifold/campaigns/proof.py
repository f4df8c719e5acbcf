"""The numbers of a campaign's proof, from its record: what people ordered, who was released when, and how it ended."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from manifold.campaigns.facts import Fact, Recorded, Released
from manifold.campaigns.falsifications import Falsification, Sent
from manifold.campaigns.fold import Campaign, fold
from manifold.campaigns.rate import MINUTE_MS
from manifold.campaigns.verification import verify
from manifold.contracts import campaigns as r
from manifold.contracts.seq import unix_ms_of

MAX_NAMED = 1000  # vehicles of one list


def report(facts: Iterable[Fact], sent: Iterable[Sent] = ()) -> dict[str, Any]:
    """The proof of a campaign. The same set of facts gives the same report."""
    once = {(fact.seq, getattr(fact, "vin", "")): fact for fact in facts}
    ordered = [once[key] for key in sorted(once)]
    campaign = fold(Campaign(), ordered)
    decided = campaign.decided
    releases = [fact for fact in ordered if isinstance(fact, Released)]
    times = Counter(vin for release in releases for vin in release.vins)
    repeated = sorted(vin for vin, number in times.items() if number > 1)
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
            order_summary(fact.seq, fact.command, dict(decided.ignored))
            for fact in ordered
            if isinstance(fact, Recorded) and not isinstance(fact.command, r.AddTargets)
        ],
        "releases": len(releases),
        "first_release_ms": releases[0].at_ms if releases else None,
        "last_release_ms": releases[-1].at_ms if releases else None,
        "most_released_in_60_s": most_in_a_minute(releases),
        "vehicles_by_releases": {str(number): vehicles for number, vehicles in sorted(Counter(times.values()).items())},
        "released_more_than_once": repeated[:MAX_NAMED],
        "is_proved": not falsifications,
        "falsifications": [finding(each) for each in falsifications],
    }


def encode(proof: dict[str, Any]) -> bytes:
    """A report as canonical JSON."""
    return msgspec.json.encode(proof, order="sorted")


def most_in_a_minute(releases: Sequence[Released]) -> int:
    """The largest number of vehicles that were released in any 60 s. `releases` are in order."""
    most = spent = first = 0
    for release in releases:
        spent += len(release.vins)
        while releases[first].at_ms <= release.at_ms - MINUTE_MS:
            spent -= len(releases[first].vins)
            first += 1
        most = max(most, spent)
    return most


def wave_counts(campaign: Campaign) -> list[dict[str, Any]]:
    """The targets of each wave by state; nothing before the list is frozen by the first approval."""
    plan = campaign.decided.plan
    if plan is None:
        return []
    waves = []
    for wave, tally in zip(plan.waves, campaign.tallies, strict=False):
        states = Counter[str]()
        for status, number in tally.items():
            if number:
                states[str(campaign.settled_by_the_end(status))] += number
        waves.append({"name": wave.name, "targets": sum(tally.values()), "states": dict(states)})
    return waves


def order_summary(seq: int, command: r.Command, ignored: Mapping[int, str]) -> dict[str, Any]:
    """An order, without its plan and its list; and why it had no effect, if it had none."""
    order = msgspec.to_builtins(command)
    kept = {
        name: order[name] for name in ("do", "by", "why", "wave", "because", "rule", "accept", "ended", "counts") if name in order
    }
    listed = {"targets": len(command.targets)} if isinstance(command, r.AddTargets) else {}
    without_effect = {"without_effect": ignored[seq]} if seq in ignored else {}
    return {"seq": seq, "at_ms": unix_ms_of(seq), **kept, **listed, **without_effect}


def finding(each: Falsification) -> dict[str, Any]:
    """A falsification as JSON has it."""
    return {"kind": str(each.kind), "seq": each.seq, "vin": each.vin, "detail": each.detail}
