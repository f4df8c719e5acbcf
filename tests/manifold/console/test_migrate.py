"""`manifold lake migrate`, and the doctor's check of a lake that needs it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from manifold.console._app import make_app
from manifold.console._doctor import examine
from manifold.contracts.tables import ERASURES, META, SCHEMA_VERSION, TABLES
from manifold.settings import Settings
from pipelines.migrations.steps import SetProperties
from tests.support.lake_rows import new_lake
from tests.support.releases import next_release


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("MANIFOLD_HOME", str(tmp_path))
    return Settings(home=tmp_path)


@pytest.fixture
def old(settings: Settings) -> Iterator[Settings]:
    """A lake without one table and with another that this release changes."""
    catalog = new_lake(settings)
    catalog.drop_table(ERASURES.identifier)
    with next_release() as define:
        define(META, SetProperties("rarely", {"commit.retry.num-retries": "31"}))
        yield settings


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(make_app("lake"), ["lake", "migrate", *words])
    return done.exit_code, done.stdout, done.stderr


def finding(settings: Settings) -> Any:
    """The doctor's finding about the tables; the first few checks need no server."""
    return next(found for found in examine(settings) if found.check == "tables")


def test_a_plan_is_shown_then_executed_then_empty(old: Settings) -> None:
    code, text, _ = run("--plan")
    assert (code, "this would be done" in text, "rarely" in text) == (0, True, True)
    code, document, _ = run("--json")
    done = json.loads(document)
    assert [s["step"] for s in done["steps"]] == ["rarely"]
    assert all(s["seconds"] >= 0 for s in done["steps"])
    assert done["versions"] == {t.name: t.version for t in TABLES}
    assert json.loads(run("--plan", "--json")[1])["steps"] == []
    assert "every table is up to date with this release" in run()[1]


def test_the_doctor_lists_due_migrations(old: Settings) -> None:
    found = finding(old)
    assert not found.passed
    assert found.seen.endswith(f"steps are due: {META.name}")
    assert "manifold lake migrate" in found.remedy
    run()
    assert finding(old).passed


def test_a_newer_lake_is_refused_with_versions_and_remedy(settings: Settings) -> None:
    catalog = new_lake(settings)
    with catalog.load_table(META.identifier).transaction() as change:
        change.set_properties({SCHEMA_VERSION: "99"})
    code, _, error = run()
    assert code == 1
    assert "version 99" in error
    assert "install the newer release" in error
    found = finding(settings)
    assert (found.passed, "version 99" in found.seen, "install the newer release" in found.remedy) == (False, True, True)
