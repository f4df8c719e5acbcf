"""Lakes of an earlier release on a REST catalog with object storage, and on PostgreSQL, migrated by two at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr

from manifold.contracts.tables import META, TABLES
from manifold.lake.catalog import open_catalog
from manifold.lake.payloads import is_filled, read_payloads
from manifold.settings import Settings
from pipelines.migrations.migrate import Migrated, migrate, plan
from tests.pipelines.old_lakes import SECOND, fill, make_old
from tests.stores import places
from tests.stores.servers import postgresql
from tests.support.servers import Server


@pytest.fixture
def on_object_storage(tmp_path: Path, redis_server: Server) -> Iterator[Settings]:
    with places.on_object_storage(tmp_path, redis_server) as deployed:
        yield deployed.settings


@pytest.fixture
def on_postgresql(tmp_path: Path) -> Iterator[Settings]:
    with postgresql(tmp_path / "pg") as uri:
        yield Settings(home=tmp_path / "home", catalog_uri=SecretStr(uri))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["on_object_storage", "on_postgresql"])
def test_two_migrations_at_once_do_it_once(place: str, request: pytest.FixtureRequest) -> None:
    settings: Settings = request.getfixturevalue(place)
    catalog = open_catalog(settings)
    make_old(catalog, SECOND)
    fill(catalog, SECOND)

    def work(_: int) -> Migrated:
        return migrate(open_catalog(settings))

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(work, range(2)))

    assert {one.versions[t.name] for one in done for t in [META]} == {META.version}
    assert plan(catalog).steps == []
    assert plan(catalog).versions == {t.name: t.version for t in TABLES}
    names = catalog.load_table(META.identifier)
    assert sorted(names.scan().to_arrow()["data_id"].to_pylist()) == [f"d{n}" for n in range(1, 6)]
    assert is_filled(names)
    assert read_payloads(catalog, ["d1", "d5"]) == {"d1": b"payload 1", "d5": b"payload 5"}
