"""What a run discovers before it starts anything."""

from dataclasses import replace

from redis import Redis

from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.lake.catalog import ensure_tables
from manifold.settings import Settings
from pipelines.ingest.discover import discover
from pipelines.spark.conf import C1_COMPILER, MAX_SMALL_RUN_BYTES, java_options
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import at, trigger
from tests.support.servers import Server, free_port


def test_only_stages_with_work_follow(spark_lake: SparkLake, redis_server: Server) -> None:
    with Redis(port=redis_server.port) as redis:
        redis.flushall()
        redis.set(keys.LOADED, 1)
    here = replace(spark_lake, settings=Settings(home=spark_lake.settings.home, redis_port=redis_server.port))
    ensure_tables(here.catalog)
    assert discover(here.catalog, here.settings, now=at(0)).next == []
    here.write(Stream.TRIGGER, [trigger(1, ["V1"])])
    found = discover(here.catalog, here.settings, now=at(0))
    assert (found.segments, found.next, found.java_options) == (1, ["ingest"], C1_COMPILER)
    assert discover(here.catalog, here.settings, now=at(0), dry_run=True).next == []
    here.ingest_plainly()
    assert discover(here.catalog, here.settings, now=at(0)).segments == 0
    with Redis(port=redis_server.port) as redis:
        redis.flushall()
    assert discover(here.catalog, here.settings, now=at(0)).next == ["populate"]  # it then reports that a rebuild is needed


def test_populate_runs_if_redis_does_not_answer(spark_lake: SparkLake) -> None:
    ensure_tables(spark_lake.catalog)
    away = Settings(home=spark_lake.settings.home, redis_port=free_port())
    assert discover(spark_lake.catalog, away, now=at(0)).next == ["populate"]


def test_a_large_job_gets_the_optimising_compiler() -> None:
    assert java_options(MAX_SMALL_RUN_BYTES) == C1_COMPILER
    assert java_options(MAX_SMALL_RUN_BYTES + 1) == ""
