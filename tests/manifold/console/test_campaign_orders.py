"""Campaigns are proposed, approved and stopped on the command line, with a real broker and recorder, and without the API."""

import asyncio
import getpass
import json
import shlex
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from manifold.campaigns.parsing import plan_sha256
from manifold.console._app import make_app
from manifold.contracts import campaigns as r
from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.messaging.publisher import Publisher
from manifold.settings import Settings
from tests.manifold.campaigns.plans import document, vins
from tests.manifold.recorder.harness import Harness, running_harness
from tests.support.lake_rows import new_lake
from tests.support.servers import free_port, start_mosquitto, stopping, wait_until

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """Tests isolate themselves by campaigns."""
    with running_harness(tmp_path_factory.mktemp("orders")) as home:
        new_lake(Settings(home=home.folder / "home"))
        yield home


@pytest.fixture
def campaign() -> str:
    return f"c-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def run(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in an empty folder, with the harness's servers and no API."""
    monkeypatch.chdir(tmp_path)
    assert harness.users is not None
    for name, value in {
        "HOME": harness.folder / "home",
        "MQTT_PORT": harness.broker.port,
        "REDIS_URL": harness.users.url("tests", harness.redis_server.port),
        "RECORDER_PORT": harness.running.port,
        "API_PORT": free_port(),
        "ACK_DEADLINE_SECONDS": 90,
    }.items():
        monkeypatch.setenv(f"MANIFOLD_{name}", str(value))

    def command(*arguments: str, answer: str | None = None) -> Result:
        return CliRunner().invoke(make_app("campaign"), ["campaign", *arguments], input=answer)

    return command


def write_plan(harness: Harness, campaign: str, **fields: Any) -> dict[str, Any]:
    """Write plan.json; its data is published."""
    harness.redis.set(keys.data(f"data-{campaign}"), b"12345")
    plan = document(campaign=campaign, data_id=f"data-{campaign}", **fields)
    Path("plan.json").write_text(json.dumps(plan))
    return plan


def publish(harness: Harness, *orders: r.Command) -> None:
    """Publish orders as another console or the campaigner does."""

    async def run() -> None:
        settings = Settings(home=harness.folder / "home", mqtt_port=harness.broker.port)
        async with Publisher(settings, settings.mqtt_username_campaigns) as publisher:
            await publisher.orders(orders)

    asyncio.run(run())


def start(run: Run, harness: Harness, campaign: str, **fields: Any) -> None:
    """Propose and approve a campaign, and start it as the campaigner does."""
    write_plan(harness, campaign, **fields)
    assert [run(*line).exit_code for line in (("propose", "plan.json"), ("approve", campaign))] == [0, 0]
    publish(harness, r.Start(campaign, f"{r.CAMPAIGNER}0"))


def recorded(harness: Harness, campaign: str) -> list[tuple[int, r.Command]]:
    """The orders to a campaign on disk, with their seqs."""
    harness.flush()
    found = [(envelope.seq, r.decode(envelope.payload)) for envelope in harness.archived(Stream.CAMPAIGN)]
    return [(seq, order) for seq, order in found if isinstance(order, r.Order) and order.campaign == campaign]


def test_a_campaign_is_proposed_approved_and_paused_with_receipts(run: Run, harness: Harness, campaign: str) -> None:
    plan = write_plan(harness, campaign)
    done = [
        run("propose", "plan.json", "--why", "new maps", "--by", "anna", "--json"),
        run("approve", campaign, "--by", "ben", "--json"),
        run("pause", campaign, "--json"),
    ]

    assert [each.exit_code for each in done] == [0, 0, 0], [each.output for each in done]
    told = [json.loads(each.stdout) for each in done]
    orders = recorded(harness, campaign)
    assert [seq for seq, _ in orders] == [each["seq"] for each in told]
    assert [each["effect"] for each in told] == ["applied"] * 3
    assert json.loads(run("show", campaign, "--json").stdout)["state"] == "paused", "before it was started"
    assert [order for _, order in orders] == [
        r.Propose(campaign, "anna", "new maps", token=told[0]["token"], plan=plan),
        r.Approve(campaign, "ben", token=told[1]["token"], plan_sha256=plan_sha256(plan)),
        r.Pause(campaign, getpass.getuser(), token=told[2]["token"]),
    ]


def test_a_dry_run_records_nothing_and_prints_the_same_twice(run: Run, harness: Harness, campaign: str) -> None:
    write_plan(harness, campaign, waves=[{"name": "canary", "size": 2}, {"name": "rest", "size": "rest"}])
    first, second = (run("propose", "plan.json", "--dry-run", "--json") for _ in range(2))

    assert first.exit_code == 0, first.output
    assert first.stdout == second.stdout
    told = json.loads(first.stdout)
    assert ([wave["targets"] for wave in told["waves"]], told["data_bytes"]) == ([2, 8], 5)
    plain = run("propose", "plan.json", "--dry-run").stdout
    assert ("canary" in plain, "nothing is recorded" in plain, told["plan_sha256"] in plain) == (True, True, True)
    assert recorded(harness, campaign) == []


def test_a_list_from_a_file_is_recorded_in_parts_behind_the_plan(
    run: Run, harness: Harness, campaign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(r, "MAX_TARGETS", 4)
    write_plan(harness, campaign, targets={"file": "fleet.csv"})
    Path("fleet.csv").write_text("\n".join(["vin,zone", *(f"{vin},Europe/Berlin" for vin in vins(10))]))
    done = run("propose", "plan.json")

    assert done.exit_code == 0, done.output
    first, *parts = (order for _, order in recorded(harness, campaign))
    assert isinstance(first, r.Propose)
    listed = [[target.vin for target in part.targets] for part in parts if isinstance(part, r.AddTargets)]
    assert ([len(part) for part in listed], [vin for part in listed for vin in part]) == ([4, 4, 2], list(vins(10)))


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        ({"data_id": "nothing"}, 'data_id "nothing": nothing was published under it; publish it first'),
        ({"targets": {"file": "no.csv"}}, "cannot read no.csv (No such file or directory); name a file that exists"),
        ({"waves": [{"name": "a", "size": 10}, {"name": "b", "size": "rest"}]}, 'waves[1].size "rest": no target is left'),
        ({"window": {"from": "22:00", "to": "22:01", "else": "UTC"}}, "must be open for at least the ack deadline of 90 s"),
        ({"ends": "2020-12-20T00:00:00Z"}, 'ends "2020-12-20T00:00:00Z": must be in the future'),
    ],
)
def test_a_proposal_is_refused_with_field_value_and_remedy(
    run: Run, harness: Harness, campaign: str, plan: dict[str, Any], problem: str
) -> None:
    write_plan(harness, campaign)
    Path("plan.json").write_text(json.dumps(document(**({"campaign": campaign, "data_id": f"data-{campaign}"} | plan))))
    done = run("propose", "plan.json")

    assert (done.exit_code in (1, 2), problem in " ".join(done.stderr.split())) == (True, True), done.output
    assert recorded(harness, campaign) == []


def test_data_larger_than_the_broker_takes_is_refused(
    run: Run, harness: Harness, campaign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(harness, campaign)
    harness.redis.set(keys.data(f"data-{campaign}"), b"x" * 2000)
    with stopping(start_mosquitto(tmp_path / "small", extra="max_packet_size 1500")) as broker:
        monkeypatch.setenv("MANIFOLD_MQTT_PORT", str(broker.port))
        done = run("propose", "plan.json")

    assert done.exit_code == 1
    assert "bytes is over the 1500 that the broker takes; publish smaller data" in " ".join(done.stderr.split())


def test_a_plan_that_waits_for_its_data_is_recorded_before_it(run: Run, harness: Harness, campaign: str) -> None:
    write_plan(harness, campaign)
    harness.redis.delete(keys.data(f"data-{campaign}"))
    Path("plan.json").write_text(json.dumps(document(campaign=campaign, data_id=f"data-{campaign}", wait_for_data=True)))

    assert run("propose", "plan.json").exit_code == 0
    assert len(recorded(harness, campaign)) == 1


@pytest.mark.parametrize("order", ["cancel", "pass"])
def test_cancel_and_pass_ask_first(run: Run, harness: Harness, campaign: str, order: str) -> None:
    more = ("--wave", "0", "--why", "because") if order == "pass" else ()
    start(run, harness, campaign, waves=[{"name": "canary", "size": 2}, {"name": "rest", "size": "rest"}])
    before = len(recorded(harness, campaign))
    declined = run(order, campaign, *more, answer="n\n")

    assert (declined.exit_code, len(recorded(harness, campaign))) == (1, before)
    agreed = run(order, campaign, *more, answer="y\n")
    assert (agreed.exit_code, len(recorded(harness, campaign))) == (0, before + 1), agreed.output


def test_a_campaign_is_followed_from_its_proposal_to_its_end(run: Run, harness: Harness, campaign: str) -> None:
    start(run, harness, campaign, waves=[{"name": "canary", "size": 2}, {"name": "rest", "size": "rest"}])
    paused = run("pause", campaign, "--why", "smoke", "--by", "anna", "--json")

    assert (paused.exit_code, json.loads(paused.stdout)["effect"]) == (0, "applied"), paused.output
    assert harness.redis.hget(keys.BRAKES, campaign) == f"{json.loads(paused.stdout)['seq']} pause".encode(), "the brake is on"
    told = json.loads(run("show", campaign, "--json").stdout)
    assert (told["state"], told["because"], told["targets"]) == ("paused", "paused by anna: smoke", 10)
    stale = run("resume", campaign, "--if-version", str(told["version"] - 1))
    assert (stale.exit_code, f"the campaign is at version {told['version']}" in stale.stderr) == (1, True)
    assert run("resume", campaign, "--if-version", str(told["version"])).exit_code == 0
    listed = json.loads(run("ls", "--state", "running", "--json").stdout)
    assert [each["campaign"] for each in listed if each["campaign"] == campaign] == [campaign]
    canary = json.loads(run("targets", campaign, "--wave", "0", "--json").stdout)["targets"]
    assert [(target["wave_name"], target["state"]) for target in canary] == [("canary", "waiting")] * 2
    assert run("cancel", campaign, "--yes", "--why", "enough").exit_code == 0
    events = json.loads(run("events", campaign, "--json").stdout)["events"]
    assert [event["do"] for event in events] == ["propose", "approve", "start", "pause", "resume", "cancel"]
    watched = run("show", campaign, "--watch", "--json")
    assert json.loads(watched.stdout)["states"] == {"cancelled": 10}
    assert json.loads(run("report", campaign).stdout)["is_proved"] is True
    assert run("verify", campaign).exit_code == 0
    plain = "\n".join(run(*line).stdout for line in (("ls",), ("show", campaign), ("targets", campaign), ("events", campaign)))
    assert plain.count(campaign) >= 4


@pytest.mark.parametrize(
    ("command", "options", "sizes"),
    [("targets", ["--state", "waiting", "--wave", "0", "--limit", "2"], [2, 2, 1]), ("events", ["--limit", "1"], [1, 1, 1])],
)
def test_the_command_for_the_next_page_keeps_the_options_of_this_page(
    run: Run, harness: Harness, campaign: str, command: str, options: list[str], sizes: list[int]
) -> None:
    start(run, harness, campaign, waves=[{"name": "first", "size": 5}, {"name": "rest", "size": "rest"}])

    pages, arguments = [], [command, campaign, *options]
    while arguments:
        pages.append(json.loads(run(*arguments, "--json").stdout)[command])
        last_line = run(*arguments).stdout.splitlines()[-1]
        _, _, proposed = last_line.partition("further ones: manifold campaign ")
        arguments = shlex.split(proposed)

    assert [len(page) for page in pages] == sizes


def test_the_same_plan_again_completes_a_list_that_broke_off(
    run: Run, harness: Harness, campaign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(r, "MAX_TARGETS", 4)
    plan = write_plan(harness, campaign, targets={"file": "fleet.csv"})
    Path("fleet.csv").write_text("\n".join(["vin", *vins(10)]))
    first = r.Propose(campaign, "anna", plan=plan)
    publish(harness, first, r.AddTargets(campaign, "anna", targets=tuple(map(r.Target, vins(4))), more=True))

    early = run("approve", campaign)
    assert (early.exit_code, "the list of targets is not complete on record" in early.stderr) == (1, True)
    assert run("propose", "plan.json").exit_code == 0
    parts = [order for _, order in recorded(harness, campaign) if isinstance(order, r.AddTargets)]
    assert [(len(part.targets), part.more) for part in parts] == [(4, True), (4, True), (2, False)]
    assert run("propose", "plan.json").exit_code == 0, "once more, and nothing is recorded"
    assert len(recorded(harness, campaign)) == 4
    assert run("approve", campaign).exit_code == 0
    Path("fleet.csv").write_text("\n".join(["vin", *reversed(vins(10))]))
    other = run("propose", "plan.json")
    assert (other.exit_code, "the list on record is another" in other.stderr) == (1, True)


def test_a_rule_that_tripped_has_to_be_accepted(run: Run, harness: Harness, campaign: str) -> None:
    start(run, harness, campaign, rules=[{"name": "r1", "count": ["failed"], "over": 1}])
    publish(harness, r.Pause(campaign, f"{r.CAMPAIGNER}0", rule="r1", counts={"count": 2, "known": 5}))
    refused = run("resume", campaign)

    assert (refused.exit_code, "accept lacks r1; name the rules that tripped" in refused.stderr) == (1, True)
    assert run("resume", campaign, "--accept", "r1").exit_code == 0


def test_without_redis_the_brake_is_on_record_and_not_on_yet(run: Run, harness: Harness, campaign: str) -> None:
    start(run, harness, campaign)
    harness.redis_server.kill()
    try:
        done = run("pause", campaign)
    finally:
        harness.restart_redis()

    said = " ".join(done.stderr.split())
    assert (done.exit_code, "recorded, but not in force yet" in said, "the brake is therefore not on yet" in said) == (
        3,
        True,
        True,
    )
    wait_until(lambda: harness.redis.hget(keys.BRAKES, campaign), what="the brake to be on when Redis is back")


def test_without_a_recorder_the_brake_is_not_known_to_be_on(
    run: Run, harness: Harness, campaign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manifold.messaging.publisher.RECEIPT_WAIT_S", 1)
    with harness.running.standing_still():
        done = run("pause", campaign)

    assert (done.exit_code, "no receipt within 1 s" in done.stderr, "not known to be on: order it again" in done.stderr) == (
        3,
        True,
        True,
    )


@pytest.mark.parametrize("order", ["pause", "cancel"])
def test_without_a_broker_the_brake_is_not_known_to_be_on(
    run: Run, campaign: str, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setenv("MANIFOLD_MQTT_PORT", str(free_port()))
    monkeypatch.setattr("manifold.messaging.publisher.CONNECT_WAIT_S", 0.5)
    done = run(order, campaign, *(["--yes"] if order == "cancel" else []))

    assert done.exit_code == 3
    assert "the brake is not known to be on: order it again" in " ".join(done.stderr.split())


def test_a_person_cannot_claim_to_be_the_campaigner(run: Run, campaign: str) -> None:
    done = run("pause", campaign, "--by", "campaigner/0")

    assert (done.exit_code, "'campaigner/0' is a name of the campaigner; name a person" in done.stderr) == (2, True)
