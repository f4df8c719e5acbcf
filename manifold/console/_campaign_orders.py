"""`manifold campaign pause` and the other orders to a campaign. Each is published to the recorder, without the API."""

import asyncio
import getpass
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import msgspec
import typer

from manifold.console._campaign_plan import PlanFile, read_document
from manifold.console._output import FAILED, USAGE, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table
from manifold.contracts import campaigns as r
from manifold.contracts.errors import Retryable
from manifold.contracts.messages import NAME_RULE, Receipt, ReceiptStatus
from manifold.contracts.names import MAX_ID, is_id
from manifold.settings import Settings

AWAY = 3  # exit status: the order is not on record, or the brake not on yet
NOT_ON = "the brake is therefore not on yet"
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
    _order(r.Pause, as_json, is_brake=True, campaign=campaign, why=why, by=by, if_version=if_version)


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
    """Go on after a pause. The rules that tripped have to be accepted, and count anew."""
    _order(r.Resume, as_json, campaign=campaign, why=why, by=by, if_version=if_version, accept=tuple(accept or ()))


@handle_errors
def cancel(
    campaign: CampaignId, why: Why = "", by: By = "", if_version: IfVersion = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """End a campaign for good: nothing of it is sent any more."""
    if not yes:
        typer.confirm(f"This ends {campaign} for good. Go on?", abort=True, err=True)
    _order(r.Cancel, as_json, is_brake=True, campaign=campaign, why=why, by=by, if_version=if_version)


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
    _order(r.Retry, as_json, campaign=campaign, why=why, by=by, if_version=if_version, ended=tuple(ended))


def who(by: str) -> str:
    """Who orders: the claim of the option, or the user of this process."""
    by = by.strip() or getpass.getuser()
    if by.startswith(r.CAMPAIGNER):
        fail(f"--by {by!r} is a name of the campaigner; name a person", USAGE)
    return by


def publish(settings: Settings, commands: Sequence[r.Command]) -> Receipt:
    """Publish orders; return the receipt of the first once all are on disk, or of the one that was refused."""
    from manifold.messaging.publisher import Publisher

    async def run() -> Receipt:
        async with Publisher(settings, settings.mqtt_username_campaigns) as publisher:
            receipts = []
            for command in commands:
                receipts.append(await publisher.order(command))
                if receipts[-1].status is ReceiptStatus.REFUSED:
                    return receipts[-1]
            return receipts[0]

    return asyncio.run(run())


def tell(command: r.Command, receipt: Receipt, as_json: bool) -> None:
    """Print the receipt of an order; exit if it was refused."""
    facts = {"campaign": command.campaign, "do": str(command.__struct_config__.tag), "by": command.by, "seq": receipt.seq}
    facts |= {"status": receipt.status.value, "reason": receipt.reason}
    if as_json:
        print_json(facts | {"token": command.token})
    else:
        out.print(table("", ("campaign", "order", "by", "seq", "status", "why"), [tuple(facts.values())]))
    if receipt.status is ReceiptStatus.REFUSED:
        raise typer.Exit(FAILED)


def _order(kind: type[Any], as_json: bool, *, by: str, is_brake: bool = False, **fields: Any) -> None:
    if not is_id(fields["campaign"]):
        fail(f"campaign {fields['campaign']!r} must be 1 to {MAX_ID} {NAME_RULE}", USAGE)
    settings = settings_or_fail()
    try:
        command = r.checked(kind(by=who(by), token=secrets.token_hex(16), **fields))
    except (ValueError, msgspec.ValidationError) as exc:
        fail(str(exc), USAGE)
    try:
        receipt = publish(settings, [command])
    except Retryable as exc:
        _away(exc, is_brake)
    tell(command, receipt, as_json)


def _away(exc: Retryable, is_brake: bool) -> NoReturn:
    fail(f"{exc}; {NOT_ON if is_brake else 'the order is therefore not known to be on record'}", AWAY)
