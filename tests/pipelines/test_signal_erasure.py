"""`manifold signals erase` removes a device everywhere and keeps others."""

import gzip
import json
from pathlib import Path

import pytest
from redis import Redis

from manifold.contracts.envelope import Stream
from manifold.contracts.tables import QUARANTINE, SIGNAL_TABLES, XRAY_PROCESSED, XRAY_RAW, XRAY_STATUS
from manifold.settings import Settings
from pipelines.erasure.run import erase
from pipelines.maintenance.check import check
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import at, seq_at
from tests.pipelines.signal_makers import Door, readings

GONE, STAYS = "device-8f3a", "device-8f3a-2"
NOW_MS = 60_000


@pytest.mark.parametrize(("gone", "in_sealed"), [(GONE, 2), ("d7", 0)], ids=["a name", "a short one"])
def test_rows_and_records_of_the_device_go_and_those_of_others_stay(
    spark_lake: SparkLake, redis: Redis, tmp_path: Path, gone: str, in_sealed: int
) -> None:
    """Refused messages are unsealed to search for a name too long to occur by chance: `deviceId` is not its only place."""
    another_place = json.dumps({"about": {"device": gone}}).encode()
    redis_url = f"redis://127.0.0.1:{redis.connection_pool.connection_kwargs['port']}/0"
    spark_lake.settings = Settings(home=spark_lake.settings.home, redis_url=redis_url)
    door = Door(spark_lake, tmp_path / "ring")
    spark_lake.write(
        Stream.XRAY_RAW,
        [
            door.raw(1, gone, readings(("humidity", 4, "%"))),
            door.raw(2, STAYS, readings(("humidity", 5, "%"))),
            door.refused(3, b"x", gone),
            door.refused(6, b"x", STAYS, gone, digest="a"),
            door.refused(7, b"x", STAYS),
            door.refused(8, another_place, STAYS, digest="b"),
            door.refused(9, gzip.compress(another_place), digest="c"),
        ],
    )
    spark_lake.write(Stream.XRAY_STATUS, [door.status(4, gone, "online"), door.status(5, STAYS, "online")])
    spark_lake.ingest()

    done = erase(spark_lake.catalog, spark_lake.settings, gone, why="asked for", now=at(NOW_MS), wait_s=0, seal=lambda _: True)

    assert done.found == []
    assert (done.messages, done.segments) == (4 + in_sealed, 2)
    assert [done.rows.get(table.name) for table in (*SIGNAL_TABLES, QUARANTINE)] == [1, 1, 1, 2 + in_sealed]
    assert spark_lake.rows(QUARANTINE, "seq") == [seq_at(7), seq_at(8), seq_at(9)][: 3 - in_sealed]
    assert spark_lake.rows(XRAY_RAW, "seq") == spark_lake.rows(XRAY_PROCESSED, "seq") == [seq_at(2)]
    assert spark_lake.rows(XRAY_STATUS, "device_id") == [STAYS]
    (kept,) = spark_lake.rows(XRAY_PROCESSED, "readings")
    assert [reading["value"] for reading in kept] == [5]
    assert check(spark_lake.catalog, spark_lake.settings, now=at(NOW_MS)).agree
