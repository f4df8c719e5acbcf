"""Makes the processes of Airflow share one SQLite file: writers wait for each other, and transactions are atomic.

Each process of Airflow imports `CONNECT` (its option `sql_alchemy_connect_args`), and with it the listener below.
"""

from typing import Any

from sqlalchemy import Connection, Engine, event

CONNECT: dict[str, Any] = {"timeout": 30}  # seconds that a writer waits for another; Python's default is 5


@event.listens_for(Engine, "savepoint")
def begin_before_the_savepoint(connection: Connection, _: str) -> None:
    """Begin a write transaction before a savepoint.

    Python's driver begins a transaction only before an INSERT and the like. An earlier savepoint is a transaction of its own, and
    its release commits: others saw a backfill's runs one by one, and when it failed and rolled back, the scheduler, which had
    picked one up, crashed. It also began as a reader, which SQLite does not allow to write after another writer.
    """
    if connection.dialect.name == "sqlite" and not getattr(connection.connection.driver_connection, "in_transaction", True):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
