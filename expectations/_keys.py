"""Finds keys that are duplicated or missing, without a window and without sorting the rows. None if there are none."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from manifold.lake.hashes import HASH_BATCH_SIZE, find_duplicates

MAX_SUSPECTS = 1000  # hashes passed to Spark as literals; beyond it, all keys are grouped


def repeated(frame: DataFrame, columns: Sequence[str], rows: int) -> DataFrame | None:
    """Keys that occur in several of these rows, whose number is `rows`. Keys with a null are ignored.

    Hashes are compared first, in the driver: that takes a tenth of the time of a shuffle, and most runs have no duplicates.
    """
    hashed = frame.where(_none_is_null(columns)).select(*columns, sf.xxhash64(*columns).alias("hash"))
    if rows <= HASH_BATCH_SIZE:
        twice = find_duplicates(hashed.select("hash").toArrow()["hash"]).tolist()
        if not twice:
            return None
        if len(twice) <= MAX_SUSPECTS:
            hashed = hashed.where(sf.col("hash").isin(twice))
    return _if_any(hashed.groupBy(*columns).count().where("count > 1").select(*columns))


def repeated_in(frame: DataFrame, columns: Sequence[str], whole: DataFrame) -> DataFrame | None:
    """Keys of these rows that occur in several rows of `whole`, which contains them."""
    mine = whole.select(*columns).join(frame.select(*columns), list(columns), "left_semi")
    return _if_any(mine.groupBy(*columns).count().where("count > 1").select(*columns))


def absent(
    frame: DataFrame, columns: Sequence[str], whole: DataFrame, unless: str | None, bounded_by: str | None
) -> DataFrame | None:
    """Keys of these rows that are not in `whole`. Rows for which `unless` is true are ignored.

    With `bounded_by`, a column of both, only the rows of `whole` within the range of these rows are read.
    """
    asked = (frame.where(f"NOT coalesce({unless}, false)") if unless else frame).where(_none_is_null(columns))
    if bounded_by:
        least, greatest = frame.agg(sf.min(bounded_by), sf.max(bounded_by)).collect()[0]
        # Literals, because Iceberg prunes files by them and not by a join.
        whole = whole.where(sf.col(bounded_by).between(sf.lit(least), sf.lit(greatest)))
    keys = asked.select(*columns).distinct()
    return _if_any(keys.join(whole.select(*columns), list(columns), "left_anti"))


def _if_any(keys: DataFrame) -> DataFrame | None:
    return None if keys.isEmpty() else keys


def _none_is_null(columns: Sequence[str]) -> Column:
    """Condition that none of these columns is null."""
    return sf.expr(" AND ".join(f"`{column}` IS NOT NULL" for column in columns))
