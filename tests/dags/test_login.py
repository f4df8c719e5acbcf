"""Logins and roles in the shared embedded Airflow."""

import httpx
import pytest

from manifold.contracts.errors import Permanent, Retryable
from manifold.sandbox.platform import airflow
from manifold.sandbox.platform.airflow_api import AirflowApi
from manifold.sandbox.platform.airflow_users import ADMIN, OPERATOR, ROLES, VIEWER, logged_in, password_of, passwords_file
from tests.dags.running import Platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
DAG = "ingest_archives"


def test_a_login_requires_a_password(running: Platform) -> None:
    with httpx.Client(base_url=airflow.url(running.settings)) as stranger:
        assert stranger.get("/api/v2/dags").status_code == 401
        assert stranger.post(f"/api/v2/dags/{DAG}/dagRuns", json={"logical_date": None}).status_code == 401
        assert stranger.get("/auth/token").status_code == 403  # how it shows if everyone is an administrator
        report = stranger.get("/reports/index.html")
        assert (report.status_code, "/auth/login" in report.headers["location"]) == (307, True)
    with (
        AirflowApi(airflow.url(running.settings), OPERATOR, "guessed") as guessing,
        pytest.raises(Permanent, match="let operator in"),
    ):
        guessing.knows(DAG)


def test_a_viewer_can_read_but_not_trigger(running: Platform) -> None:
    known = running.run_ids(DAG, "manual")
    with logged_in(running.settings, airflow.url(running.settings), VIEWER) as viewer:
        assert viewer.knows(DAG)
        with pytest.raises(Permanent, match="403"):
            viewer.trigger_dag(DAG)
    assert running.run_ids(DAG, "manual") == known


def test_waiting_for_a_dag_ends_once_it_is_parsed_or_at_the_timeout(running: Platform) -> None:
    with logged_in(running.settings, airflow.url(running.settings), VIEWER) as viewer:
        viewer.wait_known(DAG, within_s=60)
        with pytest.raises(Retryable, match="has not read no_such_dag"):
            viewer.wait_known("no_such_dag", within_s=0.1)


def test_operators_and_admins_can_change_pools(running: Platform) -> None:
    for user in (OPERATOR, ADMIN):
        with logged_in(running.settings, airflow.url(running.settings), user) as api:
            assert {pool["name"] for pool in api._request("GET", "/pools")["pools"]} >= {airflow.POOL}


def test_passwords_differ_and_are_stored_only_in_their_file(running: Platform) -> None:
    file = passwords_file(running.settings)
    passwords = {password_of(running.settings, user) for user in ROLES}
    assert len(passwords) == len(ROLES)
    assert file.stat().st_mode & 0o077 == 0
    for other in running.settings.home.rglob("*"):
        if other.is_file() and other != file:
            content = other.read_bytes()
            assert not any(password.encode() in content for password in passwords), other
