"""People drive campaigns by the command line, with a live campaigner: dry run, approvals, amendments, and what is told after."""

import asyncio
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from manifold.archive.records import read_journal
from manifold.campaigns.decided import Stage
from manifold.campaigns.facts import Released
from manifold.campaigns.record import read_facts
from manifold.campaigns.standing import Status
from manifold.console._app import make_app
from manifold.contracts import campaigns as r
from manifold.messaging.publisher import Publisher
from manifold.sandbox.fleet import Fleet, vins
from manifold.settings import Settings
from tests.dispatcher.platform import Platform, a_platform
from tests.manifold.campaigns.service.worlds import World, a_world, copies, plan_for
from tests.support.lake_rows import new_lake
from tests.support.servers import wait_until

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One platform; each test has its own vehicles."""
    with a_world(tmp_path_factory.mktemp("world")) as made:
        new_lake(made.settings)
        made.start_campaigner()
        yield made


@pytest.fixture
def run(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in an empty folder, against the world or another platform."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str, of: Platform | None = None) -> Result:
        for name, value in (of or world.platform).env.items():
            monkeypatch.setenv(name, value)
        return CliRunner().invoke(make_app(arguments[0]), [*arguments])

    return command


def told(done: Result) -> Any:
    """What a command that succeeded has printed as JSON."""
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def write_plan(plan: dict[str, Any]) -> str:
    """Write the plan to a file; returns its name."""
    Path("plan.json").write_text(json.dumps(plan))
    return "plan.json"


async def publish_data(settings: Settings, name: str) -> None:
    async with Publisher(settings) as platform:
        await platform.data(f"data-{name}", b"the data")


def recorded(world: World) -> int:
    """How many messages the recorder's journal has."""
    return sum(len(read_journal(path).messages) for path in world.settings.journal_folder.iterdir())


def test_a_campaign_reaches_each_vehicle_once_in_the_waves_of_its_dry_run(world: World, run: Run) -> None:
    targets, name = vins(20, seed=61), "first"
    waves = [{"name": "canary", "size": "20%"}, {"name": "rest", "size": "rest"}]
    plan = write_plan(plan_for(name, list(targets), waves=waves))

    async def play() -> Fleet:
        async with Fleet(world.settings, targets) as fleet:
            await fleet.connect()
            assert not copies(fleet, name)
            assert (await asyncio.to_thread(run, "campaign", "approve", name, "--by", "ben")).exit_code == 0
            await asyncio.to_thread(world.wait_for, name, Stage.COMPLETED)
        return fleet

    asyncio.run(publish_data(world.settings, name))
    before = recorded(world)
    dry = told(run("campaign", "propose", plan, "--dry-run", "--json"))
    assert recorded(world) == before
    told(run("campaign", "propose", plan, "--by", "anna", "--json"))
    fleet = asyncio.run(play())

    assert copies(fleet, name) == dict.fromkeys(targets, 1)
    campaign, waves_of = world.campaign(name), dict[int, set[str]]()
    for fact in read_facts(world.settings, name):
        if isinstance(fact, Released):
            waves_of.setdefault(fact.wave, set()).update(fact.vins)
    drawn = [campaign.roster.vins_of(wave) for wave in range(2)]
    assert [set(wave) for wave in drawn] == [waves_of[0], waves_of[1]]
    digests = [hashlib.sha256("\n".join(wave).encode()).hexdigest() for wave in drawn]
    assert [(wave["targets"], wave["vins_sha256"]) for wave in dry["waves"]] == [(4, digests[0]), (16, digests[1])]
    decided = [order for _, order in sorted(campaign.orders.items()) if order.by.startswith(r.CAMPAIGNER)]
    assert [type(order) for order in decided] == [r.Fence, r.Start, r.Pass, r.Complete]
    batches = told(run("batch", "show", name, "--json"))["batches"]
    assert [(batch["vehicles"], batch["states"]) for batch in batches] == [(4, {"delivered": 4}), (16, {"delivered": 16})]
    shown = run("vin", "show", targets[0], "--json")
    assert (shown.exit_code, shown.stdout.count(f'"{name}"') > 0) == (0, True), shown.output


def test_approvals_are_those_of_other_people_and_a_higher_rate_asks_again(world: World, run: Run) -> None:
    targets, name = vins(4, seed=63), "asked-twice"
    first = plan_for(name, list(targets), rate=1, approve={"people": 2, "not_the_author": True})

    def order(do: str, by: str, *more: str, fails: str = "") -> None:
        done = run("campaign", do, *more, "--by", by, "--why", f"{by} says so")
        assert (done.exit_code, fails in " ".join(done.stderr.split())) == (int(bool(fails)), True), done.output

    def shown() -> dict[str, Any]:
        view: dict[str, Any] = told(run("campaign", "show", name, "--json"))
        return view

    def go_on() -> None:
        order("propose", "anna", write_plan(first))
        order("approve", "anna", name, fails="anna is the author; another person has to approve")
        order("approve", "ben", name)
        assert (shown()["state"], shown()["approved_by"]) == ("proposed", ["ben"])
        order("approve", "carla", name)
        wait_until(lambda: world.campaign(name).total(Status.DELIVERED) == 1, what="as many as the rate allows")
        order("amend", "ben", name, write_plan(first | {"rate": 100}))
        assert shown()["amendment"] == {"by": "ben", "widens": ["rate"], "approved_by": []}
        order("approve", "ben", name, fails="ben is the author; another person has to approve")
        order("approve", "carla", name)
        assert (shown()["rate"]["per_minute"], shown()["states"]) == (1, {"delivered": 1, "waiting": 3})
        order("approve", "dora", name)
        world.wait_for(name, Stage.COMPLETED)

    async def play() -> Fleet:
        async with Fleet(world.settings, targets) as fleet:
            await fleet.connect()
            await asyncio.to_thread(go_on)
        return fleet

    asyncio.run(publish_data(world.settings, name))
    assert copies(asyncio.run(play()), name) == dict.fromkeys(targets, 1)
    events = told(run("campaign", "events", name, "--json"))["events"]
    people = [event for event in events if not event["by"].startswith(r.CAMPAIGNER)]
    assert [(event["do"], event["by"], event["why"]) for event in people] == [
        (do, by, f"{by} says so")
        for do, by in [
            ("propose", "anna"),
            ("approve", "ben"),
            ("approve", "carla"),
            ("amend", "ben"),
            ("approve", "carla"),
            ("approve", "dora"),
        ]
    ]
    assert all(event["at"] for event in people)


def test_a_second_platform_tells_the_same_of_a_finished_campaign_byte_for_byte(world: World, run: Run, tmp_path: Path) -> None:
    targets, name = vins(12, seed=65), "handed-over"
    waves = [{"name": "canary", "size": 3}, {"name": "rest", "size": "rest"}]
    plan = write_plan(plan_for(name, list(targets), waves=waves))

    def drive() -> None:
        assert run("campaign", "propose", plan, "--by", "anna").exit_code == 0
        assert run("campaign", "approve", name, "--by", "ben").exit_code == 0
        world.wait_for(name, Stage.COMPLETED)

    async def play() -> None:
        async with Fleet(world.settings, targets) as fleet:
            await fleet.connect()
            await asyncio.to_thread(drive)

    asyncio.run(publish_data(world.settings, name))
    asyncio.run(play())
    world.flush()
    questions = [
        ("campaign", "show", name, "--json"),
        ("campaign", "events", name, "--json"),
        ("campaign", "targets", name, "--json"),
        ("campaign", "report", name),
    ]
    # The copied archive was written by node 0, the first platform; so the second one is node 1.
    with a_platform(tmp_path / "second", node=1) as second:
        shutil.copytree(world.settings.home / "archive", second.settings.home / "archive")
        second.start_recorder()
        pairs = [(run(*question), run(*question, of=second)) for question in questions]
    for one, other in pairs:
        assert one.exit_code == other.exit_code == 0, other.output
        assert one.stdout == other.stdout
    assert json.loads(pairs[0][1].stdout)["states"] == {"delivered": 12}
