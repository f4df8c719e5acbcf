"""The quality reports in an object store: the same pages as on a disk, written and read from anywhere."""

import runpy
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from expectations import Audit, publish_trends, record_states
from expectations._pages import publish_pages
from manifold.contracts.storage import S3
from manifold.contracts.tables import RUN_TABLES
from manifold.lake.files import Files
from manifold.lake.reports import INDEX, STYLE, TRENDS, State, kept_runs, run_page
from manifold.settings import Settings
from tests.expectations.results import result
from tests.stores.servers import BUCKET, object_storage
from tests.support.servers import ROOT

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


REPORTS = f"s3://{BUCKET}/reports"


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3]:
    with object_storage(tmp_path / "s3") as s3:
        yield s3


@pytest.fixture
def reports(s3: S3) -> Files:
    return Files(REPORTS, s3)


def publish(reports: Files, made: Path, run_id: str, at: datetime, *, refused: int = 1) -> None:
    """Publish like an audit, with a page in place of Great Expectations'."""
    docs = [f"validations/quarantine/{run_id}/{at:%H}/page.html"] if refused else []
    for path in (*docs, "static/of the library.gif"):
        (made / path).parent.mkdir(parents=True, exist_ok=True)
        (made / path).write_text(run_id)
    rows = {table.name: 1 for table in RUN_TABLES} | {"quarantine": refused}
    audit = Audit(run_id, True, (), (), rows, reports.address(run_page(run_id)))
    publish_pages(audit, as_of=at, reports=reports, keep=2, site=made)


def test_files_in_an_object_store_are_written_read_listed_and_removed(reports: Files) -> None:
    reports.write("runs/scheduled__2026-03-01T12:00:00+00:00/index.html", b"one")
    reports.write("runs/two/index.html", b"two")

    assert reports.read("runs/two/index.html") == b"two"
    assert [*reports.below("runs")] == ["runs/scheduled__2026-03-01T12:00:00+00:00/index.html", "runs/two/index.html"]
    assert reports.read("runs/three/index.html") is None
    assert reports.address("index.html") == f"s3://{BUCKET}/reports/index.html"

    reports.remove("runs/two")
    reports.remove("runs/two")
    assert [*reports.below("runs")] == ["runs/scheduled__2026-03-01T12:00:00+00:00/index.html"]


def test_runs_are_listed_and_the_oldest_removed(reports: Files, tmp_path: Path) -> None:
    for hour, run_id in enumerate(("first", "second", "third+00:00")):
        publish(reports, tmp_path / f"worker {hour}", run_id, NOON + timedelta(hours=hour))

    assert [run["run_id"] for run in kept_runs(reports)] == ["third+00:00", "second"]
    index = (reports.read(INDEX) or b"").decode()
    assert index.index("third") < index.index("second")
    assert "first" not in index
    assert b"every rule" in (reports.read(run_page("second")) or b"")
    assert [path.split("/")[2] for path in reports.below("validations")] == ["second", "third+00:00"]
    assert [*reports.below("static")] == [STYLE]


def test_a_state_is_recorded_on_page_and_index_for_one_audit(reports: Files, tmp_path: Path) -> None:
    for hour, run_id in enumerate(("first", "second")):
        publish(reports, tmp_path / f"worker {hour}", run_id, NOON + timedelta(hours=hour))
    assert [run["state"] for run in kept_runs(reports)] == [State.UNDECIDED] * 2

    judged_before = (NOON - timedelta(hours=1)).isoformat()
    record_states(reports, {"first": (NOON.isoformat(), State.PUBLISHED), "second": (judged_before, State.OVERTAKEN)})

    assert {run["run_id"]: run["state"] for run in kept_runs(reports)} == {"first": "published", "second": "not decided"}
    assert b"Passed and published" in (reports.read(run_page("first")) or b"")
    assert b"not published yet" in (reports.read(run_page("second")) or b"")
    index = (reports.read(INDEX) or b"").decode()
    assert index.index("not decided</td>") < index.index("published</td>")


def test_airflow_serves_the_reports_and_reports_a_store_that_refuses(reports: Files, s3: S3, tmp_path: Path) -> None:
    application = runpy.run_path(str(ROOT / "plugins" / "reports.py"))["application"]  # as Airflow loads it
    publish(reports, tmp_path / "worker", "run", NOON)  # the gateway keeps its own files next to it

    def answers(secret: str, *paths: str) -> list[tuple[int, str]]:
        settings = Settings(
            home=tmp_path / "home",
            reports=REPORTS,
            s3_endpoint=s3.endpoint,
            s3_region=s3.region,
            s3_access_key=s3.access_key,
            s3_secret_key=secret,
        )
        app = application(settings)
        app.dependency_overrides[get_user] = lambda: "somebody"
        with TestClient(app) as client:
            found = [client.get(path) for path in paths]
        return [(each.status_code, each.text) for each in found]

    assert s3.secret_key
    run, of_all, nothing = answers(s3.secret_key, f"/{run_page('run')}", "/", "/runs/none/index.html")
    assert (run[0], of_all[0], nothing[0]) == (200, 200, 404)
    assert "every rule" in run[1]
    [(status, said)] = answers("another", "/")
    assert (status, REPORTS in said) == (503, True), said


def test_the_trend_charts_are_stored_next_to_the_reports(reports: Files) -> None:
    publish_trends([result(0, unexpected=1)], reports)

    assert b"<img" in (reports.read(TRENDS) or b"")


def test_a_run_audited_again_has_one_page_per_table(reports: Files, tmp_path: Path) -> None:
    for hour in range(2):
        publish(reports, tmp_path / f"worker {hour}", "run", NOON + timedelta(hours=hour))

    assert [*reports.below("validations")] == ["validations/quarantine/run/13/page.html"]


def test_a_table_without_rows_in_a_second_audit_has_no_page(reports: Files, tmp_path: Path) -> None:
    for hour, refused in enumerate((1, 0)):
        publish(reports, tmp_path / f"worker {hour}", "run", NOON + timedelta(hours=hour), refused=refused)

    assert [*reports.below("validations")] == []
    assert b"every rule" not in (reports.read(run_page("run")) or b"")
