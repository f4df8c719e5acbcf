"""Run ids equal those of OpenLineage's client and Airflow's provider."""

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from manifold.contracts.lineage import RunName, run_uuid, task_run

DUE = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
# The result of openlineage-python 1.54.0 (generate_static_uuid), and so of apache-airflow-providers-openlineage 2.20.3.
TASK = "019b7ca9-8f2e-7700-8988-8fc03bdd93cc"


def test_a_task_run_id_matches_the_airflow_provider() -> None:
    assert task_run("default", "d", "t", attempt=1, mapped=-1, due=DUE) == RunName("default", "d.t", TASK)


def test_equal_instants_in_any_timezone_give_the_same_run_id() -> None:
    there = DUE.astimezone(timezone(timedelta(hours=2)))
    assert run_uuid(there, "default.d.t.1.-1") == TASK
    assert (UUID(TASK).version, UUID(TASK).variant) == (7, "specified in RFC 4122")
    assert run_uuid(DUE, "default.d.t.2.-1") != TASK


def test_a_job_name_parses_back_even_if_the_namespace_has_slashes() -> None:
    run = RunName("https://airflow.example/prod", "d.t", TASK)
    assert RunName.parse(str(run)) == run


@pytest.mark.parametrize("text", ["", "a", f"a/{TASK}", f"/a/{TASK}", f"a//{TASK}", "a/b/c"])
def test_an_invalid_run_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        RunName.parse(text)
