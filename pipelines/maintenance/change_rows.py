"""Removes rows of a table by their keys, on the branch of a run, with Spark."""

from pyspark.sql import DataFrame

from manifold.contracts.tables import Table
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.branches import create_branch


def remove(attempt: Attempt, table: Table, named: DataFrame, base: int) -> None:
    """Delete the rows that match `named` in all of its columns."""
    columns = named.columns
    same = " AND ".join(f"t.{column} = u.{column}" for column in columns)
    sql = f"DELETE FROM {{name}} AS t WHERE EXISTS (SELECT 1 FROM unneeded AS u WHERE {same})"  # noqa: S608  # our own names
    if len(columns) == 1:
        sql = f"DELETE FROM {{name}} WHERE {columns[0]} IN (SELECT {columns[0]} FROM unneeded)"  # noqa: S608  # the same
    _carry_out(attempt, table, named, sql, base)


def replace_rows(attempt: Attempt, table: Table, named: DataFrame, flag: str, base: int) -> None:
    """In one snapshot, delete the rows of `named` whose `flag` is false, and insert the others. `named` has all columns."""
    columns = [column for column in named.columns if column != flag]
    same = " AND ".join(f"t.{column} = u.{column}" for column in columns)
    values = ", ".join(f"u.{column}" for column in columns)
    found = f"WHEN MATCHED AND NOT u.{flag} THEN DELETE"
    lacking = f"WHEN NOT MATCHED AND u.{flag} THEN INSERT ({', '.join(columns)}) VALUES ({values})"  # noqa: S608  # our own names
    sql = f"MERGE INTO {{name}} AS t USING unneeded AS u ON {same} {found} {lacking}"
    _carry_out(attempt, table, named, sql, base)


def _carry_out(attempt: Attempt, table: Table, named: DataFrame, sql: str, base: int) -> None:
    create_branch(attempt.catalog, table, attempt.run_id, base)
    named.createOrReplaceTempView("unneeded")
    properties = {f"spark.sql.iceberg.snapshot-property.{name}": value for name, value in attempt.properties.items()}
    for name, value in properties.items():
        attempt.spark.conf.set(name, value)
    try:
        attempt.spark.sql(sql.format(name=attempt.name(table, on_branch=True)))
    finally:
        for name in properties:
            attempt.spark.conf.unset(name)
        attempt.spark.catalog.dropTempView("unneeded")
    attempt.note(table, base)
