"""A campaign is verified and reported from the lake, without archive and recorder."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from manifold.campaigns.facts import Released
from manifold.console._app import make_app
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import OUTCOMES
from manifold.settings import Settings
from tests.support.campaign_rows import NAME, finished, write
from tests.support.lake_rows import append, new_lake
from tests.support.servers import free_port


def run(*arguments: str) -> Result:
    return CliRunner().invoke(make_app("campaign"), ["campaign", *arguments])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MANIFOLD_HOME", str(tmp_path))
    monkeypatch.setenv("MANIFOLD_RECORDER_PORT", str(free_port()))
    return tmp_path


def test_a_campaign_is_proved_from_the_lake_alone(home: Path) -> None:
    catalog, facts = new_lake(Settings(home=home)), finished()
    write(catalog, facts)

    verified, reported = run("verify", NAME, "--lake"), run("report", NAME, "--lake")

    assert (verified.exit_code, reported.exit_code) == (0, 0), verified.output + reported.output
    told = json.loads(reported.stdout)
    assert (told["campaign"], told["targets"], told["is_proved"]) == (NAME, 9, True)


def test_publishes_that_the_lake_has_are_verified_too(home: Path) -> None:
    catalog, facts = new_lake(Settings(home=home)), finished()
    write(catalog, facts)
    release = next(fact for fact in facts if isinstance(fact, Released))
    at = datetime_of(release.seq)
    entry = {"vin": "STRANGER", "seq": release.seq, "outcome": "delivered", "accepted_at": at, "ended_at": at}
    append(catalog, OUTCOMES, [entry | {"dispatched_at": at, "recorded_seq": release.seq + 1}])

    done = run("verify", NAME, "--lake", "--json")

    found = [(each["kind"], each["vin"]) for each in json.loads(done.stdout)["falsifications"]]
    assert (done.exit_code, ("not a target", "STRANGER") in found) == (1, True)


@pytest.mark.parametrize("has_tables", [True, False])
def test_a_campaign_that_the_lake_does_not_have_is_missing(home: Path, has_tables: bool) -> None:
    if has_tables:
        new_lake(Settings(home=home))

    done = run("verify", "another", "--lake")

    assert done.exit_code == 1
    assert "the lake has no record of campaign 'another'; it comes with the next run of ingest_archives" in done.stderr
    assert "Traceback" not in done.output
