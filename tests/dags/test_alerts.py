"""Alerts for failed and late runs, as received at `alert_url`."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dags._alerts import tell_failed, tell_late
from tests.support.hook import hook

RUN = "scheduled__2026-05-04T00:00:00+00:00"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The requests that a server at `alert_url` received."""
    with hook() as (url, sent):
        monkeypatch.setenv("MANIFOLD_ALERT_URL", url)
        yield sent


def test_a_late_run_is_reported_with_the_url_of_its_page(told: list[dict[str, Any]]) -> None:
    tell_late({"dag_run": {"dag_id": "ingest_archives", "dag_run_id": RUN}})

    (message,) = told
    assert message["text"].startswith(f"ingest_archives has not ended in time: run {RUN}")
    assert message["what"] == "late"
    assert message["url"].endswith("/dags/ingest_archives/runs/scheduled__2026-05-04T00%3A00%3A00%2B00%3A00")


def test_a_failed_run_is_reported_with_the_failed_task(told: list[dict[str, Any]]) -> None:
    tell_failed({"dag": SimpleNamespace(dag_id="ingest_archives"), "run_id": RUN, "task": SimpleNamespace(task_id="audit")})

    (message,) = told
    assert (message["what"], message["dag_id"], message["run_id"], message["tasks"]) == (
        "failed",
        "ingest_archives",
        RUN,
        ["audit"],
    )


def test_without_an_alert_url_nothing_is_sent_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("MANIFOLD_ALERT_URL", raising=False)
    tell_failed({"dag": SimpleNamespace(dag_id="ingest_archives"), "run_id": RUN})
    assert "MANIFOLD_ALERT_URL is empty" in caplog.text
