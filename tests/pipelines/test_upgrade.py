"""Lakes that earlier releases made, opened by this one: as they are, migrated, and taken back to before that."""

from hashlib import sha1

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from redis import Redis
from structlog.testing import capture_logs

from manifold.contracts.envelope import Stream, to_arrow
from manifold.contracts.tables import DATA, IDS, META, SEGMENTS, TABLES
from manifold.lake.payloads import read_payloads
from pipelines.maintenance.rollback import rollback
from pipelines.migrations.migrate import migrate, plan
from pipelines.populate.load import populate
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import at, data, seq_at, trigger
from tests.pipelines.old_lakes import FIRST, RELEASES, add, make_old
from tests.support.servers import Server


def files(catalog: Catalog) -> dict[str, set[str]]:
    """The data files of the first release's tables."""
    return {name: {task.file.file_path for task in catalog.load_table(f"sdv.{name}").scan().plan_files()} for name in FIRST}


def test_a_warehouse_of_the_first_release_goes_on_without_a_rewrite(spark_lake: SparkLake) -> None:
    make_old(spark_lake.catalog, FIRST)
    old_path = spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1"])])
    seen = {"path": old_path, "stream": "trigger", "messages": 1, "first_seq": seq_at(1), "last_seq": seq_at(1)}
    add(spark_lake.catalog, "ingested_segments", seen | {"run_id": "first", "ingested_at": at(10)})
    add(
        spark_lake.catalog,
        IDS.name,
        {"vin": "V1", "ts": at(1), "request_id": "r", "seq": seq_at(1), "data_id": "d1", "applied": True},
    )
    payload = {"data_id": "d1", "payload": b"x", "sha1": "s", "size_bytes": 1, "seq": seq_at(1), "first_seen_at": at(1)}
    add(spark_lake.catalog, DATA.name, payload)
    add(spark_lake.catalog, META.name, {"data_id": "d1", "first_seen_at": at(1), "last_seen_at": at(1), "times_seen": 1})
    before = files(spark_lake.catalog)

    # A segment of a release in which the envelope has an optional field more, and one in which it has less.
    table = to_arrow([trigger(5, ["V2"])])
    spark_lake.write(Stream.TRIGGER, [trigger(5, ["V2"])])
    newest = max(spark_lake.file("trigger").rglob("*.parquet"), key=lambda file: int(file.name.split("-")[0]))
    pq.write_table(table.append_column("region", pa.array(["north"])), newest)
    older = spark_lake.file(spark_lake.write(Stream.DATA, [data(6, "d2", b"two")]))
    pq.write_table(pq.read_table(older).drop_columns(["headers", "applied", "refused_because"]), older)
    spark_lake.ingest("second")

    assert spark_lake.rows(IDS, "vin") == ["V1", "V2"]
    assert spark_lake.rows(DATA, "data_id") == ["d1", "d2"]
    assert spark_lake.rows(SEGMENTS, "refused_because") == [None] * 3
    kept = files(spark_lake.catalog)
    assert all(before[name] <= kept[name] for name in FIRST if name != META.name)  # meta is merged, so its file is another
    for known in TABLES:
        names = {field.name for field in spark_lake.catalog.load_table(known.identifier).schema().fields}
        assert names == {column.name for column in known.columns}


def add_old_payload(spark_lake: SparkLake) -> None:
    """d1, as an earlier release has stored it."""
    row = {"data_id": "d1", "payload": b"one", "sha1": sha1(b"one").hexdigest(), "size_bytes": 3, "seq": seq_at(1)}
    add(spark_lake.catalog, DATA.name, row | {"first_seen_at": at(1)})
    add(spark_lake.catalog, META.name, {"data_id": "d1", "first_seen_at": at(1), "last_seen_at": at(1), "times_seen": 1})


@pytest.fixture
def home(spark_lake: SparkLake, redis_server: Server) -> SparkLake:
    spark_lake.settings = spark_lake.settings.model_copy(update={"redis_port": redis_server.port})
    return spark_lake


@pytest.mark.parametrize("release", ["first", "second"])
def test_a_migrated_lake_stores_no_payload_twice_and_goes_on_after_a_rollback_to_before(
    home: SparkLake, release: str, redis: Redis
) -> None:
    make_old(home.catalog, RELEASES[release])
    add_old_payload(home)
    home.write(Stream.DATA, [data(2, "d2", b"two")])
    with capture_logs() as logged:
        home.ingest("unmigrated")  # by this release, on the tables of the earlier one
    assert any(META.name in line.get("tables", ()) and "manifold lake migrate" in line["event"] for line in logged)
    migrate(home.catalog)
    home.write(Stream.DATA, [data(11, "d1", b"one"), data(12, "d3", b"three"), data(13, "d2", b"other")])
    home.write(Stream.TRIGGER, [trigger(14, ["V1"], data_id="d1")])
    home.ingest("migrated")

    assert home.rows(DATA, "data_id") == ["d1", "d2", "d3"]
    assert home.rows(META, "data_id", "times_seen", "stored_at") == [("d1", 2, at(1)), ("d2", 1, at(2)), ("d3", 1, at(12))]
    assert plan(home.catalog).steps == []  # Spark's rows fill the index, too
    populated = populate(home.spark, home.catalog, home.settings, now=at(15), everything=True)
    assert populated.queued == 1

    rollback(home.catalog, home.settings, run_id="unmigrated", now=at(20))  # the index of d1 is taken back with it
    home.write(Stream.DATA, [data(31, "d1", b"one"), data(32, "d1", b"other")])
    home.ingest("again")

    assert home.rows(DATA, "data_id") == ["d1", "d2", "d3"]
    assert home.rows(META, "data_id", "times_seen") == [("d1", 3), ("d2", 1), ("d3", 1)]
    assert read_payloads(home.catalog, ["d1", "d3"]) == {"d1": b"one", "d3": b"three"}
    assert [(s.step, s.resumed) for s in migrate(home.catalog).steps] == [("payload-index", True)]
    assert home.rows(META, "data_id", "stored_at") == [("d1", at(1)), ("d2", at(2)), ("d3", at(12))]
    assert plan(home.catalog).steps == []
