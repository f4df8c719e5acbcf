"""`manifold campaign propose`: examines a plan, its list and its data, and records plan and list."""

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifold.console._campaign_orders import ORDER_UNKNOWN, UNCONFIRMED, By, Why, author_of, carry_out, print_outcome
from manifold.console._campaign_plan import At, PlanFile, TargetsFile, instant_of, read_document, result_or_fail
from manifold.console._output import FAILED, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table
from manifold.contracts import campaigns as records
from manifold.contracts.errors import Retryable
from manifold.settings import Settings

if TYPE_CHECKING:  # loaded by the command: a mere --help needs no arrays
    from manifold.campaigns.fold import Campaign
    from manifold.contracts.campaigns import Target

DryRun = Annotated[bool, typer.Option("--dry-run", help="Examine the proposal, and record nothing.")]


@handle_errors
def propose(
    plan_file: PlanFile,
    dry_run: DryRun = False,
    targets: TargetsFile = None,
    why: Why = "",
    by: By = "",
    at: At = "",
    as_json: AsJson = False,
) -> None:
    """Propose a plan: it is examined, and recorded with its list of vehicles. Then people approve it."""
    from manifold.campaigns import proposals
    from manifold.campaigns.intake import take_proposal

    settings = settings_or_fail()
    document = read_document(plan_file)
    now_ms = instant_of(at)
    author = author_of(by)
    listed = _read_targets(plan_file, document, targets)
    campaign = result_or_fail(proposals.examined(document, listed, proposals.policy_of(settings), now_ms), FAILED)
    try:
        data_bytes = _data_size_or_fail(settings, campaign)
        if dry_run:
            effects = result_or_fail(proposals.dry_run(campaign, data_bytes, now_ms), FAILED)
            _print_dry_run(effects, as_json)
            return
        token = secrets.token_hex(16)
        fields = {"campaign": document["campaign"], "by": author, "why": why, "plan": document, "token": token}
        proposal = records.build_order(records.Propose, fields)
        assert isinstance(proposal, records.Propose)
        outcome = carry_out(
            settings, proposal.campaign, lambda read, publish: take_proposal(proposal, listed or (), read, publish)
        )
    except Retryable as exc:
        fail(f"{exc}; {ORDER_UNKNOWN}", UNCONFIRMED)
    print_outcome(proposal, outcome, as_json)


def _read_targets(plan_file: Path, document: dict[str, Any], targets_file: Path | None) -> "Sequence[Target] | None":
    """Read the targets from the file of --targets, or else from the file that the plan names.

    The plan names its file relative to the plan's own folder. None if there is neither file: either the plan lists its vehicles
    itself, or the campaign is proposed without its list, and waits for it.
    """
    from manifold.campaigns.lists import read_targets

    if targets_file is not None:
        return result_or_fail(read_targets(targets_file))
    if "file" in document["targets"]:
        return result_or_fail(read_targets(plan_file.parent / document["targets"]["file"]))
    return None


def _data_size_or_fail(settings: Settings, campaign: "Campaign") -> int | None:
    """Return the size of the campaign's data in bytes; exit if the data cannot be sent.

    The size is None if the data is not published yet and the plan allows that.
    """
    from manifold.campaigns.proposals import data_refusal
    from manifold.console._history import history_of, redis_of
    from manifold.contracts import keys
    from manifold.messaging.publisher import Publisher

    async def largest_packet() -> int:
        async with Publisher(settings, settings.mqtt_username_campaigns) as publisher:
            return publisher.largest_packet

    plan = campaign.decided.plan
    assert plan is not None
    key = keys.data(plan.data_id)
    with redis_of(settings) as redis:
        size = int(str(redis.strlen(key))) if redis.exists(key) else None
    if size is None:
        with history_of(settings) as history:
            data = history.data(plan.data_id)
        size = None if data is None else len(data.payload)
    refusal = data_refusal(plan, size, asyncio.run(largest_packet()), settings.topic_prefix)
    if refusal is not None:
        fail(refusal)
    return size


def _print_dry_run(effects: dict[str, Any], as_json: bool) -> None:
    """Print what the proposal would do."""
    if as_json:
        print_json(effects)
        return
    waves = [(wave["name"], wave["targets"], wave["vins_sha256"]) for wave in effects["waves"]]
    out.print(table(f"{effects['campaign']}: {effects['targets']} targets", ("wave", "targets", "SHA-256 of its VINs"), waves))
    for warning in effects["warnings"]:
        out.print(f"warning: {warning}", highlight=False, markup=False)
    facts = [(name, effects[name]) for name in ("data_id", "data_bytes", "in_no_wave", "plan_sha256")]
    out.print(table("nothing is recorded", ("what", "value"), facts))
