"""The options and files that commands on plans have in common."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from manifold.console._output import USAGE, fail
from manifold.contracts.messages import Refused
from manifold.contracts.seq import wall_clock_ms

if TYPE_CHECKING:  # loaded by the commands: a mere --help needs no arrays
    from manifold.campaigns.fold import Campaign
    from manifold.campaigns.step import Policy
    from manifold.contracts.campaigns import Target

T = TypeVar("T")
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="File with the plan, as JSON.")]
TargetsFile = Annotated[
    Path | None,
    typer.Option("--targets", metavar="FILE", help="The vehicles: CSV or Parquet with vin, zone, wave.", show_default=False),
]
At = Annotated[str, typer.Option("--at", metavar="INSTANT", help="When it is approved; default: now.", show_default=False)]


def read_document(file: Path) -> dict[str, Any]:
    """Read a plan; return its JSON document. Exit if the file cannot be read, or if the plan is invalid."""
    import msgspec

    from manifold.campaigns.parsing import parse_plan

    try:
        content = file.read_bytes()
    except OSError as exc:
        fail(f"cannot read {file} ({exc.strerror}); name a file that exists", USAGE)
    parsed = parse_plan(content)
    if isinstance(parsed, Refused):
        fail(f"{file}: {parsed.reason}")
    document: dict[str, Any] = msgspec.json.decode(content)
    return document


def read_targets_option(document: dict[str, Any], file: Path | None) -> "Sequence[Target] | None":
    """Return the targets from the file of --targets; None if the option is not given (`file` is None), so that they are unknown.

    If the plan lists its vehicles itself, there are no further targets: the result is empty, and the option is an error.
    """
    from manifold.campaigns.lists import read_targets

    lists_its_vehicles = "vins" in document["targets"]
    if lists_its_vehicles and file is not None:
        fail(f"--targets {file}: the plan lists its vehicles itself; leave the option out, or name a file in the plan", USAGE)
    if lists_its_vehicles:
        return ()
    if file is None:
        return None
    return result_or_fail(read_targets(file))


def campaign_of(file: Path, document: dict[str, Any], listed: "Sequence[Target]", policy: "Policy", now_ms: int) -> "Campaign":
    """Return the campaign as it would be after this plan is proposed with the `listed` targets, and approved at `now_ms`.

    If the plan would be refused, for example because the targets do not fit it, exits with an error that names the plan's `file`.
    """
    from manifold.campaigns.rehearsal import propose

    campaign = propose(document, listed, policy, now_ms)
    if isinstance(campaign, Refused):
        fail(f"{file}: {campaign.reason}")
    return campaign


def instant_of(text: str) -> int:
    """Return the instant given by --at in Unix milliseconds: the current time if the option is empty. Exit if it is invalid."""
    from manifold.campaigns.quantities import instant_ms

    if not text:
        return wall_clock_ms()
    try:
        return instant_ms(text)
    except ValueError as exc:
        fail(f"--at {text!r} {exc}", USAGE)


def result_or_fail(result: T | Refused, code: int = USAGE) -> T:
    """Return the result of a reader or check; if it is a refusal, print the reason and exit with this status."""
    if isinstance(result, Refused):
        fail(result.reason, code)
    return result
