"""`manifold campaign ls`, `show`, `targets`, `events`, `report` and `verify`: what is on record of campaigns."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifold.console._campaign_orders import CampaignId, settings_for
from manifold.console._output import (
    FAILED,
    USAGE,
    AsJson,
    command_line,
    fail,
    handle_errors,
    out,
    print_json,
    settings_or_fail,
    table,
)
from manifold.contracts.seq import wall_clock_ms

if TYPE_CHECKING:  # loaded by the commands: a mere --help needs no arrays
    from manifold.campaigns.facts import Fact
    from manifold.campaigns.falsifications import Sent
    from manifold.campaigns.fold import Campaign

REFRESH_INTERVAL_S = 2.0  # of `show --watch`
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="So many at most.")]
FromLake = Annotated[
    bool, typer.Option("--lake", help="From the lake, which has the first publishes too; default: from archive and recorders.")
]
State = Annotated[str, typer.Option("--state", help="Only those with this state.", show_default=False)]


@handle_errors
def ls(state: State = "", as_json: AsJson = False) -> None:
    """The campaigns on record, oldest proposal first: the state of each, and why it is in this state."""
    from manifold.campaigns import views
    from manifold.campaigns.decided import Stage
    from manifold.campaigns.record import read_campaigns

    _require_word("--state", state, Stage)
    campaigns = read_campaigns(settings_or_fail(), ended_since=0)  # also those that ended long ago
    summaries = [views.summary(name, campaign, wall_clock_ms()) for name, campaign in views.in_order(campaigns)]
    if state:
        summaries = [summary for summary in summaries if summary["state"] == state]
    if as_json:
        print_json(summaries)
        return
    if not summaries:
        out.print("no campaign is on record")
        return
    columns = ("campaign", "state", "because", "version", "targets", "proposed at")
    rows = [(s["campaign"], s["state"], s["because"], s["version"], s["targets"], s["proposed_at"]) for s in summaries]
    out.print(table(f"{len(rows)} campaigns", columns, rows))


@handle_errors
def show(
    campaign: CampaignId,
    watch: Annotated[bool, typer.Option("--watch", help="Again every 2 s, until it is over or Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """The state of a campaign, and why; its counts by wave and state; its rate. With --watch and --json one line each time."""
    from manifold.campaigns.record import CampaignRecord, fold_into
    from manifold.campaigns.views import summary

    record = CampaignRecord(settings_for(campaign), [campaign])
    campaigns: dict[str, Campaign] = {}

    def read() -> "Campaign":
        for facts in record.read():  # only those that are new since the last call
            fold_into(campaigns, facts)
        return _require_proposed(campaign, campaigns)

    current = read()
    if watch:
        _watch(campaign, current, read, as_json)
        return
    view = summary(campaign, current, wall_clock_ms())
    if as_json:
        print_json(view)
    else:
        out.print(_render(view))


@handle_errors
def targets(
    campaign: CampaignId,
    state: State = "",
    wave: Annotated[
        int | None, typer.Option("--wave", min=0, help="Only of the wave at this place, from 0.", show_default=False)
    ] = None,
    after: Annotated[str, typer.Option("--after", metavar="VIN", help="Only those behind this one.", show_default=False)] = "",
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """The targets of a campaign and their states, wave by wave; within a wave, in the order in which they were drawn."""
    from manifold.campaigns import views
    from manifold.campaigns.standing import Status

    _require_word("--state", state, Status)
    status = Status(state) if state else None
    recorded = _read_campaign(campaign)
    try:
        page, next_after = views.targets(recorded, state=status, wave=wave, after=after, limit=limit)
    except LookupError:
        fail(f"--after {after!r} is not a target of {campaign}; name one of its targets", USAGE)
    if as_json:
        print_json({"campaign": campaign, "targets": page, "after": next_after})
        return
    columns = ("vin", "wave", "zone", "state", "since", "not before")
    rows = [(t["vin"], t["wave_name"], t["zone"], t["state"], t["since"], t["not_before"]) for t in page]
    out.print(table(f"{campaign}, {len(rows)} targets", columns, rows) if rows else f"{campaign}: no such target")
    if next_after is not None:
        command = command_line("campaign", "targets", campaign, state=state, wave=wave, after=next_after, limit=limit)
        out.print(f"further ones: {command}", highlight=False, markup=False)


@handle_errors
def events(
    campaign: CampaignId,
    after: Annotated[
        int, typer.Option("--after", metavar="SEQ", min=0, help="Only those behind this seq.", show_default=False)
    ] = 0,
    limit: Limit = 1000,
    as_json: AsJson = False,
) -> None:
    """The recorded orders of a campaign, oldest first: of people and of the campaigner, with their reasons."""
    from manifold.campaigns import views

    page, next_after = views.events(_read_campaign(campaign), after=after, limit=limit)
    if as_json:
        print_json({"campaign": campaign, "events": page, "after": next_after})
        return
    columns = ("seq", "at", "order", "by", "why", "details", "without effect because")
    rows = [(e["seq"], e["at"], e["do"], e["by"], e["why"], _format_values(e["details"]), e["without_effect"]) for e in page]
    out.print(table(f"{campaign}, {len(rows)} orders", columns, rows))
    if next_after is not None:
        command = command_line("campaign", "events", campaign, after=next_after, limit=limit)
        out.print(f"further ones: {command}", highlight=False, markup=False)


@handle_errors
def report(campaign: CampaignId, lake: FromLake = False) -> None:
    """The proof of a campaign as JSON: its numbers, every order, and what a verification of its record found."""
    from manifold.campaigns.proof import report as proof_of

    facts, sent = _read_facts(campaign, lake)
    print_json(proof_of(facts, sent))


@handle_errors
def verify(campaign: CampaignId, lake: FromLake = False, as_json: AsJson = False) -> None:
    """Recompute a campaign from its record, and name what the record cannot explain; exit 1 if there is anything."""
    from manifold.campaigns.proof import finding
    from manifold.campaigns.verification import verify as find_falsifications

    facts, sent = _read_facts(campaign, lake)
    findings = [finding(falsification) for falsification in find_falsifications(facts, sent)]
    if as_json:
        print_json({"campaign": campaign, "is_proved": not findings, "falsifications": findings})
    elif findings:
        rows = [(found["kind"], found["seq"], found["vin"], found["detail"]) for found in findings]
        out.print(table(f"{campaign}: NOT PROVED", ("what", "seq", "vin", "detail"), rows))
    else:
        out.print(f"{campaign}: the record explains every release, decision and end", highlight=False, markup=False)
    if findings:
        raise typer.Exit(FAILED)


def _watch(name: str, campaign: "Campaign", read: "Callable[[], Campaign]", as_json: bool) -> None:
    """Show the campaign, and again every `REFRESH_INTERVAL_S` seconds as `read` returns it, until it is over or Ctrl-C."""
    from rich.live import Live

    from manifold.campaigns.decided import OVER
    from manifold.campaigns.views import summary

    try:
        with Live(console=out, auto_refresh=False) as live:
            while True:
                view = summary(name, campaign, wall_clock_ms())
                if as_json:
                    sys.stdout.write(json.dumps(view, default=str) + "\n")
                    sys.stdout.flush()
                else:
                    live.update(_render(view), refresh=True)
                if campaign.decided.stage in OVER:
                    return
                time.sleep(REFRESH_INTERVAL_S)
                campaign = read()
    except KeyboardInterrupt:
        return


def _read_campaign(name: str) -> "Campaign":
    """Read a campaign from the record; exit if it is not on record."""
    settings = settings_for(name)
    from manifold.campaigns.record import read_campaigns

    return _require_proposed(name, read_campaigns(settings, [name]))


def _require_proposed(name: str, campaigns: "Mapping[str, Campaign]") -> "Campaign":
    """Return the campaign of this name; exit if it is missing, or if the record has no plan of it."""
    campaign = campaigns.get(name)
    if campaign is None or campaign.decided.plan is None:
        fail(f"no campaign {name!r} is on record; see manifold campaign ls")
    return campaign


def _read_facts(name: str, from_lake: bool) -> "tuple[Sequence[Fact], Sequence[Sent]]":
    """Read the recorded facts of a campaign, and the first publish to each target, which only the lake has.

    With `from_lake`, both are read from the lake. Otherwise the facts are read from archive and recorders, without any publishes;
    exits if there is no fact.
    """
    settings = settings_for(name)
    if from_lake:
        from manifold.campaigns.lake import read_campaign
        from manifold.lake.catalog import open_catalog

        stored = read_campaign(open_catalog(settings), name)
        return stored.facts, stored.sent
    from manifold.campaigns.record import read_facts

    facts = read_facts(settings, name)
    if not facts:
        fail(f"no campaign {name!r} is on record; see manifold campaign ls")
    return facts, ()


def _require_word(option: str, word: str, words: Any) -> None:
    """Exit unless the value of an option is empty or one of these words."""
    if word and word not in set(words):
        fail(f"{option} {word!r} must be one of {', '.join(words)}", USAGE)


def _render(view: Mapping[str, Any]) -> Any:
    """Build the tables that `show` prints. `view` is the summary of a campaign."""
    from rich.console import Group

    rate, max_rate = view["rate"]["last_60_s"], view["rate"]["per_minute"]
    facts = [
        ("state", view["state"]),
        ("because", view["because"]),
        ("version", view["version"]),
        ("data", view["data_id"]),
        ("targets", view["targets"]),
        ("approved by", ", ".join(view["approved_by"]) or f"nobody; {view['approvals_needed']} have to"),
        ("released in the last 60 s", rate if max_rate is None else f"{rate} of {max_rate}"),
    ]
    if view["tripped"]:
        facts.append(("rules to accept", ", ".join(view["tripped"])))
    amendment = view["amendment"]
    if amendment:
        facts.append(("waits for approval", f"an amendment by {amendment['by']} of {', '.join(amendment['widens'])}"))
    waves = []
    for number, wave in enumerate(view["waves"]):
        states = _format_values(wave["states"])
        waves.append((number, wave["name"], wave["targets"], wave["released"], wave["known"], wave["success"], states))
    tables = [table(view["campaign"], ("what", "value"), facts)]
    if waves:
        columns = ("wave", "name", "targets", "released", "known", "success", "states")
        tables.append(table("", columns, waves))
    return Group(*tables)


def _format_values(values: Mapping[str, Any]) -> str:
    """Format a mapping as "name value, name value"; nested mappings in the same way."""
    parts = []
    for name, value in values.items():
        text = _format_values(value) if isinstance(value, dict) else value
        parts.append(f"{name} {text}")
    return ", ".join(parts)
