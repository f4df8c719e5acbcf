"""A job over a REST catalog and a bucket emits the same lineage as one over files."""

from pathlib import Path

import pyarrow as pa
import pytest

from manifold.contracts.tables import IDS
from manifold.lake.catalog import open_catalog
from manifold.lake.commits import append_rows
from manifold.settings import Settings
from pipelines.lineage import emits_lineage
from tests.pipelines.makers import at, seq_at
from tests.stores.places import WAREHOUSE, on_object_storage
from tests.support.lake_rows import new_lake
from tests.support.lineage import runs_of, told_in
from tests.support.servers import Server

ROW = {"vin": "V", "ts": at(1), "request_id": "r", "seq": seq_at(1), "data_id": "d", "applied": False}


@emits_lineage("work", reads=["archive"])
def work(settings: Settings) -> None:
    rows = pa.Table.from_pylist([ROW], schema=IDS.arrow_schema)
    append_rows(open_catalog(settings), IDS, rows, {})


@pytest.mark.slow
def test_a_table_is_named_by_bucket_and_key(tmp_path: Path, redis_server: Server) -> None:
    file = tmp_path / "events.jsonl"
    with on_object_storage(tmp_path / "deployed", redis_server, lineage_url=f"file://{file}") as deployed:
        new_lake(deployed.settings)
        work(deployed.settings)
        ((_, ended),) = runs_of(told_in(file), "work")
        (table,) = ended["outputs"]
        loaded = open_catalog(deployed.settings).load_table(IDS.identifier)
        snapshot = loaded.current_snapshot()
    bucket = "/".join(WAREHOUSE.split("/")[:3])
    assert (table["namespace"], f"{bucket}/{table['name']}") == (bucket, loaded.location())
    assert snapshot is not None
    assert table["facets"]["version"]["datasetVersion"] == str(snapshot.snapshot_id)
    assert [each["namespace"] for each in ended["inputs"]] == [bucket, bucket]
