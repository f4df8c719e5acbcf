"""A REST catalog that requires a token, knows its warehouse by name and vends credentials: by settings alone."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from manifold.contracts.errors import Permanent
from manifold.contracts.tables import IDS, NAMESPACE
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.lake.payloads import read_payload
from tests.pipelines.makers import data, trigger
from tests.stores.auth_proxy import CLIENT_ID, CLIENT_SECRET, AuthProxy, before_a_catalog, behind
from tests.stores.stages import Stages
from tests.support.servers import Server

CREDENTIAL = f"{CLIENT_ID}:{CLIENT_SECRET}"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthProxy]:
    with before_a_catalog(AuthProxy, tmp_path_factory.mktemp("guarded")) as proxy:
        yield proxy


@pytest.mark.slow
@pytest.mark.parametrize("login", ["credential", "token"])
def test_both_engines_log_in_and_write_with_vended_credentials(
    login: str, proxy: AuthProxy, proxied_jobs: Stages, tmp_path: Path, redis_server: Server
) -> None:
    properties = {"credential": {"credential": CREDENTIAL, "scope": "lake"}, "token": {"token": proxy.token()}}[login]
    lake = behind(proxy, tmp_path, redis_server, **properties)
    ms = len(login)  # two lakes in one catalog must use different segment names
    lake.archive(data(ms, f"by-{login}", b"firmware"), trigger(ms + 100, ["V1", "V2"], f"by-{login}"))
    proxy.served.clear()

    result = proxied_jobs.run("run_all --no-flush", lake.variables)

    assert result["ingested"]["written"][IDS.name] == 2
    assert read_payload(open_catalog(lake.settings), f"by-{login}") == b"firmware"
    assert set(proxy.served) == {"PyIceberg", "Apache"}
    assert min(proxy.served.values()) > 5


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
    properties: dict[str, str], why: str, proxy: AuthProxy, tmp_path: Path, redis_server: Server
) -> None:
    lake = behind(proxy, tmp_path, redis_server, **properties)

    with pytest.raises(Permanent, match=rf"{proxy.url} refuses the login .*{why}.*MANIFOLD_CATALOG_PROPERTIES") as refused:
        open_catalog(lake.settings)

    status, output = lake.command("pipelines", "discover", "--no-flush")
    assert status == 5  # a retry would change nothing
    assert "refuses the login" in output
    for value in properties.values():
        assert value.split(":")[-1] not in output + str(refused.value)


def test_no_command_prints_a_property(proxy: AuthProxy, tmp_path: Path, redis_server: Server) -> None:
    lake = behind(proxy, tmp_path, redis_server, credential=CREDENTIAL)
    ensure_tables(open_catalog(lake.settings))

    _, output = lake.command("manifold.console", "settings", "--json")
    assert next(s for s in json.loads(output) if s["name"] == "catalog_properties")["value"] == "********"
    for command in (["settings"], ["status", "--json"], ["doctor"]):
        _, output = lake.command("manifold.console", *command)
        assert CLIENT_SECRET not in output
    assert re.search(r"\d tables", output), output  # from the doctor, after connecting
