"""When a job does without Spark, and when it does not."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from manifold.settings import Settings
from pipelines.spark import session
from pipelines.spark.conf import SUBMITTED
from pipelines.spark.needed import NeedsSpark, is_small, without_spark_or_with


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs for which Spark was started; a word stands for it."""
    jobs: list[str] = []

    @contextmanager
    def start(_: Settings, job: str, **__: Any) -> Iterator[str]:
        jobs.append(job)
        yield "Spark"

    monkeypatch.setattr(session, "session", start)
    monkeypatch.delenv(SUBMITTED, raising=False)
    return jobs


def itself(spark: Any) -> Any:
    return spark


def too_much(spark: Any) -> Any:
    if spark is None:
        raise NeedsSpark("too much")
    return spark


def test_what_is_small_needs_none_and_what_turns_out_too_much_begins_again_with_it(started: list[str]) -> None:
    assert without_spark_or_with(Settings(), "job", itself, small=True) is None
    assert started == []
    assert without_spark_or_with(Settings(), "job", too_much, small=True) == "Spark"
    assert without_spark_or_with(Settings(), "large", itself, small=False) == "Spark"
    assert started == ["job", "large"]


def test_where_it_may_not_start_that_is_said(started: list[str]) -> None:
    for small in (True, False):
        with pytest.raises(NeedsSpark):
            without_spark_or_with(Settings(), "job", too_much, small=small, may_start=False)
    assert started == []


def test_what_was_submitted_to_a_cluster_runs_there_however_small(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SUBMITTED, "1")

    assert without_spark_or_with(Settings(), "job", itself, small=True) == "Spark"


def test_nothing_is_small_where_every_run_is_to_take_it() -> None:
    assert is_small(Settings(small_run_bytes=10), 10)
    assert not is_small(Settings(small_run_bytes=10), 11)
    assert not is_small(Settings(small_run_bytes=0), 0)
