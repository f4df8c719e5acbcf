"""The named token with which the embedded Airflow orders campaigns for its users."""

import json
import stat
from pathlib import Path

from airflow.sdk import Connection

from dags._connections import variables_from_connections
from manifold.api._callers import Caller, Callers, Right
from manifold.runtime import secret_files
from manifold.sandbox.platform import airflow, api_tokens
from manifold.settings import Settings

CONNECTION = "AIRFLOW_CONN_MANIFOLD_API"
RIGHTS = frozenset({Right.READ, Right.APPROVE, Right.BRAKE, Right.DELEGATE})


def test_jobs_of_airflow_send_a_token_that_the_api_knows(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, http_token="of-all")
    api_tokens.create_missing(settings)

    connection = Connection(conn_id="manifold_api", **json.loads(airflow.environment(settings, {})[CONNECTION]))
    found = variables_from_connections(lambda name: connection if name == connection.conn_id else None)

    assert found["MANIFOLD_API_URL"] == settings.api
    assert Callers.of(settings).identify(f"Bearer {found['MANIFOLD_API_TOKEN']}") == Caller("airflow", RIGHTS)
    files = list((tmp_path / "secrets").iterdir())
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert [file.name for file in files if found["MANIFOLD_API_TOKEN"] in file.read_text()] == [api_tokens.AIRFLOW_TOKEN]


def test_a_second_start_keeps_the_token_and_what_people_changed(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, http_token="of-all")
    api_tokens.create_missing(settings)
    token, file = api_tokens.token_of_airflow(settings), tmp_path / "secrets" / secret_files.API_TOKENS
    file.write_text("# Airflow may order nothing any more\n")
    api_tokens.create_missing(settings)

    assert api_tokens.token_of_airflow(settings) == token
    assert Callers.of(settings).identify(f"Bearer {token}") is None


def test_a_named_file_token_or_api_is_used_instead(tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_text("")
    api_tokens.create_missing(Settings(home=tmp_path))

    for settings in (
        Settings(home=tmp_path, api_tokens_file=str(file)),
        Settings(home=tmp_path, api_token="mine"),
        Settings(home=tmp_path, api_url="https://elsewhere:9104"),
    ):
        assert CONNECTION not in airflow.environment(settings, {})
    other = Settings(home=tmp_path / "other", with_airflow=False)
    api_tokens.create_missing(other)
    assert Callers.of(other).file is None
