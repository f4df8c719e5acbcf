"""`manifold campaign pause` and the other orders to a campaign. Each is published to the recorder, without the API."""

import asyncio
import getpass
import secrets
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from manifold.console._campaign_plan import PlanFile, read_document
from manifold.console._output import USAGE, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table
from manifold.contracts import campaigns as records
from manifold.contracts.errors import Retryable
from manifold.contracts.messages import NAME_RULE, Receipt
from manifold.contracts.names import MAX_ID, is_id
from manifold.settings import Settings

if TYPE_CHECKING:  # loaded by the commands: a mere --help needs no arrays
    from manifold.campaigns.fold import Campaign
    from manifold.campaigns.intake import Declined, Publish, Read, Taken

# Exit status: it is unknown whether the order is on record, or the order that stops the campaign has no effect yet.
UNCONFIRMED = 3
BRAKE_NOT_ON = "the brake is therefore not on yet"
BRAKE_UNKNOWN = "the brake is not known to be on: order it again"
ORDER_UNKNOWN = "the order is therefore not known to be on record"
CampaignId = Annotated[str, typer.Argument(metavar="CAMPAIGN", help="The campaign.")]
Why = Annotated[str, typer.Option("--why", help="Why; it is kept on record.", show_default=False)]
By = Annotated[
    str,
    typer.Option("--by", help="Who orders it, as the operator claims; default: the user of this process.", show_default=False),
]
IfVersion = Annotated[
    int | None, typer.Option("--if-version", min=0, help="Only if the campaign has this version still.", show_default=False)
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Wave = Annotated[int, typer.Option("--wave", min=0, help="Place of the open wave, from 0.")]


@handle_errors
def pause(campaign: CampaignId, why: Why = "", by: By = "", if_version: IfVersion = None, as_json: AsJson = False) -> None:
    """Put the brake on: nothing of the campaign is sent until `resume`. Asks nothing, and needs neither API nor campaigner."""
    _give_order(records.Pause, as_json, campaign=campaign, why=why, by=by, if_version=if_version)


@handle_errors
def resume(
    campaign: CampaignId,
    accept: Annotated[
        list[str] | None, typer.Option("--accept", metavar="RULE", help="A rule that tripped; may be repeated.")
    ] = None,
    why: Why = "",
    by: By = "",
    if_version: IfVersion = None,
    as_json: AsJson = False,
) -> None:
    """Resume after a pause. The rules that tripped have to be accepted, and count from zero again."""
    _give_order(records.Resume, as_json, campaign=campaign, why=why, by=by, if_version=if_version, accept=tuple(accept or ()))


@handle_errors
def cancel(
    campaign: CampaignId, why: Why = "", by: By = "", if_version: IfVersion = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """End a campaign for good: nothing of it is sent any more."""
    if not yes:
        typer.confirm(f"This ends {campaign} for good. Go on?", abort=True, err=True)
    _give_order(records.Cancel, as_json, campaign=campaign, why=why, by=by, if_version=if_version)


@handle_errors
def approve(
    campaign: CampaignId,
    wave: Annotated[
        int | None, typer.Option("--wave", min=0, help="The gate of this wave, from 0; default: the plan.", show_default=False)
    ] = None,
    why: Why = "",
    by: By = "",
    if_version: IfVersion = None,
    as_json: AsJson = False,
) -> None:
    """Approve a plan, an amendment, or the gate of a wave."""
    _give_order(records.Approve, as_json, campaign=campaign, why=why, by=by, if_version=if_version, wave=wave)


@handle_errors
def refuse(campaign: CampaignId, why: Why = "", by: By = "", if_version: IfVersion = None, as_json: AsJson = False) -> None:
    """Refuse a proposal for good."""
    _give_order(records.Refuse, as_json, campaign=campaign, why=why, by=by, if_version=if_version)


@handle_errors
def pass_gate(
    campaign: CampaignId,
    wave: Wave,
    why: Annotated[str, typer.Option("--why", help="Why; it is kept on record.")],
    by: By = "",
    if_version: IfVersion = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Open the next wave although the gate of the open one does not hold."""
    if not why.strip():
        fail("--why '': say why the gate is passed; it is kept on record", USAGE)
    if not yes:
        typer.confirm(f"This opens the wave after {wave} of {campaign}, whatever its gate says. Go on?", abort=True, err=True)
    _give_order(records.Pass, as_json, campaign=campaign, why=why, by=by, if_version=if_version, wave=wave)


@handle_errors
def amend(
    campaign: CampaignId, plan_file: PlanFile, why: Why = "", by: By = "", if_version: IfVersion = None, as_json: AsJson = False
) -> None:
    """Replace the plan. Where the new one allows more, people have to approve it first."""
    document = read_document(plan_file)
    if document["campaign"] != campaign:
        fail(f"{plan_file}: campaign {document['campaign']!r} must be {campaign!r}, or be proposed as another", USAGE)
    _give_order(records.Amend, as_json, campaign=campaign, why=why, by=by, if_version=if_version, plan=document)


@handle_errors
def retry(
    campaign: CampaignId,
    ended: Annotated[list[str], typer.Option("--ended", help="How they had ended, such as failed; may be repeated.")],
    why: Why = "",
    by: By = "",
    if_version: IfVersion = None,
    as_json: AsJson = False,
) -> None:
    """Let targets wait for another attempt if their last attempt has ended in one of these ways."""
    allowed = get_args(records.Retriable)
    unknown = [word for word in ended if word not in allowed]
    if unknown:
        fail(f"--ended {unknown[0]!r} must be one of {', '.join(allowed)}", USAGE)
    _give_order(records.Retry, as_json, campaign=campaign, why=why, by=by, if_version=if_version, ended=tuple(ended))


def settings_for(campaign: str) -> Settings:
    """Return the settings; exit with an error if this cannot be the id of a campaign."""
    if not is_id(campaign):
        fail(f"campaign {campaign!r} must be 1 to {MAX_ID} {NAME_RULE}", USAGE)
    return settings_or_fail()


def author_of(by: str) -> str:
    """The author of an order: the value of --by, or the user of this process if it is empty."""
    author = by.strip() or getpass.getuser()
    if author.startswith(records.CAMPAIGNER):
        fail(f"--by {author!r} is a name of the campaigner; name a person", USAGE)
    return author


def carry_out(
    settings: Settings, name: str, intake: "Callable[[Read, Publish], Coroutine[Any, Any, Taken | Declined]]"
) -> "Taken | Declined":
    """Call `intake` with two functions, and return its result: one reads this campaign's record, the other publishes orders."""
    from manifold.campaigns.record import CampaignRecord, fold_into
    from manifold.messaging.publisher import Publisher

    record = CampaignRecord(settings, [name])
    campaigns: dict[str, Campaign] = {}

    def read() -> "Campaign | None":
        for facts in record.read():  # only those that are new since the last call
            fold_into(campaigns, facts)
        return campaigns.get(name)

    async def publish(orders: Iterable[records.Command]) -> list[Receipt]:
        async with Publisher(settings, settings.mqtt_username_campaigns) as publisher:
            return await publisher.orders(orders)

    # `intake` passes the campaign's id, which is not needed: the record is that of this campaign alone.
    return asyncio.run(intake(lambda _: asyncio.to_thread(read), publish))


def print_outcome(order: records.Command, outcome: "Taken | Declined", as_json: bool) -> None:
    """Print the outcome of an order; exit with an error if it was declined, has no effect, or is not in force yet."""
    from manifold.campaigns.intake import Declined, Effect

    if isinstance(outcome, Declined):
        fail(outcome.reason)
    facts = {
        "campaign": order.campaign,
        "do": str(order.__struct_config__.tag),  # the kind of order, such as pause
        "by": order.by,
        "seq": outcome.seq,
        "effect": str(outcome.effect),
        "reason": outcome.reason,
    }
    if as_json:
        print_json(facts | {"token": order.token})
    else:
        out.print(table("", ("campaign", "order", "by", "seq", "effect", "why"), [tuple(facts.values())]))
    if outcome.effect is Effect.NONE:
        fail(f"it is on record as {outcome.seq} and has no effect: {outcome.reason}")
    if outcome.effect is Effect.NOT_IN_FORCE:
        fail(f"{outcome.reason}; {BRAKE_NOT_ON}", UNCONFIRMED)


def _give_order(kind: type[records.Order], as_json: bool, *, by: str, **fields: Any) -> None:
    """Build an order of this kind from its fields, publish it, and print its outcome; exit if it is invalid or has no effect."""
    from manifold.campaigns.intake import BRAKES, take

    name = fields["campaign"]
    settings = settings_for(name)
    try:
        order = records.build_order(kind, fields | {"by": author_of(by), "token": secrets.token_hex(16)})
    except ValueError as exc:
        fail(str(exc), USAGE)
    try:
        outcome = carry_out(settings, name, lambda read, publish: take(order, read, publish))
    except Retryable as exc:
        consequence = BRAKE_UNKNOWN if kind in BRAKES else ORDER_UNKNOWN
        fail(f"{exc}; {consequence}", UNCONFIRMED)
    print_outcome(order, outcome, as_json)
