"""The same pipelines on a deployed lake, by settings alone: object storage, a REST catalog, PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from manifold.contracts.tables import IDS, SEGMENTS
from manifold.history.from_lake import read_entries
from manifold.lake.catalog import open_catalog
from manifold.lake.payloads import read_payload
from manifold.settings import Settings
from pipelines.spark.conf import POSTGRESQL_JAR
from tests.pipelines.makers import data, trigger
from tests.stores.places import Deployed, on_object_storage, settings_of, variables_of
from tests.stores.servers import postgresql, require
from tests.support.servers import Server

VINS = [f"V{n}" for n in range(50)]


@pytest.fixture
def object_lake(tmp_path: Path, redis_server: Server) -> Iterator[Deployed]:
    with on_object_storage(tmp_path, redis_server) as deployed:
        yield deployed


@pytest.fixture
def postgresql_lake(tmp_path: Path, redis_server: Server) -> Iterator[Deployed]:
    """Tables in a SQL catalog on PostgreSQL, files in a folder."""
    require(Settings().jars / POSTGRESQL_JAR)
    with postgresql(tmp_path / "pg") as uri:
        variables = variables_of(tmp_path, redis_server, catalog_uri=uri)
        yield Deployed(settings_of(variables), variables, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("lake", ["object_lake", "postgresql_lake"])
def test_a_deployed_lake_ingests_an_archive_and_is_read_back(lake: str, request: pytest.FixtureRequest) -> None:
    deployed: Deployed = request.getfixturevalue(lake)
    messages = [data(1, "d1", b"firmware"), trigger(2, VINS, "d1"), trigger(3, VINS[:3], "d1")]
    deployed.archive(*messages)

    (result,) = deployed.stages("run_all --no-flush")

    catalog = open_catalog(deployed.settings)
    assert result["ingested"]["written"][IDS.name] == len(VINS) + 3
    assert read_payload(catalog, "d1") == b"firmware"
    assert [entry.seq for entry in read_entries(catalog, VINS[0])] == [messages[1].seq, messages[2].seq]
    assert catalog.load_table(SEGMENTS.identifier).scan().to_arrow().num_rows == 2
