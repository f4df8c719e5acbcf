"""Two Airflow processes on one SQLite file, through SQLAlchemy and Python's driver."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from manifold.sandbox.platform.airflow_sqlite import CONNECT


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path}/airflow.db", connect_args=CONNECT)
    with made.begin() as connection:
        connection.execute(text("PRAGMA journal_mode=WAL"))
        connection.execute(text("CREATE TABLE run (id INTEGER)"))
    yield made
    made.dispose()


def runs(session: Session) -> int:
    return int(session.scalar(text("SELECT count(*) FROM run")) or 0)


def test_writes_after_a_savepoint_are_visible_after_the_commit_only(engine: Engine) -> None:
    with Session(engine) as writer, Session(engine) as scheduler:
        for run in (1, 2):
            with writer.begin_nested():
                assert runs(writer) == run - 1
                writer.execute(text("INSERT INTO run VALUES (1)"))
            assert runs(scheduler) == 0
        writer.commit()
        assert runs(scheduler) == 2


def test_rolled_back_writes_are_never_visible(engine: Engine) -> None:
    with Session(engine) as writer, Session(engine) as scheduler:
        with writer.begin_nested():
            writer.execute(text("INSERT INTO run VALUES (1)"))
        writer.rollback()
        assert runs(scheduler) == runs(writer) == 0
