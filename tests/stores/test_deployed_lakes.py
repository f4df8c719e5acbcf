"""The same pipelines on a catalog in PostgreSQL, by settings alone.

`test_maintenance.py` has them on object storage and a REST catalog.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from manifold.contracts.tables import IDS, SEGMENTS
from manifold.history.from_lake import read_entries
from manifold.lake.catalog import open_catalog
from manifold.lake.payloads import read_payload
from tests.pipelines.makers import data, trigger
from tests.stores.places import Deployed, settings_of, variables_of
from tests.stores.servers import postgresql
from tests.stores.stages import Stages
from tests.support.servers import Server

VINS = [f"V{n}" for n in range(50)]


@pytest.fixture
def lake(tmp_path: Path, redis_server: Server) -> Iterator[Deployed]:
    """Tables in a SQL catalog on PostgreSQL, files in a folder."""
    with postgresql(tmp_path / "pg") as uri:
        variables = variables_of(tmp_path, redis_server, catalog_uri=uri)
        yield Deployed(settings_of(variables), variables, tmp_path)


@pytest.mark.slow
def test_an_archive_is_ingested_and_read_back(lake: Deployed, jobs: Stages) -> None:
    messages = [data(1, "d1", b"firmware"), trigger(2, VINS, "d1"), trigger(3, VINS[:3], "d1")]
    lake.archive(*messages)

    result = jobs.run("run_all --no-flush", lake.variables)

    catalog = open_catalog(lake.settings)
    assert result["ingested"]["written"][IDS.name] == len(VINS) + 3
    assert read_payload(catalog, "d1") == b"firmware"
    assert [entry.seq for entry in read_entries(catalog, VINS[0])] == [messages[1].seq, messages[2].seq]
    assert catalog.load_table(SEGMENTS.identifier).scan().to_arrow().num_rows == 2
