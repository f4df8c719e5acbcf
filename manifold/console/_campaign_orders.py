"""`manifold campaign pause` and the other orders to a campaign. Each is published to the recorder, without the API."""

import asyncio
import getpass
import secrets
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from manifold.console._campaign_plan import PlanFile, read_document
from manifold.console._output import USAGE, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table
from manifold.contracts import campaigns as r
from manifold.contracts.errors import Retryable
from manifold.contracts.messages import NAME_RULE, Receipt
from manifold.contracts.names import MAX_ID, is_id
from manifold.settings import Settings

if TYPE_CHECKING:  # loaded by the commands: a mere --help needs no arrays
    from manifold.campaigns.fold import Campaign
    from manifold.campaigns.intake import Declined, Publish, Read, Taken

AWAY = 3  # exit status: the order is not on record, or the brake not on, as far as is known
NOT_ON = "the brake is therefore not on yet"
NOT_KNOWN_TO_BE_ON = "the brake is not known to be on: order it again"
UNKNOWN = "the order is therefore not known to be on record"
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
    _order(r.Pause, as_json, campaign=campaign, why=why, by=by, if_version=if_version)


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
    _order(r.Resume, as_json, campaign=campaign, why=why, by=by, if_version=if_version, accept=tuple(accept or ()))


@handle_errors
def cancel(
    campaign: CampaignId, why: Why = "", by: By = "", if_version: IfVersion = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """End a campaign for good: nothing of it is sent any more."""
    if not yes:
        typer.confirm(f"This ends {campaign} for good. Go on?", abort=True, err=True)
    _order(r.Cancel, as_json, campaign=campaign, why=why, by=by, if_version=if_version)


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
    _order(r.Approve, as_json, campaign=campaign, why=why, by=by, if_version=if_version, wave=wave)


@handle_errors
def refuse(campaign: CampaignId, why: Why = "", by: By = "", if_version: IfVersion = None, as_json: AsJson = False) -> None:
    """Refuse a proposal for good."""
    _order(r.Refuse, as_json, campaign=campaign, why=why, by=by, if_version=if_version)


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
    _order(r.Pass, as_json, campaign=campaign, why=why, by=by, if_version=if_version, wave=wave)


@handle_errors
def amend(
    campaign: CampaignId, plan_file: PlanFile, why: Why = "", by: By = "", if_version: IfVersion = None, as_json: AsJson = False
) -> None:
    """Replace the plan. Where the new one allows more, people have to approve it first."""
    document = read_document(plan_file)
    if document["campaign"] != campaign:
        fail(f"{plan_file}: campaign {document['campaign']!r} must be {campaign!r}, or be proposed as another", USAGE)
    _order(r.Amend, as_json, campaign=campaign, why=why, by=by, if_version=if_version, plan=document)


@handle_errors
def retry(
    campaign: CampaignId,
    ended: Annotated[list[str], typer.Option("--ended", help="How they had ended, such as failed; may be repeated.")],
    why: Why = "",
    by: By = "",
    if_version: IfVersion = None,
    as_json: AsJson = False,
) -> None:
    """Let targets whose last attempt has ended in one of these ways wait again."""
    if unknown := [each for each in ended if each not in get_args(r.Retriable)]:
        fail(f"--ended {unknown[0]!r} must be one of {', '.join(get_args(r.Retriable))}", USAGE)
    _order(r.Retry, as_json, campaign=campaign, why=why, by=by, if_version=if_version, ended=tuple(ended))


def settings_for(campaign: str) -> Settings:
    """Return the settings; exit unless this may be the id of a campaign."""
    if not is_id(campaign):
        fail(f"campaign {campaign!r} must be 1 to {MAX_ID} {NAME_RULE}", USAGE)
    return settings_or_fail()


def who(by: str) -> str:
    """Who orders: the claim of the option, or the user of this process."""
    by = by.strip() or getpass.getuser()
    if by.startswith(r.CAMPAIGNER):
        fail(f"--by {by!r} is a name of the campaigner; name a person", USAGE)
    return by


def carry_out(
    settings: Settings, name: str, run: "Callable[[Read, Publish], Coroutine[Any, Any, Taken | Declined]]"
) -> "Taken | Declined":
    """Run an intake function with the record of this campaign and a connection to the broker."""
    from manifold.campaigns.record import CampaignRecord, fold_into
    from manifold.messaging.publisher import Publisher

    record, known = CampaignRecord(settings, [name]), dict[str, "Campaign"]()

    def read() -> "Campaign | None":
        for facts in record.read():
            fold_into(known, facts)
        return known.get(name)

    async def publish(orders: Iterable[r.Command]) -> list[Receipt]:
        async with Publisher(settings, settings.mqtt_username_campaigns) as publisher:
            return await publisher.orders(orders)

    return asyncio.run(run(lambda _: asyncio.to_thread(read), publish))


def print_outcome(order: r.Command, found: "Taken | Declined", as_json: bool) -> None:
    """Print the effect of an order; exit unless it has one."""
    from manifold.campaigns.intake import Declined, Effect

    if isinstance(found, Declined):
        fail(found.reason)
    facts = {"campaign": order.campaign, "do": str(order.__struct_config__.tag), "by": order.by, "seq": found.seq}
    facts |= {"effect": str(found.effect), "reason": found.reason}
    if as_json:
        print_json(facts | {"token": order.token})
    else:
        out.print(table("", ("campaign", "order", "by", "seq", "effect", "why"), [tuple(facts.values())]))
    if found.effect is Effect.NONE:
        fail(f"it is on record as {found.seq} and has no effect: {found.reason}")
    if found.effect is Effect.NOT_IN_FORCE:
        fail(f"{found.reason}; {NOT_ON}", AWAY)


def _order(kind: type[r.Order], as_json: bool, *, by: str, **fields: Any) -> None:
    from manifold.campaigns.intake import BRAKES, take

    name = fields["campaign"]
    settings = settings_for(name)
    try:
        order = r.build_order(kind, fields | {"by": who(by), "token": secrets.token_hex(16)})
    except ValueError as exc:
        fail(str(exc), USAGE)
    try:
        found = carry_out(settings, name, lambda read, publish: take(order, read, publish))
    except Retryable as exc:
        fail(f"{exc}; {NOT_KNOWN_TO_BE_ON if kind in BRAKES else UNKNOWN}", AWAY)
    print_outcome(order, found, as_json)
