"""The lease of rewriting jobs on a REST catalog with object storage and on PostgreSQL: one of many contenders gets it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr

from manifold.contracts.tables import SEGMENTS
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.lake.commits import append_nothing
from manifold.settings import Settings
from pipelines.ingest.lease import LEASE_S, Lease, LeaseHeld, LeaseLost, rewriting
from pipelines.ingest.maintenance_run import MaintenanceRun
from pipelines.ingest.publish import is_published, main_snapshots
from tests.stores import places
from tests.stores.servers import postgresql
from tests.support.servers import Server

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MANY = 6


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
def test_one_of_many_gets_the_lease_and_only_its_holder_publishes(place: str, request: pytest.FixtureRequest) -> None:
    settings: Settings = request.getfixturevalue(place)
    catalog = open_catalog(settings)
    ensure_tables(catalog)
    one_gets_it(settings, NOON)
    one_gets_it(settings, NOON + timedelta(seconds=LEASE_S + 1))  # after the first lease has expired

    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    late = NOON + timedelta(seconds=3 * LEASE_S)
    with rewriting(catalog, "collection", clock=lambda: late):
        run = MaintenanceRun(catalog, "collection", base, late)
        Lease(open_catalog(settings), "erasure").take()
        with pytest.raises(LeaseLost):
            run.publish(partial(append_nothing, catalog, SEGMENTS))
    assert not is_published(catalog, run.run_id)


def one_gets_it(settings: Settings, now: datetime) -> None:
    """One of many concurrent contenders gets the lease."""

    def take(n: int) -> bool:
        try:
            Lease(open_catalog(settings), f"job {n}", lambda: now).take()
        except LeaseHeld:
            return False
        return True

    with ThreadPoolExecutor(MANY) as pool:
        assert sum(pool.map(take, range(MANY))) == 1
