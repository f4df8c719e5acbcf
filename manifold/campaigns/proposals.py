"""Examines a proposal (its plan, list of targets and data) before it is recorded, and divides its list into records."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from manifold.campaigns.fold import Campaign
from manifold.campaigns.parsing import plan_of
from manifold.campaigns.plan import Plan, Wave
from manifold.campaigns.rehearsal import propose
from manifold.campaigns.step import Policy
from manifold.campaigns.warnings import warnings_of
from manifold.contracts import campaigns as r
from manifold.contracts.messages import Refused, shown
from manifold.contracts.names import MAX_VIN
from manifold.contracts.topics import request_topic
from manifold.settings import Settings

LISTS = "_lists"  # the archive's folder of files that plans name, next to the folders of its streams
PUBLISH_OVERHEAD_BYTES = 256  # fixed header and properties of an MQTT PUBLISH packet, without topic and payload


def policy_of(settings: Settings) -> Policy:
    """Return the policy with which plans are examined and forecast."""
    return Policy(ack_deadline_ms=int(settings.ack_deadline_seconds * 1000))


def examined(document: dict[str, Any], listed: Sequence[r.Target] | None, policy: Policy, now_ms: int) -> Campaign | Refused:
    """Return the campaign that this proposal would create, or why it is refused.

    `listed` is a list of targets from a file that the proposer has read. If it is None and the plan does not list its vehicles
    itself, the campaign waits until its list is read from the plan's source; a file has to be in the archive then.
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
    """Whether `path` is a relative path that stays below its base folder and has no hidden part."""
    parts = PurePosixPath(path).parts
    has_unsafe_part = any(part == "/" or part.startswith(".") for part in parts)
    return bool(parts) and path.isprintable() and not has_unsafe_part


def data_refusal(plan: Plan, size: int | None, largest_packet: int, topic_prefix: str) -> str | None:
    """Return why the data of a plan cannot be sent, or None if it can be sent.

    `size` is the payload's size in bytes, or None if no data is published under the plan's `data_id`.
    """
    if size is None:
        if plan.wait_for_data:
            return None
        remedy = "publish it first (manifold send --data FILE --data-id ID), or set wait_for_data to true"
        return f"data_id {shown(plan.data_id)}: nothing was published under it; {remedy}"
    longest_topic = request_topic(topic_prefix, "V" * MAX_VIN, plan.campaign)
    packet_bytes = size + len(longest_topic) + PUBLISH_OVERHEAD_BYTES
    if packet_bytes > largest_packet:
        problem = f"a packet of {packet_bytes} bytes is over the {largest_packet} that the broker takes"
        return f"data_id {shown(plan.data_id)}: {problem}; publish smaller data, or raise the limit of the broker"
    return None


def target_orders(campaign: str, by: str, listed: Sequence[r.Target]) -> Iterator[r.AddTargets]:
    """Yield the orders that record a list of targets, with at most `MAX_TARGETS` targets each."""
    for start in range(0, len(listed), r.MAX_TARGETS):
        end = start + r.MAX_TARGETS
        yield r.AddTargets(campaign, by, targets=tuple(listed[start:end]), more=end < len(listed))


def dry_run(campaign: Campaign, data_bytes: int | None, now_ms: int) -> dict[str, Any] | Refused:
    """Return what a proposal would do, as JSON values, or why that cannot be known yet.

    The result contains no timestamp. It depends only on plan, list and data, except that days before `now_ms` (Unix ms) give no
    warning.
    """
    decided = campaign.decided
    assert decided.plan is not None
    if not campaign.tallies:
        return Refused("targets: the DAG campaign_targets resolves this list once it is proposed; a dry run needs vins or a file")
    listed_vins = {target.vin for target in decided.targets}
    return {
        "campaign": decided.plan.campaign,
        "plan_sha256": decided.plan_sha256,
        "data_id": decided.plan.data_id,
        "data_bytes": data_bytes,
        "targets": len(campaign.roster),
        "in_no_wave": len(listed_vins - campaign.roster.number_of.keys()),
        "waves": [_wave_json(campaign, index, wave) for index, wave in enumerate(decided.plan.waves)],
        "warnings": warnings_of(campaign, now_ms),
    }


def _wave_json(campaign: Campaign, index: int, wave: Wave) -> dict[str, Any]:
    """Return the name of a wave, its number of targets, and a SHA-256 digest of their VINs in the order of the draw."""
    vins = campaign.roster.vins_of(index)
    return {"name": wave.name, "targets": len(vins), "vins_sha256": hashlib.sha256("\n".join(vins).encode()).hexdigest()}
