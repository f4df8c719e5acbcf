"""Duplicate keys, found by Spark."""

from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from expectations import _keys
from manifold.lake.hashes import find_duplicates

pytestmark = pytest.mark.slow


def test_hash_collisions_hide_no_duplicate_key(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's hashes cannot be made to collide in a test, so the first duplicates are declared to be unique."""
    rows = spark.createDataFrame([(1,), (2,), (3,), (3,)], "n bigint")
    found = find_duplicates

    def with_others_first(hashes: Any) -> Any:
        others = [row["hash"] for row in rows.where("n < 3").select(sf.xxhash64("n").alias("hash")).collect()]
        return np.concatenate([np.array(others, np.int64), found(hashes)])

    monkeypatch.setattr(_keys, "MAX_SUSPECTS", 1)
    monkeypatch.setattr(_keys, "find_duplicates", with_others_first)
    keys = _keys.repeated_keys(rows, ["n"], 4)
    assert keys is not None
    assert [row["n"] for row in keys.select("n").collect()] == [3]
