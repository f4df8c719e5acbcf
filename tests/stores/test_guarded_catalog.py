"""A REST catalog that requires a token, knows its warehouse by name and vends credentials: by settings alone."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from manifold.console._app import make_app
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import IDS, NAMESPACE
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.lake.payloads import read_payload
from tests.pipelines.makers import data, trigger
from tests.stores.auth_proxy import CLIENT_ID, CLIENT_SECRET, AuthProxy, before_a_catalog, behind
from tests.stores.stages import NAMESPACES, Failed, Stages
from tests.support.servers import Server

CREDENTIAL = f"{CLIENT_ID}:{CLIENT_SECRET}"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthProxy]:
    with before_a_catalog(AuthProxy, tmp_path_factory.mktemp("guarded")) as proxy:
        yield proxy


@pytest.mark.slow
def test_both_engines_log_in_and_write_with_vended_credentials(
    proxy: AuthProxy, jobs: Stages, tmp_path: Path, redis_server: Server
) -> None:
    lake = behind(proxy, tmp_path, redis_server, credential=CREDENTIAL, scope="lake")
    lake.archive(data(1, "d", b"firmware"), trigger(2, ["V1", "V2"], "d"))
    proxy.served.clear()

    result = jobs.run("run_all --no-flush", lake.variables)

    assert result["ingested"]["written"][IDS.name] == 2
    assert read_payload(open_catalog(lake.settings), "d") == b"firmware"
    assert set(proxy.served) == {"PyIceberg", "Apache"}
    assert min(proxy.served.values()) > 5


@pytest.mark.slow
def test_both_engines_log_in_with_a_token(proxy: AuthProxy, jobs: Stages, tmp_path: Path, redis_server: Server) -> None:
    lake = behind(proxy, tmp_path, redis_server, token=proxy.token())
    proxy.served.clear()

    ensure_tables(open_catalog(lake.settings))

    assert NAMESPACE in jobs.run(NAMESPACES, lake.variables)[NAMESPACES]
    assert set(proxy.served) == {"PyIceberg", "Apache"}


def test_an_invalid_token_is_fetched_again(proxy: AuthProxy, tmp_path: Path, redis_server: Server) -> None:
    lake = behind(proxy, tmp_path, redis_server, credential=CREDENTIAL)
    catalog = open_catalog(lake.settings)
    ensure_tables(catalog)
    proxy.revoke()
    refused = proxy.refused

    assert len(catalog.list_tables(NAMESPACE)) >= 8
    assert proxy.refused == refused + 1


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        pytest.param({}, "no valid token", id="none"),
        pytest.param({"token": "for-nobody"}, "no valid token", id="an invalid token"),
        pytest.param({"credential": "manifold:wrong-secret"}, "unknown client", id="a wrong secret"),
    ],
)
def test_a_refused_login_names_the_setting_to_correct_and_shows_no_secret(
    properties: dict[str, str], why: str, proxy: AuthProxy, jobs: Stages, tmp_path: Path, redis_server: Server
) -> None:
    lake = behind(proxy, tmp_path, redis_server, **properties)

    with pytest.raises(Permanent, match=rf"{proxy.url} refuses the login .*{why}.*MANIFOLD_CATALOG_PROPERTIES") as refused:
        open_catalog(lake.settings)

    with pytest.raises(Failed, match="refuses the login") as failed:
        jobs.run("discover --no-flush", lake.variables)
    assert failed.value.status == "5"  # a retry would change nothing
    for value in properties.values():
        assert value.split(":")[-1] not in failed.value.output + str(refused.value)


def test_no_command_prints_a_property(
    proxy: AuthProxy, tmp_path: Path, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = behind(proxy, tmp_path, redis_server, credential=CREDENTIAL)
    ensure_tables(open_catalog(lake.settings))
    for name, value in lake.variables.items():
        monkeypatch.setenv(name, value)

    def output_of(*command: str) -> str:
        return CliRunner().invoke(make_app(command[0]), command).output

    found = json.loads(output_of("settings", "--json"))
    assert next(each for each in found if each["name"] == "catalog_properties")["value"] == "********"
    for command in (["settings"], ["status", "--json"], ["doctor"]):
        output = output_of(*command)
        assert CLIENT_SECRET not in output
    assert re.search(r"\d tables", output), output  # from the doctor, after connecting
