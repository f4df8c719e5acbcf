"""`manifold campaign`: check a plan, and forecast it, before anybody proposes it. No server is needed."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from manifold.console import _campaign_orders as orders
from manifold.console import _campaign_show as views
from manifold.console._campaign_plan import (
    At,
    PlanFile,
    TargetsFile,
    campaign_of,
    instant_of,
    read_document,
    read_targets_option,
    result_or_fail,
)
from manifold.console._campaign_propose import propose
from manifold.console._output import USAGE, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table

if TYPE_CHECKING:  # loaded by the commands: a mere --help needs no arrays
    from manifold.campaigns.forecast import Quantiles
    from manifold.campaigns.plan import Gate

Commands = tuple[Callable[..., None], ...]
ALL_CONNECTED: Sequence[int | None] = (0,)  # absences of vehicles (ms) for a forecast in which no vehicle is away
app = typer.Typer(help="Send data to a list of vehicles, in waves, under a plan.", no_args_is_help=True)
# Commands are listed in --help in the order in which they are added; those that stop a campaign come first.
_STOP_COMMANDS: Commands = (orders.pause, orders.resume, orders.cancel)
for _command in _STOP_COMMANDS:
    app.command()(_command)
app.command()(propose)
AbsencesFile = Annotated[
    Path | None,
    typer.Option(
        "--absences",
        metavar="FILE",
        help="How long vehicles have stayed away, one a line, such as 3h or never. Without it, all are connected.",
        show_default=False,
    ),
]


@app.command()
@handle_errors
def check(plan_file: PlanFile, targets: TargetsFile = None, at: At = "", as_json: AsJson = False) -> None:
    """Check a plan: each mistake with field, value and remedy; else its waves, what may surprise, and when it would end."""
    from manifold.campaigns.forecast import forecast
    from manifold.campaigns.parsing import plan_sha256
    from manifold.campaigns.proposals import policy_of
    from manifold.campaigns.warnings import warnings_of

    document = read_document(plan_file)
    now_ms = instant_of(at)
    policy = policy_of(settings_or_fail())
    sha256 = plan_sha256(document)
    listed = read_targets_option(document, targets)
    if listed is None:  # without its targets, the rest of the plan cannot be checked
        if as_json:
            print_json({"plan_sha256": sha256, "targets": None})
        else:
            out.print(f"{plan_file} is valid; its list of targets was not checked: give --targets FILE")
        return
    campaign = campaign_of(plan_file, document, listed, policy, now_ms)
    plan = campaign.decided.plan
    assert plan is not None
    end = _as_datetime(forecast(campaign, ALL_CONNECTED, policy, now_ms, draws=1).end.p50)
    wave_names = [wave.name for wave in plan.waves]
    wave_sizes = [sum(tally.values()) for tally in campaign.tallies]  # number of targets
    warnings = warnings_of(campaign, now_ms)
    if as_json:
        waves = [{"name": name, "targets": size} for name, size in zip(wave_names, wave_sizes, strict=True)]
        facts = {"plan_sha256": sha256, "targets": sum(wave_sizes), "waves": waves, "warnings": warnings}
        print_json(facts | {"end_if_all_are_connected": end})
        return
    gates = [_describe_gate(wave.gate) for wave in plan.waves[:-1]] + ["–"]  # after the last wave, no gate opens another
    rows = zip(wave_names, wave_sizes, gates, strict=True)
    out.print(table(f"{plan.campaign}: {sum(wave_sizes)} targets", ("wave", "targets", "gate to the next"), rows))
    for warning in warnings:
        out.print(f"warning: {warning}", highlight=False, markup=False)
    if not plan.window and plan.rate is None and plan.away == "wait":
        out.print("no rate and no window: whoever is connected when its wave opens is released at once")
    out.print(table("", ("what", "value"), [("end, if all are connected", end), ("plan_sha256", sha256)]))


@app.command("forecast")
@handle_errors
def forecast_command(
    plan_file: PlanFile, targets: TargetsFile = None, absences: AbsencesFile = None, at: At = "", as_json: AsJson = False
) -> None:
    """When each share of the targets would be delivered: p10, p50 and p90 over simulations of the plan with a random fleet."""
    from manifold.campaigns.forecast import forecast
    from manifold.campaigns.lists import read_absences
    from manifold.campaigns.proposals import policy_of
    from manifold.campaigns.views import forecast_view

    document = read_document(plan_file)
    now_ms = instant_of(at)
    policy = policy_of(settings_or_fail())
    listed = read_targets_option(document, targets)
    if listed is None:
        fail(f"{plan_file} does not list its vehicles itself; give --targets FILE", USAGE)
    absences_ms = ALL_CONNECTED if absences is None else result_or_fail(read_absences(absences))
    campaign = campaign_of(plan_file, document, listed, policy, now_ms)
    result = forecast(campaign, absences_ms, policy, now_ms)
    if as_json:
        print_json(forecast_view(result))
        return
    rows = [_quantiles_row(f"{percent} % delivered", times) for percent, times in result.delivered.items()]
    rows.append(_quantiles_row("end", result.end))
    title = f"{document['campaign']}: {len(campaign.roster)} targets, {result.draws} draws"
    out.print(table(title, ("what", "p10", "p50", "p90"), rows))
    out.print(f"not delivered before the end of the plan: {result.never} targets (median)", highlight=False)
    if absences is None:
        out.print("assumed: every vehicle is connected; --absences FILE says how long vehicles stay away")
    out.print("assumed: people approve each gate at once, and every delivery succeeds")


app.command()(orders.approve)
app.command()(orders.refuse)
app.command("pass")(orders.pass_gate)
_LATER_COMMANDS: Commands = (
    orders.amend,
    orders.retry,
    views.ls,
    views.show,
    views.targets,
    views.events,
    views.report,
    views.verify,
)
for _command in _LATER_COMMANDS:
    app.command()(_command)


def _describe_gate(gate: "Gate") -> str:
    """The conditions of a gate; those on success, soak and approval are omitted if they always hold."""
    conditions = [f"released {gate.released}", f"known {gate.known}"]
    if gate.success != "0%":
        conditions.append(f"success {gate.success}")
    if gate.soak != "0s":
        conditions.append(f"soak {gate.soak}")
    if gate.approve:
        conditions.append(f"approved by {gate.approve}")
    return ", ".join(conditions)


def _quantiles_row(label: str, times: "Quantiles") -> tuple[object, ...]:
    return (label, _as_datetime(times.p10), _as_datetime(times.p50), _as_datetime(times.p90))


def _as_datetime(unix_ms: int | None) -> datetime | None:
    return None if unix_ms is None else datetime.fromtimestamp(unix_ms / 1000, UTC)
