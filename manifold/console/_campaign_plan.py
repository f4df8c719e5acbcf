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
    """The plan as it is written, after its own rules were checked."""
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


def listed_in(document: dict[str, Any], file: Path | None) -> "Sequence[Target] | None":
    """The list: of the plan itself (then empty here), or of a file; None: neither."""
    from manifold.campaigns.lists import read_targets

    names_them = "vins" in document["targets"]
    if names_them and file is not None:
        fail(f"--targets {file}: the plan lists its vehicles itself; leave the option out, or name a file in the plan", USAGE)
    if names_them:
        return ()
    return None if file is None else read_or_fail(read_targets(file))


def campaign_of(file: Path, document: dict[str, Any], listed: "Sequence[Target]", policy: "Policy", now_ms: int) -> "Campaign":
    """Return the campaign that a plan and its list give; exit if they do not fit."""
    from manifold.campaigns.rehearsal import propose

    campaign = propose(document, listed, policy, now_ms)
    if isinstance(campaign, Refused):
        fail(f"{file}: {campaign.reason}")
    return campaign


def instant_of(text: str) -> int:
    """Return the instant (Unix ms) of `--at`, by default now; exit if it is none."""
    from manifold.campaigns.quantities import instant_ms

    if not text:
        return wall_clock_ms()
    try:
        return instant_ms(text)
    except ValueError as exc:
        fail(f"--at {text!r} {exc}", USAGE)


def read_or_fail(found: T | Refused, code: int = USAGE) -> T:
    """Return what was read; exit if it was refused."""
    return fail(found.reason, code) if isinstance(found, Refused) else found
