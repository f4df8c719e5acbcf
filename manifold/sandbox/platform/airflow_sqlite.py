"""Lets the processes of Airflow share one SQLite file: they wait for each other, and each transaction is atomic.

Airflow imports `CONNECT` (its option `sql_alchemy_connect_args`) in each of its processes, and with it the listener below.
"""

from typing import Any

from sqlalchemy import Connection, Engine, event

CONNECT: dict[str, Any] = {"timeout": 30}  # seconds that a writer waits for the other; Python's own are 5


@event.listens_for(Engine, "savepoint")
def begin_before_the_savepoint(connection: Connection, _: str) -> None:
    """Make a savepoint part of a transaction that may write.

    Python's driver begins a transaction only before an INSERT and its like. A savepoint before that is a transaction of its own,
    and its end commits it: others saw a backfill's runs one by one, and where it failed and took them back, the scheduler,
    which had taken one up, ended itself. And it began as a reader, which SQLite does not let write once another has written.
    """
    if connection.dialect.name == "sqlite" and not getattr(connection.connection.driver_connection, "in_transaction", True):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
