"""Finds keys that occur twice, or are missing, on Spark, without a window and without sorting the rows.

The number of keys found is bounded, so that a run that breaks a rule in every row can still be judged; beyond the bound a count
means "at least".
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from manifold.lake.hashes import AT_ONCE, standing_twice

OFFENDERS = 1000  # keys of one rule that are looked up again in the rows


def repeated(frame: DataFrame, columns: Sequence[str], rows: int) -> DataFrame | None:
    """Up to `OFFENDERS` keys that occur in several of these rows; None if there are none. Keys with a null do not count.

    Hashes of the keys are compared first, which takes a tenth of the time of a shuffle; then the keys whose hash stands twice.
    Those of the first hashes are enough, but where none of them is the same: hashes can be made alike, to hide what is.
    """
    hashed = frame.where(_whole(columns)).select(*columns, sf.xxhash64(*columns).alias("hash"))
    if rows <= AT_ONCE:
        twice = standing_twice(hashed.select("hash").toArrow()["hash"])[:OFFENDERS].tolist()
    else:
        rows_twice = hashed.groupBy("hash").count().where("count > 1").limit(OFFENDERS).collect()
        twice = [row["hash"] for row in rows_twice]
    if not twice:
        return None
    suspects = sf.broadcast(frame.sparkSession.createDataFrame([(one,) for one in twice], "hash bigint"))
    found = _several(hashed.join(suspects, "hash", "left_semi"), columns)
    return _several(hashed, columns) if found is None and len(twice) == OFFENDERS else found


def repeated_in(frame: DataFrame, columns: Sequence[str], whole: DataFrame) -> DataFrame | None:
    """Up to `OFFENDERS` keys of these rows that occur in several rows of `whole`, which contains them; None if there are none."""
    return _several(whole.select(*columns).join(frame.select(*columns), list(columns), "left_semi"), columns)


def absent(
    frame: DataFrame, columns: Sequence[str], whole: DataFrame, unless: str | None, bounded_by: str | None
) -> DataFrame | None:
    """Up to `OFFENDERS` keys of these rows that are not in `whole`; None if there are none.

    Rows for which `unless` is true do not count. With `bounded_by`, a column of both, only the rows of `whole` between the least
    and the greatest value of these rows are read.
    """
    asked = (frame.where(f"NOT coalesce({unless}, false)") if unless else frame).where(_whole(columns))
    if bounded_by:
        least, greatest = frame.agg(sf.min(bounded_by), sf.max(bounded_by)).collect()[0]
        # Literals, because Iceberg leaves files out by them and not by a join.
        whole = whole.where(sf.col(bounded_by).between(least, greatest))
    keys = asked.select(*columns).distinct()
    return _bounded(keys.join(whole.select(*columns), list(columns), "left_anti"))


def with_keys(frame: DataFrame, columns: Sequence[str], keys: DataFrame | None, unless: str | None = None) -> DataFrame:
    """The rows that have one of these keys, except those for which `unless` is true."""
    if keys is None:
        return frame.limit(0)
    rows = frame.where(f"NOT coalesce({unless}, false)") if unless else frame
    return rows.join(sf.broadcast(keys), list(columns), "left_semi")


def _several(keys: DataFrame, columns: Sequence[str]) -> DataFrame | None:
    return _bounded(keys.groupBy(*columns).count().where("count > 1").select(*columns))


def _bounded(keys: DataFrame) -> DataFrame | None:
    """The rows, read once and kept in memory, since they are few."""
    found = keys.limit(OFFENDERS).collect()
    return keys.sparkSession.createDataFrame(found, keys.schema) if found else None


def _whole(columns: Sequence[str]) -> Column:
    """The condition that none of these columns is null."""
    return sf.expr(" AND ".join(f"{column} IS NOT NULL" for column in columns))
