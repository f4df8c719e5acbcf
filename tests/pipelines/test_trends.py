"""The trend charts are drawn from the lake after a run, once per state of the table, and never fail a run."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
import structlog
from pyiceberg.catalog import Catalog

from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.tables import QUALITY, SEGMENTS
from manifold.lake.reports import TRENDS, TRENDS_VERSION, open_reports
from manifold.settings import Settings
from pipelines.ingest.ledger import PRUNED_BEFORE
from pipelines.ingest.trends import draw_trends, refresh_trends, trends_if_held_back
from tests.expectations.results import result
from tests.expectations.rows import NOON
from tests.support.lake_rows import append, new_lake


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


@pytest.fixture
def catalog(settings: Settings) -> Catalog:
    catalog = new_lake(settings)
    append(catalog, QUALITY, [result(0, unexpected=1)])
    return catalog


def page(settings: Settings) -> str:
    return (open_reports(settings).read(TRENDS) or b"").decode()


def test_charts_show_the_table_and_are_redrawn_only_when_it_changes(catalog: Catalog, settings: Settings) -> None:
    now = NOON + timedelta(hours=1)

    assert draw_trends(settings, now=now)
    assert "run0" in page(settings)
    assert not draw_trends(settings, now=now)

    append(catalog, QUALITY, [result(1, unexpected=1)])
    assert draw_trends(settings, now=now)
    assert "run1" in page(settings)


def test_charts_show_as_many_audits_as_runs_are_kept(catalog: Catalog, settings: Settings) -> None:
    append(catalog, QUALITY, [result(1, unexpected=1)])

    draw_trends(settings.model_copy(update={"report_max": 1}), now=NOON)

    assert "run1" in page(settings)
    assert "run0" not in page(settings)


def test_of_passed_runs_only_those_in_the_ledger_are_shown(catalog: Catalog, settings: Settings) -> None:
    for run in (1, 2):
        append(catalog, QUALITY, [result(run, severity="warning", unexpected=1)])
    assert draw_trends(settings, now=NOON)
    assert [run in page(settings) for run in ("run0", "run1", "run2")] == [True, False, False], "run0 is held back"

    append(catalog, SEGMENTS, [ledger_row(1)])

    assert draw_trends(settings, now=NOON), "the table is unchanged, and a run was published"
    assert [run in page(settings) for run in ("run0", "run1", "run2")] == [True, True, False]


def test_runs_whose_segments_were_pruned_are_shown(catalog: Catalog, settings: Settings) -> None:
    append(catalog, QUALITY, [result(1, severity="warning", unexpected=1), result(5, severity="warning", unexpected=1)])
    with catalog.load_table(SEGMENTS.identifier).transaction() as change:
        change.set_properties({PRUNED_BEFORE: (NOON + timedelta(hours=2)).isoformat()})

    draw_trends(settings, now=NOON)

    assert [run in page(settings) for run in ("run1", "run5")] == [True, False]


def ledger_row(run: int) -> dict[str, object]:
    """A segment ingested by run number `run`, that many hours after noon."""
    at = NOON + timedelta(hours=run)
    return {"path": f"{run}", "stream": "trigger", "messages": 1, "run_id": f"run{run}", "ingested_at": at}


def test_a_corrupt_note_does_not_prevent_drawing(catalog: Catalog, settings: Settings) -> None:
    for spoilt in (b"{", b"[]", b"\xff"):
        open_reports(settings).write(TRENDS_VERSION, spoilt)
        assert draw_trends(settings, now=NOON)


def test_an_unreadable_table_leaves_the_charts_and_the_run_alone(catalog: Catalog, settings: Settings) -> None:
    draw_trends(settings, now=NOON)
    before = page(settings)
    append(catalog, QUALITY, [result(1, unexpected=1)])
    shutil.rmtree(settings.home / "lake" / "warehouse")

    with structlog.testing.capture_logs() as logged:
        assert not draw_trends(settings, now=NOON)

    assert page(settings) == before
    assert [line["log_level"] for line in logged] == ["warning"]


def test_a_lake_without_tables_has_no_charts(settings: Settings) -> None:
    assert not draw_trends(settings, now=NOON)
    assert page(settings) == ""


def test_charts_are_redrawn_after_every_run(catalog: Catalog, settings: Settings) -> None:
    with pytest.raises(Retryable), refresh_trends(settings):
        raise Retryable("another run was in the way")

    assert "run0" in page(settings)


@pytest.mark.parametrize(("problem", "drawn"), [(None, False), (Retryable("later"), False), (Permanent("held back"), True)])
def test_before_publication_charts_are_redrawn_only_for_a_run_that_ends_there(
    catalog: Catalog, settings: Settings, problem: Exception | None, drawn: bool
) -> None:
    try:
        with trends_if_held_back(settings):
            if problem:
                raise problem
    except (Retryable, Permanent) as exc:
        assert exc is problem

    assert ("run0" in page(settings)) is drawn
