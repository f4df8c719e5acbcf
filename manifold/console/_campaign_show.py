"""`manifold campaign ls`, `show`, `targets`, `events`, `report` and `verify`: what is on record of campaigns."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifold.console._campaign_orders import CampaignId, settings_for
from manifold.console._output import FAILED, USAGE, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table
from manifold.contracts.seq import wall_clock_ms

if TYPE_CHECKING:  # loaded by the commands: a mere --help needs no arrays
    from manifold.campaigns.facts import Fact
    from manifold.campaigns.falsifications import Sent
    from manifold.campaigns.fold import Campaign

EVERY_S = 2.0
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="So many at most.")]
FromLake = Annotated[
    bool, typer.Option("--lake", help="From the lake, which has the first publishes too; default: from archive and recorders.")
]
State = Annotated[str, typer.Option("--state", help="Only those with this state.", show_default=False)]


@handle_errors
def ls(state: State = "", as_json: AsJson = False) -> None:
    """The campaigns on record, oldest proposal first: where they are, and why."""
    from manifold.campaigns import views
    from manifold.campaigns.decided import Stage
    from manifold.campaigns.record import read_campaigns

    _require_word("--state", state, Stage)
    known = read_campaigns(settings_or_fail(), ended_since=0)
    found = [views.summary(name, each, wall_clock_ms()) for name, each in views.in_order(known)]
    found = [each for each in found if state in ("", each["state"])]
    if as_json:
        print_json(found)
        return
    columns = ("campaign", "state", "because", "version", "targets", "proposed at")
    rows = [tuple(each[name.replace(" ", "_")] for name in columns) for each in found]
    out.print(table(f"{len(rows)} campaigns", columns, rows) if rows else "no campaign is on record")


@handle_errors
def show(
    campaign: CampaignId,
    watch: Annotated[bool, typer.Option("--watch", help="Again every 2 s, until it is over or Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Where a campaign is, and why; its counts by wave and state; its rate. With --watch and --json one line each time."""
    from rich.live import Live

    from manifold.campaigns.decided import OVER
    from manifold.campaigns.record import CampaignRecord, fold_into
    from manifold.campaigns.views import summary

    settings = settings_for(campaign)
    record, known = CampaignRecord(settings, [campaign]), dict[str, "Campaign"]()

    def read() -> "Campaign":
        for facts in record.read():
            fold_into(known, facts)
        return _proposed(campaign, known)

    found = read()
    if not watch:
        view = summary(campaign, found, wall_clock_ms())
        print_json(view) if as_json else out.print(_render(view))
        return
    try:
        with Live(console=out, auto_refresh=False) as live:
            while True:
                view = summary(campaign, found, wall_clock_ms())
                if as_json:
                    sys.stdout.write(json.dumps(view, default=str) + "\n")
                    sys.stdout.flush()
                else:
                    live.update(_render(view), refresh=True)
                if found.decided.stage in OVER:
                    return
                time.sleep(EVERY_S)
                found = read()
    except KeyboardInterrupt:
        return


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
    """The targets of a campaign and their states, in the order of waves and draw."""
    from manifold.campaigns import views
    from manifold.campaigns.standing import Status

    _require_word("--state", state, Status)
    known = _campaign(campaign)
    try:
        page, more = views.targets(known, state=Status(state) if state else None, wave=wave, after=after, limit=limit)
    except LookupError:
        fail(f"--after {after!r} is not a target of {campaign}; name one of its targets", USAGE)
    if as_json:
        print_json({"campaign": campaign, "targets": page, "after": more})
        return
    columns = ("vin", "wave", "zone", "state", "since", "not before")
    rows = [(t["vin"], t["wave_name"], t["zone"], t["state"], t["since"], t["not_before"]) for t in page]
    out.print(table(f"{campaign}, {len(rows)} targets", columns, rows) if rows else f"{campaign}: no such target")
    if more is not None:
        out.print(f"further ones: manifold campaign targets {campaign} --after {more}", highlight=False, markup=False)


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

    page, more = views.events(_campaign(campaign), after=after, limit=limit)
    if as_json:
        print_json({"campaign": campaign, "events": page, "after": more})
        return
    rows = [(e["seq"], e["at"], e["do"], e["by"], e["why"], _details(e["details"]), e["without_effect"]) for e in page]
    out.print(
        table(f"{campaign}, {len(rows)} orders", ("seq", "at", "order", "by", "why", "details", "without effect because"), rows)
    )
    if more is not None:
        out.print(f"further ones: manifold campaign events {campaign} --after {more}", highlight=False, markup=False)


@handle_errors
def report(campaign: CampaignId, lake: FromLake = False) -> None:
    """The proof of a campaign as JSON: its numbers, every order, and what a verification of its record found."""
    from manifold.campaigns.proof import report as proof

    print_json(proof(*_facts(campaign, lake)))


@handle_errors
def verify(campaign: CampaignId, lake: FromLake = False, as_json: AsJson = False) -> None:
    """Recompute a campaign from its record, and name what the record cannot explain; exit 1 if there is anything."""
    from manifold.campaigns.proof import finding
    from manifold.campaigns.verification import verify as verification

    view = [finding(each) for each in verification(*_facts(campaign, lake))]
    if as_json:
        print_json({"campaign": campaign, "is_proved": not view, "falsifications": view})
    elif view:
        out.print(table(f"{campaign}: NOT PROVED", ("what", "seq", "vin", "detail"), [tuple(each.values()) for each in view]))
    else:
        out.print(f"{campaign}: the record explains every release, decision and end", highlight=False, markup=False)
    if view:
        raise typer.Exit(FAILED)


def _campaign(name: str) -> "Campaign":
    settings = settings_for(name)
    from manifold.campaigns.record import read_campaigns

    return _proposed(name, read_campaigns(settings, [name]))


def _proposed(name: str, known: "Mapping[str, Campaign]") -> "Campaign":
    found = known.get(name)
    if found is None or found.decided.plan is None:
        fail(f"no campaign {name!r} is on record; see manifold campaign ls")
    return found


def _facts(name: str, from_lake: bool) -> "tuple[Sequence[Fact], Sequence[Sent]]":
    """Return what is on record of a campaign, and the first publishes, which only the lake has; exit if it has nothing."""
    settings = settings_for(name)
    if from_lake:
        from manifold.campaigns.lake import read_campaign
        from manifold.lake.catalog import open_catalog

        known = read_campaign(open_catalog(settings), name)
        return known.facts, known.sent
    from manifold.campaigns.record import read_facts

    return read_facts(settings, name) or fail(f"no campaign {name!r} is on record; see manifold campaign ls"), ()


def _require_word(option: str, word: str, words: Any) -> None:
    if word and word not in set(words):
        fail(f"{option} {word!r} must be one of {', '.join(words)}", USAGE)


def _render(view: Mapping[str, Any]) -> Any:
    from rich.console import Group

    rate, allowed = view["rate"]["last_60_s"], view["rate"]["per_minute"]
    facts = [
        ("state", view["state"]),
        ("because", view["because"]),
        ("version", view["version"]),
        ("data", view["data_id"]),
        ("targets", view["targets"]),
        ("approved by", ", ".join(view["approved_by"]) or f"nobody; {view['approvals_needed']} have to"),
        ("released in the last 60 s", rate if allowed is None else f"{rate} of {allowed}"),
    ]
    facts += [("rules to accept", ", ".join(view["tripped"]))] if view["tripped"] else []
    if view["amendment"]:
        facts += [
            ("waits for approval", f"an amendment by {view['amendment']['by']} of {', '.join(view['amendment']['widens'])}")
        ]
    waves = [
        (place, w["name"], w["targets"], w["released"], w["known"], w["success"], _details(w["states"]))
        for place, w in enumerate(view["waves"])
    ]
    columns = ("wave", "name", "targets", "released", "known", "success", "states")
    tables = [table(view["campaign"], ("what", "value"), facts)]
    return Group(*tables, *([table("", columns, waves)] if waves else []))


def _details(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_details(value) if isinstance(value, dict) else value}" for name, value in values.items())
