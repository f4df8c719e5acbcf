"""All stages: a run is audited before publication, and a failed one stays off main."""

import pytest

from manifold.archive.flush import flush
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import IDS, SEGMENTS
from manifold.settings import Settings
from pipelines.ingest import transforms
from pipelines.ingest.audit import AuditFailed, audit_run
from pipelines.ingest.branches import branch_of
from pipelines.ingest.chunks import ingest_audit_publish
from pipelines.ingest.write import ingest
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import data, outcome, trigger
from tests.support.servers import free_port

pytestmark = pytest.mark.slow


def test_a_run_is_audited_and_then_published(spark_lake: SparkLake) -> None:
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1"]), trigger(2, ["V1", 7])])
    spark_lake.write(Stream.DATA, [data(3, "d1", b"one")])
    spark_lake.write(Stream.OUTCOME, [outcome(4, "V1", 1)])
    done, report, warnings = ingest_audit_publish(spark_lake.run("run", 10))
    assert done.segments == 3
    assert report is not None
    assert spark_lake.settings.reports_folder in report
    assert warnings >= 1  # V1 is invalid by ISO 3779
    assert spark_lake.rows(IDS, "vin") == ["V1"]
    assert audit_run(spark_lake.run("run", 10)) is None


def test_a_run_that_breaks_a_rule_stays_off_main_and_names_the_rows(
    spark_lake: SparkLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = transforms.ids_rows
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1"])])
    with monkeypatch.context() as patched:
        patched.setattr(transforms, "ids_rows", lambda triggers: right(triggers).unionAll(right(triggers)))
        ingest(spark_lake.run("run", 10))
    with pytest.raises(AuditFailed, match=r"(?s)sdv_fanout_ids.*V1"):
        audit_run(spark_lake.run("run", 10))
    assert spark_lake.rows(IDS) == []
    assert spark_lake.rows(SEGMENTS) == []
    assert branch_of("run") in spark_lake.catalog.load_table(IDS.identifier).refs()


def test_an_absent_recorder_does_not_stop_a_run(spark_lake: SparkLake) -> None:
    settings = Settings(home=spark_lake.settings.home, recorder_port=free_port())
    assert flush(settings) is False
