"""Finds duplicate and missing keys, without a window and without sorting the rows.

Each function returns a frame of keys, or None instead of an empty frame.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from manifold.lake.hashes import HASH_BATCH_SIZE, find_duplicates

MAX_SUSPECTS = 1000  # repeated hashes that a filter lists one by one; if there are more, all rows are grouped


def repeated_keys(frame: DataFrame, columns: Sequence[str], row_count: int) -> DataFrame | None:
    """Keys that occur in several rows of `frame`, which has `row_count` rows. Keys with a null are ignored.

    Of at most `HASH_BATCH_SIZE` rows, the driver compares hashes of the keys first. This takes a tenth of the time of a shuffle,
    and most runs have no duplicates.
    """
    candidates = frame.where(_are_not_null(columns)).select(*columns, sf.xxhash64(*columns).alias("hash"))
    if row_count <= HASH_BATCH_SIZE:
        repeated_hashes = find_duplicates(candidates.select("hash").toArrow()["hash"]).tolist()
        if not repeated_hashes:
            return None
        if len(repeated_hashes) <= MAX_SUSPECTS:
            candidates = candidates.where(sf.col("hash").isin(repeated_hashes))
    # Two keys may have the same hash, so the keys themselves are counted.
    return _none_if_empty(candidates.groupBy(*columns).count().where("count > 1").select(*columns))


def keys_repeated_in(table: DataFrame, frame: DataFrame, columns: Sequence[str]) -> DataFrame | None:
    """Keys of the rows of `frame` that occur in several rows of `table`. `table` includes the rows of `frame`."""
    same_keys = table.select(*columns).join(frame.select(*columns), list(columns), "left_semi")
    return _none_if_empty(same_keys.groupBy(*columns).count().where("count > 1").select(*columns))


def keys_missing_in(
    table: DataFrame, frame: DataFrame, columns: Sequence[str], *, unless: str | None, bounded_by: str | None
) -> DataFrame | None:
    """Keys of the rows of `frame` that do not occur in `table`.

    Keys with a null are ignored, and so are rows for which the condition `unless` is true. `bounded_by` is a column of both
    frames: only rows of `table` are read whose value is within the range of the values in `frame`.
    """
    checked = frame.where(_are_not_null(columns))
    if unless:
        checked = checked.where(f"NOT coalesce({unless}, false)")
    if bounded_by:
        least, greatest = frame.agg(sf.min(bounded_by), sf.max(bounded_by)).collect()[0]
        # Iceberg prunes files by literal bounds, but not by the values of a join.
        table = table.where(sf.col(bounded_by).between(sf.lit(least), sf.lit(greatest)))
    keys = checked.select(*columns).distinct()
    return _none_if_empty(keys.join(table.select(*columns), list(columns), "left_anti"))


def _none_if_empty(keys: DataFrame) -> DataFrame | None:
    return None if keys.isEmpty() else keys


def _are_not_null(columns: Sequence[str]) -> Column:
    """Condition that none of these columns is null."""
    return sf.expr(" AND ".join(f"`{column}` IS NOT NULL" for column in columns))
