"""The pages of a run in the report store; tests/stores does the same in an object store."""

from datetime import timedelta
from pathlib import Path

from expectations import Audit
from expectations._pages import publish_pages
from manifold.contracts.tables import RUN_TABLES
from manifold.lake.files import Files
from tests.expectations.rows import NOON, RUN

TABLE = "sdv_fanout_ids"


def test_a_second_audit_without_rows_of_a_table_removes_its_page(tmp_path: Path) -> None:
    reports = Files((tmp_path / "reports").as_uri())
    for minute, rows in enumerate(({TABLE: 5, "ingested_segments": 1}, {"ingested_segments": 1})):
        made = tmp_path / f"made {minute}"
        for table in rows:
            page = made / "validations" / table / RUN / f"{minute}" / "page.html"
            page.parent.mkdir(parents=True)
            page.write_text("a rule is broken")
        audit = Audit(RUN, minute == 1, (), (), {table.name: 0 for table in RUN_TABLES} | rows, "")
        publish_pages(audit, as_of=NOON + timedelta(minutes=minute), reports=reports, keep=9, site=made)

    assert [*reports.below("validations")] == [f"validations/ingested_segments/{RUN}/1/page.html"]
    shown = (tmp_path / "reports" / "runs" / RUN / "index.html").read_text()
    assert "Passed" in shown
    assert shown.count("every rule") == 1
