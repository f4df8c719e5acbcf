"""A hanging PostgreSQL catalog times out for PyIceberg and Spark, when connecting and later."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from tenacity import stop_after_attempt

from manifold.contracts.errors import Permanent
from manifold.contracts.tables import NAMESPACE
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.settings import Settings
from pipelines.catalog import UNAVAILABLE_ERRORS
from tests.stores.servers import postgresql
from tests.stores.stages import NAMESPACES, Failed, Stages
from tests.support.platforms import variables

SOON = json.dumps({"jdbc.connectTimeout": "2", "jdbc.socketTimeout": "2"})


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts connections and stays silent; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"postgresql+psycopg://manifold@127.0.0.1:{listening.getsockname()[1]}/postgres"


def settings_of(uri: str, home: Path, properties: str = SOON) -> Settings:
    return Settings(home=home, catalog_uri=uri, catalog_properties=properties)


def test_connecting_to_a_silent_server_times_out(silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_catalog.retry, "stop", stop_after_attempt(1))  # type: ignore[attr-defined]  # of tenacity
    with pytest.raises(OperationalError) as raised:
        open_catalog(settings_of(silent, tmp_path))
    assert isinstance(raised.value, UNAVAILABLE_ERRORS)


@pytest.mark.timeout(120)
def test_a_server_that_stops_responding_times_out_and_is_retried(tmp_path: Path) -> None:
    with postgresql(tmp_path / "pg") as uri:
        catalog = open_catalog(settings_of(uri, tmp_path))
        ensure_tables(catalog)
        with catalog.engine.connect() as asked:  # type: ignore[attr-defined]  # only SQL catalogs have it
            backend = int(asked.execute(text("select pg_backend_pid()")).scalar_one())
        os.kill(backend, signal.SIGSTOP)
        try:
            with pytest.raises(OperationalError, match="no answer within 2 s"):
                catalog.list_namespaces()
        finally:
            os.kill(backend, signal.SIGCONT)
        assert (NAMESPACE,) in catalog.list_namespaces()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_spark_times_out_too(silent: str, tmp_path: Path, jobs: Stages) -> None:
    with pytest.raises(Failed, match=r"CatalogAway: .* is away or locked.*(?i:timed out)"):
        jobs.run(NAMESPACES, variables(home=tmp_path, catalog_uri=silent, catalog_properties=SOON))


@pytest.mark.parametrize("limit", ["0", "-1", "1.5", "soon", ""])
def test_an_invalid_timeout_is_named(limit: str, silent: str, tmp_path: Path) -> None:
    with pytest.raises(Permanent, match=r"jdbc\.socketTimeout=.* in MANIFOLD_CATALOG_PROPERTIES"):
        open_catalog(settings_of(silent, tmp_path, json.dumps({"jdbc.socketTimeout": limit})))
