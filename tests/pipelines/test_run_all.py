"""A run that fails its audit stays off main, and one without a recorder is done; tests/pipelines/golden has a whole run."""

import pytest

from manifold.archive.flush import flush
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import IDS, SEGMENTS
from manifold.settings import Settings
from pipelines.ingest import write_triggers
from pipelines.ingest.audit import AuditFailed, audit_run
from pipelines.ingest.branches import branch_of
from pipelines.ingest.write import ingest
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import trigger
from tests.support.servers import free_port

pytestmark = pytest.mark.slow


def test_a_run_that_breaks_a_rule_stays_off_main_and_names_the_rows(
    spark_lake: SparkLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = write_triggers.ids_rows
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1"])])
    with monkeypatch.context() as patched:
        patched.setattr(write_triggers, "ids_rows", lambda triggers: right(triggers).unionAll(right(triggers)))
        ingest(spark_lake.run("run", 10))
    with pytest.raises(AuditFailed, match=r"(?s)sdv_fanout_ids.*V1"):
        audit_run(spark_lake.run("run", 10))
    assert spark_lake.rows(IDS) == []
    assert spark_lake.rows(SEGMENTS) == []
    assert branch_of("run") in spark_lake.catalog.load_table(IDS.identifier).refs()


def test_an_absent_recorder_does_not_stop_a_run(spark_lake: SparkLake) -> None:
    settings = Settings(home=spark_lake.settings.home, recorder_port=free_port())
    assert flush(settings) is False
