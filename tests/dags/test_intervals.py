"""Which part of the archive a run of `ingest_archives` takes, by how it came about: from its templates to the stage."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

from contracts.settings import Settings
from pipelines.archive.segments import Interval
from pipelines.cli import _parser
from pipelines.stages import _interval
from tests.servers import ROOT

NOW = datetime.now(UTC)
DUE = NOW.replace(minute=0, second=0, microsecond=0)  # the tick of a scheduled run; its interval are the five minutes before


@pytest.fixture(scope="module")
def dag() -> DAG:
    found: DAG = DagBag(ROOT / "dags", bundle_path=ROOT / "dags").dags["ingest_archives"]
    return found


def taken(dag: DAG, run_type: str, **params: Any) -> list[Interval | None]:
    """What `look` and `ingest` of such a run take."""
    environment = dag.get_template_env()
    context = {
        "dag_run": SimpleNamespace(run_type=run_type),
        "data_interval_start": DUE - timedelta(minutes=5),
        "data_interval_end": DUE,
        "params": {"from": None, "to": None, "flush": True, "dry_run": False} | params,
        "run_id": "run",
    }
    found = []
    for name, field in (("look", "arguments"), ("ingest", "application_args")):
        said = [environment.from_string(each).render(context) for each in getattr(dag.get_task(name), field)]
        found.append(_interval(Settings(), _parser().parse_args([word for word in said if word])))
    return found


@pytest.mark.parametrize("ago", [timedelta(minutes=3), timedelta(hours=5), timedelta(days=3)])
def test_a_scheduled_run_after_a_pause_takes_what_came_meanwhile(dag: DAG, ago: timedelta) -> None:
    for interval in taken(dag, "scheduled"):
        assert interval is not None
        assert interval.start <= NOW - ago < interval.end


def test_a_scheduled_run_looks_at_days_and_not_at_all_years(dag: DAG) -> None:
    for interval in taken(dag, "scheduled"):
        assert interval is not None
        assert interval.end - interval.start < timedelta(days=30)


def test_a_backfill_takes_its_interval_and_nothing_else(dag: DAG) -> None:
    assert taken(dag, "backfill") == [Interval(DUE - timedelta(minutes=5), DUE)] * 2


def test_a_run_by_hand_takes_everything_new_or_what_it_is_told(dag: DAG) -> None:
    assert taken(dag, "manual") == [None] * 2
    told = {"from": "2026-03-01T00:00:00Z", "to": "2026-03-02T00:00:00Z"}
    assert taken(dag, "manual", **told) == [Interval(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))] * 2
