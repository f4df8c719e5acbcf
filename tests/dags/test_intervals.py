"""Which part of the archive a run takes, by its run type, from the templates to the stage; and the runs of a backfill."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.execution_time import macros
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import DagRunInfo
from airflow.utils.types import DagRunType
from pendulum import DateTime

from manifold.archive.segment import Interval
from manifold.settings import Settings
from pipelines.arguments import interval_of
from pipelines.cli import make_parser
from tests.support.servers import ROOT

NOW = datetime.now(UTC)
DUE = NOW.replace(minute=0, second=0, microsecond=0)


@pytest.fixture(scope="module")
def dags() -> dict[str, DAG]:
    found: dict[str, DAG] = DagBag(ROOT / "dags", bundle_path=ROOT / "dags").dags
    return found


@pytest.fixture(scope="module")
def dag(dags: dict[str, DAG]) -> DAG:
    return dags["ingest_archives"]


def as_stored(dag: DAG) -> Any:
    """The DAG as serialized in Airflow's database, which the scheduler reads."""
    return DagSerialization.from_dict(DagSerialization.to_dict(dag))


def taken(dag: DAG, run_type: str, interval_end: datetime | None = None, **params: object) -> list[Interval | None]:
    """The segments that `discover` and `ingest` of such a run take, due now."""
    environment = dag.get_template_env()
    context = {
        "dag_run": SimpleNamespace(run_type=run_type, data_interval_end=interval_end, run_after=NOW),
        "macros": macros,
        "params": {name: dag.params[name] for name in dag.params} | params,
        "run_id": "run",
    }
    found = []
    for name, field in (("discover", "arguments"), ("ingest", "application_args")):
        rendered = [environment.from_string(each).render(context) for each in getattr(dag.get_task(name), field)]
        found.append(interval_of(Settings(), make_parser().parse_args([word for word in rendered if word])))
    return found


@pytest.mark.parametrize("ago", [timedelta(minutes=3), timedelta(hours=5), timedelta(days=3)])
def test_a_scheduled_run_after_a_pause_covers_the_gap(dag: DAG, ago: timedelta) -> None:
    for interval in taken(dag, "scheduled"):
        assert interval is not None
        assert interval.start <= NOW - ago < interval.end


def test_a_scheduled_run_reads_only_recent_days(dag: DAG) -> None:
    for interval in taken(dag, "scheduled"):
        assert interval is not None
        assert interval.end - interval.start < timedelta(days=30)


def test_a_backfill_run_takes_only_its_day(dags: dict[str, DAG]) -> None:
    midnight = DUE.replace(hour=0)
    the_day_before = Interval(midnight - timedelta(days=1), midnight)

    assert taken(dags["backfill_archives"], "backfill", midnight) == [the_day_before] * 2
    assert taken(dags["backfill_archives"], "manual") == [the_day_before] * 2


@pytest.mark.parametrize(("year", "days"), [(2024, 366), (2025, 365)])
def test_a_backfill_of_a_year_creates_one_run_per_day(dags: dict[str, DAG], year: int, days: int) -> None:
    """Ask for the runs as Airflow's `backfill create` does, for any start date."""
    stored = as_stored(dags["backfill_archives"])

    runs = list(stored.iter_dagrun_infos_between(datetime(year, 1, 1, tzinfo=UTC), datetime(year, 12, 31, tzinfo=UTC)))

    assert len(runs) == days
    assert runs[0].data_interval.start == datetime(year, 1, 1, tzinfo=UTC)
    assert runs[-1].data_interval.end == datetime(year + 1, 1, 1, tzinfo=UTC)
    assert all(before.data_interval.end == after.data_interval.start for before, after in pairwise(runs))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata", "Pacific/Kiritimati", "America/New_York", "Etc/GMT+12"])
@pytest.mark.parametrize("days", [1, 3])
def test_a_backfill_skips_no_day_in_any_default_timezone(dags: dict[str, DAG], zone: str, days: int) -> None:
    """Airflow reads `--from-date 2026-05-04` as midnight in `core.default_timezone`."""
    first, last = (datetime(2026, 5, 3 + day, tzinfo=ZoneInfo(zone)) for day in (1, days))
    stored = as_stored(dags["backfill_archives"])

    made = [run.data_interval.start for run in stored.iter_dagrun_infos_between(first, last)]

    asked = [datetime(2026, 5, 4 + day, tzinfo=UTC) for day in range(days)]
    assert [day for day in made if day in asked] == asked
    assert len(made) <= days + (zone != "UTC"), "one more day at one end"


def test_no_backfill_starts_by_itself(dags: dict[str, DAG]) -> None:
    stored = as_stored(dags["backfill_archives"])
    backfilled = DagRunInfo.interval(*(DateTime.instance(DUE + timedelta(days=days)) for days in (-2, -1)))

    assert stored.timetable.periodic
    assert not stored.timetable.can_be_scheduled
    assert [stored.next_dagrun_info(last_automated_run_info=last) for last in (None, backfilled)] == [None, None]


def test_a_backfill_with_intervals_of_minutes_is_refused(dag: DAG) -> None:
    stored = as_stored(dag)

    assert sorted(set(DagRunType) - set(stored.allowed_run_types)) == ["backfill"]


def test_a_manual_run_takes_everything_new_or_the_given_interval(dag: DAG) -> None:
    assert taken(dag, "manual") == [None] * 2
    told = {"from": "2026-03-01T00:00:00Z", "to": "2026-03-02T00:00:00Z"}
    assert (
        taken(dag, "manual", None, **told) == [Interval(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))] * 2
    )
