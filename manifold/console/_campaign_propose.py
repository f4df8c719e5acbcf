"""`manifold campaign propose`: examines a plan, its list and its data, and records plan and list."""

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifold.console._campaign_orders import UNCONFIRMED, UNKNOWN, By, Why, author_of, carry_out, print_outcome
from manifold.console._campaign_plan import At, PlanFile, TargetsFile, instant_of, read_document, read_or_fail
from manifold.console._output import FAILED, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table
from manifold.contracts import campaigns as r
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
    listed = _read_list(plan_file, document, targets)
    campaign = read_or_fail(proposals.examined(document, listed, proposals.policy_of(settings), now_ms), FAILED)
    try:
        size = _data_size_or_fail(settings, campaign)
        if dry_run:
            _show(read_or_fail(proposals.dry_run(campaign, size, now_ms), FAILED), as_json)
            return
        token = secrets.token_hex(16)
        fields = {"campaign": document["campaign"], "by": author, "why": why, "plan": document, "token": token}
        proposal = r.build_order(r.Propose, fields)
        assert isinstance(proposal, r.Propose)
        outcome = carry_out(
            settings, proposal.campaign, lambda read, publish: take_proposal(proposal, listed or (), read, publish)
        )
    except Retryable as exc:
        fail(f"{exc}; {UNKNOWN}", UNCONFIRMED)
    print_outcome(proposal, outcome, as_json)


def _read_list(plan_file: Path, document: dict[str, Any], file: Path | None) -> "Sequence[Target] | None":
    """Read the list of targets from the file of --targets, or else from the file that the plan names; None without either.

    The plan names its file relative to its own folder.
    """
    from manifold.campaigns.lists import read_targets

    if file is None and "file" not in document["targets"]:
        return None
    return read_or_fail(read_targets(file or plan_file.parent / document["targets"]["file"]))


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
    return fail(refusal) if refusal is not None else size


def _show(view: dict[str, Any], as_json: bool) -> None:
    """Print the result of a dry run."""
    if as_json:
        print_json(view)
        return
    waves = [(wave["name"], wave["targets"], wave["vins_sha256"]) for wave in view["waves"]]
    out.print(table(f"{view['campaign']}: {view['targets']} targets", ("wave", "targets", "SHA-256 of its VINs"), waves))
    for warning in view["warnings"]:
        out.print(f"warning: {warning}", highlight=False, markup=False)
    facts = [(name, view[name]) for name in ("data_id", "data_bytes", "in_no_wave", "plan_sha256")]
    out.print(table("nothing is recorded", ("what", "value"), facts))
