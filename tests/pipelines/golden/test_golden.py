"""The archive gives exactly these rows, table by table, in one run or in two.

After an intended change, check each difference and copy the files that the assertion names over `rows/`.
"""

from pathlib import Path

import pytest

from pipelines.ingest.audit import audit_run
from pipelines.ingest.backlog import ingest_audit_publish
from pipelines.maintenance.check import check
from tests.pipelines.conftest import SparkLake
from tests.pipelines.golden.archive import HOUR, SEALED, write_first, write_second
from tests.pipelines.golden.published import audit_results, published, read, write
from tests.pipelines.makers import at
from tests.pipelines.signal_makers import Door

GOLDEN = Path(__file__).with_name("rows")


@pytest.fixture
def door(tmp_path: Path, spark_lake: SparkLake) -> Door:
    return Door(spark_lake, tmp_path / "ring")


def test_one_run_gives_the_golden_rows(spark_lake: SparkLake, door: Door, tmp_path: Path) -> None:
    write_first(spark_lake, door)
    write_second(spark_lake, door)
    run = spark_lake.run("golden", 2 * HOUR)
    _, report, warnings = ingest_audit_publish(run)
    assert report is not None
    assert spark_lake.settings.reports_folder in report
    assert warnings >= 1  # some VINs are invalid by ISO 3779
    assert audit_run(run) is None, "it is published"
    found = published(spark_lake, door.keys) | {"quality_results": audit_results(spark_lake)}
    write(found, tmp_path / "found")
    assert read(tmp_path / "found") == read(GOLDEN), f"see {tmp_path / 'found'}"
    assert check(spark_lake.catalog, spark_lake.settings, now=at(2 * HOUR)).troubles == {}
    files = [file for file in spark_lake.settings.home.rglob("*") if file.is_file()]
    assert [str(file) for file in files if SEALED in file.read_bytes()] == []


def test_two_runs_give_the_same_rows(spark_lake: SparkLake, door: Door, tmp_path: Path) -> None:
    write_first(spark_lake, door)
    spark_lake.ingest("first", ms=HOUR)
    write_second(spark_lake, door)
    spark_lake.ingest("second", ms=2 * HOUR)
    found = published(spark_lake, door.keys)
    write(found, tmp_path / "found")
    golden = read(GOLDEN)
    del golden["quality_results"]
    assert read(tmp_path / "found") == golden, f"see {tmp_path / 'found'}"
    assert check(spark_lake.catalog, spark_lake.settings, now=at(2 * HOUR)).troubles == {}
