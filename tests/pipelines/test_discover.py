"""What a run discovers before it starts anything, and the audit result that it can reuse."""

from dataclasses import replace

from redis import Redis

from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.lake.catalog import ensure_tables
from manifold.settings import Settings
from pipelines.ingest.audit import audit_run
from pipelines.ingest.audit_result import passed_already
from pipelines.ingest.discover import discover
from pipelines.ingest.publish import publish
from pipelines.ingest.write import ingest
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
    here.ingest()
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


def test_an_audit_result_applies_to_its_attempt_only(spark_lake: SparkLake) -> None:
    def attempt(ms: int) -> None:
        ingest(spark_lake.run("run", ms))

    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1"])])
    attempt(0)
    assert passed_already(spark_lake.catalog, spark_lake.settings, "run") is None
    audit_run(spark_lake.run("run"))
    elsewhere = spark_lake.settings.model_copy(update={"home": spark_lake.settings.home / "of another worker"})
    known = passed_already(spark_lake.catalog, elsewhere, "run")
    assert known is not None
    assert known["warnings"] >= 1
    attempt(60_000)
    assert passed_already(spark_lake.catalog, spark_lake.settings, "run") is None
    publish(spark_lake.catalog, "run")
    assert passed_already(spark_lake.catalog, spark_lake.settings, "run") == {"report": None, "warnings": 0}
