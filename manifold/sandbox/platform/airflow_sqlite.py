"""Makes the processes of Airflow share one SQLite file: writers wait for each other, and transactions are atomic.

Each process of Airflow imports `CONNECT` (its option `sql_alchemy_connect_args`), and with it the listener below.
"""

from typing import Any

from sqlalchemy import Connection, Engine, event

CONNECT: dict[str, Any] = {"timeout": 30}  # seconds that a writer waits for another; Python's default is 5


@event.listens_for(Engine, "savepoint")
def begin_before_the_savepoint(connection: Connection, _: str) -> None:
    """Begin a write transaction before a savepoint, unless one has begun.

    Python's driver begins a transaction only before an INSERT, UPDATE, DELETE or REPLACE. Without one, a savepoint is a
    transaction of its own, which has two effects. Its release commits: the runs of a backfill became visible one by one, and when
    the backfill failed and was rolled back, the scheduler crashed, because it had already picked one up. And it begins as a read
    transaction, in which SQLite allows no writes once another process has written.
    """
    if connection.dialect.name != "sqlite":
        return
    driver_connection = connection.connection.driver_connection
    if not getattr(driver_connection, "in_transaction", True):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
