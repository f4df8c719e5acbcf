"""Examines a proposal before it is recorded: its plan, its list of targets and its data; and writes its records."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from manifold.campaigns.fold import Campaign
from manifold.campaigns.parsing import plan_of
from manifold.campaigns.plan import Plan
from manifold.campaigns.rehearsal import propose
from manifold.campaigns.step import Policy
from manifold.campaigns.warnings import warnings_of
from manifold.contracts import campaigns as r
from manifold.contracts.messages import Refused, shown
from manifold.contracts.names import MAX_VIN
from manifold.contracts.topics import request_topic
from manifold.settings import Settings

LISTS = "_lists"  # folder beside the archive's streams, with files that plans name
OF_PUBLISH = 256  # bytes of a publish beside topic and payload: fixed header and properties


def policy_of(settings: Settings) -> Policy:
    """The policy by which plans are examined and forecast."""
    return Policy(ack_deadline_ms=int(settings.ack_deadline_seconds * 1000))


def examined(document: dict[str, Any], listed: Sequence[r.Target] | None, policy: Policy, now_ms: int) -> Campaign | Refused:
    """The campaign that this proposal would create, or why it is refused.

    `listed` is the list of a file; without it, a plan that does not list its vehicles itself waits for its list.
    """
    plan = plan_of(document)
    if isinstance(plan, Refused):
        return plan
    if plan.targets.vins is None:
        if listed is None and plan.targets.file is not None and not is_below(plan.targets.file):
            return Refused(
                f"targets.file {shown(plan.targets.file)}: must be a path below {LISTS}/ of the archive, such as fleet.csv"
            )
        return propose(document, listed, policy, now_ms)
    if listed:
        return Refused("targets.vins: the plan lists its vehicles itself, and a file does too; leave one of them out")
    return propose(document, (), policy, now_ms)


def is_below(path: str) -> bool:
    """Whether a relative path leads to a file below the folder that it is relative to."""
    parts = PurePosixPath(path).parts
    return bool(parts) and path.isprintable() and not any(part == "/" or part.startswith(".") for part in parts)


def data_refusal(plan: Plan, size: int | None, largest_packet: int, topic_prefix: str) -> str | None:
    """Why the data of a plan cannot be sent; None if it can. `size` is the payload's in bytes; None if it is unknown."""
    if size is None:
        if plan.wait_for_data:
            return None
        remedy = "publish it first (manifold send --data FILE --data-id ID), or set wait_for_data to true"
        return f"data_id {shown(plan.data_id)}: nothing was published under it; {remedy}"
    packet = size + len(request_topic(topic_prefix, "V" * MAX_VIN, plan.campaign)) + OF_PUBLISH
    if packet > largest_packet:
        limit = f"a packet of {packet} bytes is over the {largest_packet} that the broker takes"
        return f"data_id {shown(plan.data_id)}: {limit}; publish smaller data, or raise the limit of the broker"
    return None


def lists(campaign: str, by: str, listed: Sequence[r.Target]) -> Iterator[r.AddTargets]:
    """The records of a list of targets, in parts."""
    for first in range(0, len(listed), r.MAX_TARGETS):
        after = first + r.MAX_TARGETS
        yield r.AddTargets(campaign, by, targets=tuple(listed[first:after]), more=after < len(listed))


def dry_run(campaign: Campaign, data_bytes: int | None, now_ms: int) -> dict[str, Any] | Refused:
    """What a proposal would do, or why that cannot be known yet.

    The result contains no timestamp: it depends on plan, list and data, except that days before `now_ms` give no warning.
    """
    decided = campaign.decided
    assert decided.plan is not None
    if not campaign.tallies:
        return Refused("targets: the DAG campaign_targets resolves this list once it is proposed; a dry run needs vins or a file")
    listed = {target.vin for target in decided.targets}
    return {
        "campaign": decided.plan.campaign,
        "plan_sha256": decided.plan_sha256,
        "data_id": decided.plan.data_id,
        "data_bytes": data_bytes,
        "targets": len(campaign.roster),
        "in_no_wave": len(listed - campaign.roster.number_of.keys()),
        "waves": [
            {"name": wave.name, "targets": sum(tally.values()), "vins_sha256": _digest(campaign.roster.vins_of(place))}
            for place, (wave, tally) in enumerate(zip(decided.plan.waves, campaign.tallies, strict=True))
        ],
        "warnings": warnings_of(campaign, now_ms),
    }


def _digest(vins: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(vins).encode()).hexdigest()
