"""Campaigns are proposed, approved and stopped on the command line, with a real broker and recorder, and without the API."""

import getpass
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from manifold.console._app import make_app
from manifold.contracts import campaigns as r
from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.settings import Settings
from tests.manifold.campaigns.plans import document, vins
from tests.manifold.recorder.harness import Harness, running_harness
from tests.support.lake_rows import new_lake
from tests.support.servers import free_port, start_mosquitto, stopping

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
    assert [each["status"] for each in told] == ["recorded"] * 3
    assert [order for _, order in orders] == [
        r.Propose(campaign, "anna", "new maps", token=told[0]["token"], plan=plan),
        r.Approve(campaign, "ben", token=told[1]["token"]),
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
        ({"targets": {"batch": "b", "ended": ["failed"]}}, 'targets.batch "b": the lake resolves such lists, and cannot yet'),
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
    declined = run(order, campaign, *more, answer="n\n")

    assert (declined.exit_code, recorded(harness, campaign)) == (1, [])
    assert run(order, campaign, *more, answer="y\n").exit_code == 0
    assert run(order, campaign, *more, "--yes").exit_code == 0
    assert len(recorded(harness, campaign)) == 2


@pytest.mark.parametrize("order", ["pause", "cancel"])
def test_without_a_broker_the_brake_is_not_on_yet(run: Run, campaign: str, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    monkeypatch.setenv("MANIFOLD_MQTT_PORT", str(free_port()))
    done = run(order, campaign, *(["--yes"] if order == "cancel" else []))

    assert done.exit_code == 3
    assert "the brake is therefore not on yet" in " ".join(done.stderr.split())


def test_a_person_cannot_claim_to_be_the_campaigner(run: Run, campaign: str) -> None:
    done = run("pause", campaign, "--by", "campaigner/0")

    assert (done.exit_code, "'campaigner/0' is a name of the campaigner; name a person" in done.stderr) == (2, True)
