"""What of a campaign reaches the queues from the lake, and which data stays because it will."""

from dataclasses import replace

import pytest
from redis import Redis

from manifold.contracts import campaigns as r
from manifold.contracts import keys
from manifold.contracts.tables import DATA, IDS, META, ORDER_TABLES, OUTCOMES, SEGMENTS
from manifold.lake.catalog import ensure_tables
from manifold.lake.commits import append_rows
from manifold.settings import Settings
from pipelines.erasure.campaigns import rows_of
from pipelines.maintenance import garbage_run
from pipelines.maintenance.verify_digest import compare_digests
from pipelines.maintenance.verify_lake import PinnedLake
from pipelines.populate.load import populate
from tests.manifold.campaigns.plans import document
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import NOON_MS, at, seq_at
from tests.pipelines.test_garbage import sighting
from tests.support.servers import Server

pytestmark = pytest.mark.slow
NAME, DAY_MS = "maps-47", 86_400_000


def test_a_rebuild_brings_campaign_and_window_of_a_release(spark_lake: SparkLake, redis: Redis, redis_server: Server) -> None:
    lake = replace(spark_lake, settings=Settings(home=spark_lake.settings.home, redis_port=redis_server.port))
    ensure_tables(lake.catalog)
    entry = {"vin": "V1", "data_id": "d1", "applied": True}
    place = {"campaign": NAME, "wave": 0, "step": 1, "until": at(9)}
    lake.append(IDS, [entry | {"ts": at(1), "seq": seq_at(1), "request_id": NAME} | place])
    lake.append(IDS, [entry | {"ts": at(2), "seq": seq_at(2), "request_id": "other"}])

    populate(lake.spark, lake.catalog, lake.settings, now=at(100), everything=True)

    common = {b"data_id": b"d1"}
    assert redis.hgetall(keys.trigger(seq_at(1))) == common | {
        b"request_id": NAME.encode(),
        b"campaign": NAME.encode(),
        b"until": str(NOON_MS + 9).encode(),
    }
    assert redis.hgetall(keys.trigger(seq_at(2))) == common | {b"request_id": b"other"}


def test_a_collection_keeps_the_data_of_an_open_campaign(spark_lake: SparkLake) -> None:
    lake, now_ms = spark_lake, 40 * DAY_MS
    ensure_tables(lake.catalog)
    for data_id in ("map_47", "old"):
        lake.append(META, [sighting(data_id, at(1))])
        payload = {"payload": b"x", "sha1": "0" * 40, "size_bytes": 1, "seq": seq_at(1), "first_seen_at": at(1)}
        lake.append(DATA, [{"data_id": data_id} | payload])
    propose = r.Propose(NAME, "author", plan=document(ends=f"{at(50 * DAY_MS):%Y-%m-%dT%H:%M:%SZ}"))

    def unneeded(run_id: str) -> list[str]:
        _, data = garbage_run.discover(lake.run(run_id, now_ms), cutoff=at(now_ms - 30 * DAY_MS))
        return data.sample

    def order(ms: int, command: r.Command) -> None:
        for name, rows in rows_of({seq_at(ms): r.encode(command)}).items():
            append_rows(lake.catalog, next(table for table in ORDER_TABLES if table.name == name), rows, {})

    order(2, propose)
    assert unneeded("open") == ["old"]
    order(3, r.Cancel(NAME, "ann"))
    assert unneeded("over") == ["map_47", "old"]


def test_a_late_delivery_is_no_difference_between_queues_and_lake(
    spark_lake: SparkLake, redis: Redis, redis_server: Server
) -> None:
    lake = replace(spark_lake, settings=Settings(home=spark_lake.settings.home, redis_port=redis_server.port))
    ensure_tables(lake.catalog)
    del redis  # emptied: nothing waits
    newest = {"path": "p", "stream": "trigger", "messages": 1, "first_seq": seq_at(1), "last_seq": seq_at(50)}
    lake.append(SEGMENTS, [newest | {"run_id": "r", "ingested_at": at(60)}])
    entry = {"ts": at(1), "seq": seq_at(1), "request_id": NAME, "data_id": "d1", "applied": True}
    lake.append(IDS, [entry | {"vin": vin} for vin in ("V1", "V2", "V3")])
    ended = {"seq": seq_at(1), "accepted_at": at(1), "ended_at": at(5)}
    ends = [("V1", "withdrawn"), ("V1", "delivered"), ("V2", "withdrawn"), ("V3", "delivered")]
    lake.append(OUTCOMES, [ended | {"vin": vin, "outcome": outcome} for vin, outcome in ends])

    found = compare_digests(PinnedLake(lake.spark, lake.catalog, lake.settings, at(100)))

    assert found.differing == []
