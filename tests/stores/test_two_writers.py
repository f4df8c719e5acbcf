"""The embedded catalog is one SQLite file: concurrent writers must not lose a commit."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from manifold.contracts.tables import META
from manifold.lake.catalog import open_catalog
from manifold.settings import Settings
from tests.pipelines.conftest import new_session
from tests.pipelines.makers import at
from tests.support.lake_rows import new_lake

COMMITS = 8


@pytest.mark.slow
def test_concurrent_commits_of_spark_and_pyiceberg_lose_nothing(one_spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    new_lake(settings)
    spark = new_session(one_spark, settings)
    seen = {"first_seen_at": at(0), "last_seen_at": at(0), "times_seen": 1, "sha1": "0" * 40, "stored_at": at(0)}

    def by_spark() -> None:
        for n in range(COMMITS):
            row = pa.Table.from_pylist([{"data_id": f"spark-{n}", **seen}], schema=META.arrow_schema)
            spark.createDataFrame(row).writeTo(f"{settings.catalog_name}.{META.identifier}").append()

    def by_pyiceberg() -> None:
        catalog = open_catalog(settings)
        for n in range(COMMITS):
            row = pa.Table.from_pylist([{"data_id": f"pyiceberg-{n}", **seen}], schema=META.arrow_schema)
            catalog.load_table(META.identifier).append(row)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(by_spark), pool.submit(by_pyiceberg)]:
            done.result()

    found = (
        open_catalog(settings).load_table(META.identifier).scan(selected_fields=("data_id",)).to_arrow()["data_id"].to_pylist()
    )
    assert sorted(found) == sorted(f"{who}-{n}" for who in ("spark", "pyiceberg") for n in range(COMMITS))
