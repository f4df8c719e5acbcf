"""A REST catalog that accepts connections and never answers."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from requests.exceptions import Timeout

from manifold.contracts.errors import Permanent
from manifold.lake.catalog import open_catalog
from manifold.settings import Settings

ANSWER = "rest.client.socket-timeout-ms"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and stays silent."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def settings_of(home: Path, uri: str, **properties: str) -> Settings:
    given = {"home": home, "catalog_type": "rest", "catalog_uri": uri, "catalog_properties": json.dumps(properties)}
    return Settings.model_validate(given)


@pytest.mark.parametrize("more", [{}, {"token": "t"}, {"credential": "client:secret"}], ids=["config", "token", "credential"])
def test_a_catalog_that_never_answers_times_out(silent: str, tmp_path: Path, more: dict[str, str]) -> None:
    if "credential" in more:
        more = more | {"oauth2-server-uri": f"{silent}/v1/oauth/tokens"}
    with pytest.raises(Timeout):
        open_catalog(settings_of(tmp_path, silent, **{ANSWER: "100"}, **more))


@pytest.mark.parametrize("limit", ["a minute", "0", "-1", "inf", "nan"])
def test_an_invalid_timeout_is_refused(silent: str, tmp_path: Path, limit: str) -> None:
    with pytest.raises(Permanent, match=f"{ANSWER}={limit} .* milliseconds"):
        open_catalog(settings_of(tmp_path, silent, **{ANSWER: limit}))
