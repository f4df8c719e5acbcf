"""An unreachable or locked catalog is waited for up to a limit and then named with a remedy."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from manifold.lake.catalog import ensure_tables
from manifold.settings import Settings, load_settings
from pipelines.catalog import CatalogAway, await_catalog, naming_the_catalog
from tests.support.servers import free_port, wait_until


@pytest.fixture
def locked(tmp_path: Path) -> sqlite3.Connection:
    """A catalog locked by another program."""
    connection = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None, check_same_thread=False)
    connection.execute("CREATE TABLE other (a)")
    connection.execute("BEGIN EXCLUSIVE")
    return connection


def over(folder: Path, wait_s: float = 60) -> Settings:
    return load_settings(home=folder, catalog_uri=f"sqlite:///{folder}/catalog.db?timeout=0.01", catalog_wait_seconds=wait_s)


def test_a_locked_catalog_is_waited_for(tmp_path: Path, locked: sqlite3.Connection) -> None:
    with capture_logs() as logged, ThreadPoolExecutor(1) as pool:
        opened = pool.submit(await_catalog, over(tmp_path))
        wait_until(lambda: [entry for entry in logged if "trying again" in entry["event"]])
        locked.execute("COMMIT")
        assert opened.result(60).list_namespaces() == []


def test_a_catalog_that_stays_locked_is_named_with_setting_and_remedy(tmp_path: Path, locked: sqlite3.Connection) -> None:
    with pytest.raises(CatalogAway, match=r"catalog\.db.*locked.*MANIFOLD_CATALOG_URI.*run this again"):
        await_catalog(over(tmp_path, wait_s=0.1))
    locked.close()


def test_an_unresponsive_catalog_is_named(tmp_path: Path) -> None:
    uri = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(CatalogAway, match=rf"{uri}.*MANIFOLD_CATALOG_WAIT_SECONDS=0.1"):
        await_catalog(load_settings(home=tmp_path, catalog_type="rest", catalog_uri=uri, catalog_wait_seconds=0.1))


def test_a_catalog_locked_half_way_is_named_too(tmp_path: Path) -> None:
    settings = over(tmp_path)
    catalog = await_catalog(settings)
    with sqlite3.connect(tmp_path / "catalog.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CatalogAway, match="locked"), naming_the_catalog(settings):
            ensure_tables(catalog)


def test_no_password_of_an_address_is_shown(tmp_path: Path) -> None:
    uri = f"postgresql+psycopg://user:in-front@127.0.0.1:{free_port()}/lake?user=u&password=behind&sslmode=disable"
    settings = load_settings(home=tmp_path, catalog_uri=uri, catalog_wait_seconds=2)

    with capture_logs() as logged, pytest.raises(CatalogAway) as shown:
        await_catalog(settings)

    assert [entry for entry in logged if "trying again" in entry["event"]]
    for text in (str(logged), str(shown.value)):
        assert "127.0.0.1" in text
        assert "in-front" not in text
        assert "behind" not in text
