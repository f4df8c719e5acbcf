"""Deletes and inserts rows of a table, on the branch of a run, with Spark."""

from pyspark.sql import DataFrame

from manifold.contracts.tables import Table
from pipelines.ingest.attempt import Attempt


def delete_rows(attempt: Attempt, table: Table, rows: DataFrame) -> None:
    """Delete the rows of `table` that equal one of `rows` in every column of `rows`."""
    columns = rows.columns
    if len(columns) == 1:
        sql = f"DELETE FROM {{name}} WHERE {columns[0]} IN (SELECT {columns[0]} FROM changes)"  # noqa: S608  # our own names
    else:
        is_same = " AND ".join(f"t.{column} = u.{column}" for column in columns)
        sql = f"DELETE FROM {{name}} AS t WHERE EXISTS (SELECT 1 FROM changes AS u WHERE {is_same})"  # noqa: S608  # our own names
    _run_on_branch(attempt, table, rows, sql)


def insert_or_delete_rows(attempt: Attempt, table: Table, rows: DataFrame, insert_flag: str) -> None:
    """Insert the rows whose boolean column `insert_flag` is true, and delete the others from `table`, in one snapshot.

    Besides `insert_flag`, `rows` has all columns of the table.
    """
    columns = [column for column in rows.columns if column != insert_flag]
    is_same = " AND ".join(f"t.{column} = u.{column}" for column in columns)
    values = ", ".join(f"u.{column}" for column in columns)
    delete = f"WHEN MATCHED AND NOT u.{insert_flag} THEN DELETE"
    insert = f"WHEN NOT MATCHED AND u.{insert_flag} THEN INSERT ({', '.join(columns)}) VALUES ({values})"  # noqa: S608  # our names
    sql = f"MERGE INTO {{name}} AS t USING changes AS u ON {is_same} {delete} {insert}"
    _run_on_branch(attempt, table, rows, sql)


def _run_on_branch(attempt: Attempt, table: Table, changes: DataFrame, sql: str) -> None:
    """Run `sql` on the attempt's branch of `table`.

    In `sql`, `{name}` stands for the branch, and the view `changes` has the rows of `changes`.
    """
    attempt.create_branch(table)
    changes.createOrReplaceTempView("changes")
    properties = {f"spark.sql.iceberg.snapshot-property.{name}": value for name, value in attempt.properties.items()}
    for name, value in properties.items():  # Iceberg stores these settings of the session as properties of the snapshot
        attempt.spark.conf.set(name, value)
    try:
        attempt.spark.sql(sql.format(name=attempt.name(table, on_branch=True)))
    finally:
        for name in properties:
            attempt.spark.conf.unset(name)
        attempt.spark.catalog.dropTempView("changes")
    attempt.record_snapshot(table)
