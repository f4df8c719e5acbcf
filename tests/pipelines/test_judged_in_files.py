"""What is promised of whole runs, once more where the entries of a run on Spark are judged in the files of its branch."""

import pytest

from manifold.contracts.envelope import Stream
from pipelines.ingest import audit
from pipelines.ingest.arrow_audit import files_of
from pipelines.ingest.run_all import ingest_audit_publish
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import trigger
from tests.pipelines.test_run_all import *  # noqa: F403  # its tests run here with the fixtures of this module

pytestmark = pytest.mark.usefixtures("judged_in_files")


def test_entries_are_judged_where_they_lie_however_many_files_they_are(
    spark_lake: SparkLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = []

    def spied(*asked: object) -> object:
        found = files_of(*asked)  # type: ignore[arg-type]  # as the audit asks
        judged.append(0 if found is None else found.count_rows())
        return found

    monkeypatch.setattr(audit, "files_of", spied)
    yesterday = -24 * 3_600_000
    spark_lake.write(Stream.TRIGGER, [trigger(yesterday, ["V0", "V1"]), trigger(1, ["V1", "V2", "V3"])])
    _, _, warnings = ingest_audit_publish(spark_lake.run("run", 10))
    assert max(judged) == 5
    assert warnings >= 1  # these are no VINs by ISO 3779
