"""A plan is checked and forecast on the command line, without any server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner, Result

from manifold.console._app import make_app
from tests.manifold.campaigns.plans import document, vins

AT = ("--at", "2026-12-01T12:00:00Z")
LIST: dict[str, Any] = {"targets": {"file": "list.csv"}}
GATE = {"released": "80%", "known": "95%", "success": "98%", "soak": "1h", "approve": 1}
WAVES = [{"name": "canary", "size": "10%", "gate": GATE}, {"name": "rest", "size": "rest"}]
Run = Callable[..., Result]


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in an empty folder, after writing the plan there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MANIFOLD_HOME", str(tmp_path / "home"))

    def run(command: str, plan: Any, *arguments: str) -> Result:
        Path("plan.json").write_text(plan if isinstance(plan, str) else json.dumps(plan))
        return CliRunner().invoke(make_app("campaign"), ["campaign", command, "plan.json", *arguments])

    return run


def write_list(*rows: str, header: str = "vin,zone,wave") -> None:
    Path("list.csv").write_text("\n".join([header, *rows, ""]))


def test_a_valid_plan_shows_its_waves_its_warnings_and_its_end(campaign: Run) -> None:
    rules = [{"name": "r1", "count": ["failed"], "over": "2%", "at_least": 50, "in": "wave"}]
    done = campaign("check", document(waves=WAVES, rate=2, rules=rules), *AT)

    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["canary", "1", "released", "80%,", "known", "95%,", "success", "98%,", "soak", "1h,", "approved", "by", "1"] in lines
    assert ["rest", "9", "–"] in lines
    assert "warning: rule r1 cannot trip in wave canary of 1, below its at_least 50" in done.stdout
    assert "2026-12-01 13:04:02.000Z" in done.stdout  # a soak of an hour, then nine at two a minute


def test_a_check_as_json_has_what_the_table_has(campaign: Run) -> None:
    done = campaign("check", document(waves=WAVES), *AT, "--json")

    told = json.loads(done.stdout)
    assert told["waves"] == [{"name": "canary", "targets": 1}, {"name": "rest", "targets": 9}]
    assert (told["targets"], told["warnings"], told["end_if_all_are_connected"]) == (10, [], "2026-12-01T13:00:02+00:00")
    assert len(told["plan_sha256"]) == 64


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("{", "plan.json: plan is not JSON"),
        ("[]", "plan.json: plan 0 items: expected `object`, got `array`"),
        (document(rate=0), "plan.json: rate 0: must be 1 to 1000000 releases a minute; leave it out for no limit"),
        (document(waves=[{"name": "a", "size": "10%", "gate": {"soak": "2 hours"}}]), 'waves[0].gate.soak "2 hours": must be'),
        (document(ends="2026-11-01T00:00:00Z"), 'ends "2026-11-01T00:00:00Z": must be in the future'),
        (document(waves=[{"name": name, "size": 6} for name in "abc"]), "waves[2].size 6: no target is left for this wave"),
        (document(window={"from": "22:00", "to": "22:01"}), None),
    ],
)
@pytest.mark.parametrize("command", ["check", "forecast"])
def test_a_plan_that_is_refused_says_field_value_and_remedy(campaign: Run, command: str, plan: Any, says: str | None) -> None:
    done = campaign(command, plan, *AT)

    assert done.exit_code == (0 if says is None else 1)
    assert says is None or says in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("rows", "header", "says"),
    [
        (["A B"], "vin", 'list.csv: vin "A B" in row 1 must be 1 to 64 printable ASCII characters'),
        (["A", "", "B,x"], "vin", "list.csv cannot be read as a list of targets"),
        (["A"], "id", "list.csv has the columns id; name a CSV file with a header"),
        ([], "vin", "list.csv lists no vehicle; a campaign needs at least one"),
        (["A,,second"], "vin,zone,wave", 'targets: A is listed for wave "second"; name one of all'),
    ],
)
def test_a_list_that_is_refused_says_the_row_and_the_remedy(campaign: Run, rows: list[str], header: str, says: str) -> None:
    write_list(*rows, header=header)

    done = campaign("check", document(**LIST), *AT, "--targets", "list.csv")

    assert done.exit_code in (1, 2)
    assert says in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("arguments", "fields", "says"),
    [
        (["--targets", "gone.csv"], LIST, "cannot read gone.csv (No such file or directory"),
        (["--targets", "plan.json"], LIST, "plan.json is neither .csv nor .parquet"),
        (["--targets", "list.csv"], {}, "--targets list.csv: the plan lists its vehicles itself; leave the option out"),
        (["--at", "soon"], {}, "--at 'soon' must be an ISO 8601 instant with its zone"),
    ],
)
def test_options_that_do_not_fit_are_refused(campaign: Run, arguments: list[str], fields: dict[str, Any], says: str) -> None:
    done = campaign("check", document(**fields), *arguments)

    assert done.exit_code == 2
    assert says in done.output


def test_a_plan_without_its_list_is_checked_for_itself(campaign: Run) -> None:
    done = campaign("check", document(**LIST), *AT)

    assert done.exit_code == 0
    assert "plan.json is valid; its list of targets was not checked: give --targets FILE" in done.output
    assert "give --targets FILE" in campaign("forecast", document(**LIST), *AT).output


def test_a_parquet_list_and_a_csv_list_give_the_same_check(campaign: Run) -> None:
    zones = ["Europe/Berlin" if place % 2 else None for place in range(10)]
    write_list(
        *(f"{vin},{zone or ''},canary,more" for vin, zone in zip(vins(10), zones, strict=True)), header="vin,zone,wave,colour"
    )
    columns = {"vin": vins(10), "zone": zones, "wave": ["canary"] * 10}
    pyarrow.parquet.write_table(pa.table({name: list(values) for name, values in columns.items()}), "list.parquet")
    plan = document(**LIST, waves=[WAVES[0]], window={"from": "22:00", "to": "05:00"})

    csv, parquet = (campaign("check", plan, *AT, "--targets", name, "--json") for name in ("list.csv", "list.parquet"))

    assert csv.exit_code == 0, csv.output
    assert csv.stdout == parquet.stdout
    assert json.loads(csv.stdout)["warnings"] == ["5 targets have no known zone: their window is that of UTC"]


def test_a_forecast_of_connected_vehicles_is_one_instant(campaign: Run) -> None:
    done = campaign("forecast", document(rate=2), *AT)

    assert done.exit_code == 0, done.output
    rows = [line.split("  ") for line in done.stdout.splitlines()]
    (end,) = ([cell.strip() for cell in row if cell.strip()] for row in rows if row[0].strip() == "end")
    assert end == ["end"] + ["2026-12-01 12:04:01.000Z"] * 3
    assert "assumed: every vehicle is connected" in done.stdout


def test_a_forecast_from_absences_says_who_never_comes(campaign: Run) -> None:
    Path("absences.txt").write_text("0s\n" * 5 + "3h\n" * 4 + "\nnever\n")

    done = campaign("forecast", document(number=100), *AT, "--absences", "absences.txt", "--json")
    again = campaign("forecast", document(number=100), *AT, "--absences", "absences.txt", "--json")

    told = json.loads(done.stdout)
    assert done.stdout == again.stdout
    assert told["delivered"]["90"]["p10"] == "2026-12-01T15:00:01+00:00"
    assert told["delivered"]["99"]["p90"] is None
    assert 5 <= told["never"] <= 15
    assert told["end"]["p50"] == "2026-12-20T00:00:00+00:00"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("3h\nsoon\n", 'absences.txt: absence "soon" in line 2 must be a whole number and a unit'),
        ("\n", "absences.txt has no absence; write one a line, such as 3h, or never"),
    ],
)
def test_absences_that_are_none_are_refused_with_their_line(campaign: Run, content: str, says: str) -> None:
    Path("absences.txt").write_text(content)

    done = campaign("forecast", document(), *AT, "--absences", "absences.txt")

    assert done.exit_code == 2
    assert says in done.output
