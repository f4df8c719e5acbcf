"""All stages together: judged before they are published, and what fails the audit stays off main."""

import pytest
from pyspark.sql import DataFrame

from archive.flush import flush
from contracts.envelope import Stream
from contracts.settings import Settings
from contracts.tables import IDS, SEGMENTS
from pipelines.ingest import transforms
from pipelines.ingest.audit import AuditFailed, audit_run
from pipelines.ingest.branches import branch_of
from pipelines.ingest.run_all import ingest_audit_publish
from pipelines.ingest.write import ingest
from tests.pipelines.conftest import Place
from tests.pipelines.makers import data, outcome, trigger
from tests.servers import free_port


def test_a_run_is_judged_and_then_published(place: Place) -> None:
    place.write(Stream.TRIGGER, [trigger(1, ["V1"]), trigger(2, ["V1", 7])])
    place.write(Stream.DATA, [data(3, "d1", b"one")])
    place.write(Stream.OUTCOME, [outcome(4, "V1", 1)])
    done, report, warnings = ingest_audit_publish(place.run("run", 10))
    assert done.segments == 3
    assert report is not None
    assert place.settings.reports_folder in report
    assert warnings >= 1  # V1 is no VIN by ISO 3779
    assert place.rows(IDS, "vin") == ["V1"]
    assert audit_run(place.run("run", 10)) is None


def test_a_run_that_breaks_a_rule_stays_off_main_and_says_which_rows(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    right = transforms.ids_rows

    def wrong(triggers: DataFrame) -> DataFrame:
        rows = right(triggers)
        return rows.unionAll(rows)

    place.write(Stream.TRIGGER, [trigger(1, ["V1"])])
    with monkeypatch.context() as patched:
        patched.setattr(transforms, "ids_rows", wrong)
        ingest(place.run("run", 10))
    with pytest.raises(AuditFailed, match=r"(?s)sdv_fanout_ids.*V1"):
        audit_run(place.run("run", 10))
    assert place.rows(IDS) == []
    assert place.rows(SEGMENTS) == []
    assert branch_of("run") in place.catalog.load_table(IDS.identifier).refs()


def test_a_recorder_that_is_not_there_is_no_reason_to_stop(place: Place) -> None:
    settings = Settings(home=place.settings.home, recorder_port=free_port())
    assert flush(settings) is False
