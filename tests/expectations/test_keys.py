"""Keys that stand several times, looked for by Spark."""

from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from expectations import _keys
from manifold.lake.hashes import find_duplicates

pytestmark = pytest.mark.slow


def test_keys_whose_hashes_are_alike_hide_none_that_is_there_twice(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody makes Spark's hashes alike in a test: the first that stand twice are said to be those of keys that stand once."""
    rows = spark.createDataFrame([(1,), (2,), (3,), (3,)], "n bigint")
    found = find_duplicates

    def with_others_first(hashes: Any) -> Any:
        others = [row["hash"] for row in rows.where("n < 3").select(sf.xxhash64("n").alias("hash")).collect()]
        return np.concatenate([np.array(others, np.int64), found(hashes)])

    monkeypatch.setattr(_keys, "MAX_SUSPECTS", 1)
    monkeypatch.setattr(_keys, "find_duplicates", with_others_first)
    keys = _keys.repeated(rows, ["n"])
    assert keys is not None
    assert [row["n"] for row in keys.select("n").collect()] == [3]
