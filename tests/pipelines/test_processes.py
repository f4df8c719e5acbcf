"""Ingest and compaction as processes: killed with files written, overtaken in a commit, everything is in once."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from manifold.contracts.envelope import Stream
from manifold.contracts.tables import DATA, IDS, QUARANTINE, SEGMENTS
from manifold.lake.catalog import ensure_tables
from pipelines.ingest.branches import RUN_ID as RUN
from pipelines.ingest.branches import head_of, properties_of
from pipelines.ingest.lease import TERMS
from pipelines.ingest.publish import publish
from pipelines.maintenance import garbage_files
from pipelines.maintenance.compact import has_work
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import at, data, seq_at, trigger
from tests.pipelines.processes import (
    BOUND_S,
    StageProcess,
    a_stage,
    commits_begun,
    data_files,
    known_files,
    locked,
    waits_to_commit,
)
from tests.support.servers import wait_until

pytestmark = pytest.mark.slow

RUN_ID = "run-1+00:00"
INGEST = ("ingest", "--run-id", RUN_ID, "--no-flush")


@pytest.fixture
def spark_lake(spark_lake: SparkLake) -> SparkLake:
    """A lake with a batch in the archive."""
    ensure_tables(spark_lake.catalog)
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1", "V2"]), trigger(2, ["V1", 7])])
    spark_lake.write(Stream.DATA, [data(3, "d1", b"one"), data(4, "d1", b"one")])
    return spark_lake


@contextmanager
def about_to_commit(spark_lake: SparkLake, ingesting: StageProcess) -> Iterator[None]:
    """Pause the ingest before its first commit to ids during the block: its files are written and the catalog is locked."""

    def has_begun() -> bool:
        assert ingesting.process.poll() is None, ingesting.said()
        return head_of(spark_lake.catalog, IDS, RUN_ID) is not None  # the branch exists before Spark writes

    wait_until(has_begun, within_s=BOUND_S, what=f"a run; log {ingesting.log}")
    with locked(spark_lake.settings):
        head = head_of(spark_lake.catalog, IDS, RUN_ID)
        assert head is not None
        assert RUN not in properties_of(head), "the lock came after the commit"
        waits_to_commit(ingesting, spark_lake.settings, IDS, commits_begun(spark_lake.settings, IDS))
        yield


def test_a_run_killed_before_its_commit_is_repeated_and_its_files_are_collected(
    spark_lake: SparkLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_stage(spark_lake.settings, *INGEST) as ingesting, about_to_commit(spark_lake, ingesting):
        ingesting.kill()
    left = data_files(spark_lake.settings, IDS)
    assert left
    assert known_files(spark_lake.catalog, IDS) == set()

    spark_lake.ingest(RUN_ID)
    assert_all_is_in_once(spark_lake)
    assert data_files(spark_lake.settings, IDS) - known_files(spark_lake.catalog, IDS) == left

    monkeypatch.setattr(garbage_files, "tables_of", lambda _: (IDS,))  # one table is enough
    for file in (spark_lake.settings.home / "lake/warehouse").rglob("*.*"):
        os.utime(file, (0, 0))  # so that no file is too young to remove
    removed = garbage_files.remove_orphans(
        spark_lake.spark, spark_lake.catalog, spark_lake.settings, now=datetime.now(UTC), dry_run=False
    )
    assert data_files(spark_lake.settings, IDS) == known_files(spark_lake.catalog, IDS)
    assert removed[IDS.name].count > len(left), "including the start of its commit"
    assert_all_is_in_once(spark_lake)


def test_concurrent_ingest_and_compaction_both_succeed_with_a_retry(spark_lake: SparkLake) -> None:
    row = {"ts": at(0), "request_id": "r", "seq": seq_at(0), "data_id": "d", "applied": True}
    for vin in ("V7", "V8", "V9"):
        spark_lake.append(IDS, [row | {"vin": vin}])
    assert has_work(
        spark_lake.catalog, spark_lake.settings, now=datetime.now(UTC)
    )  # also changes the sort order, which is a commit

    before = commits_begun(spark_lake.settings, IDS)
    with ExitStack() as running:
        compacting = running.enter_context(a_stage(spark_lake.settings, "compact"))
        wait_until(lambda: has_the_lease(spark_lake, compacting), within_s=BOUND_S, what=f"a lease; log {compacting.log}")
        compacting.signal(signal.SIGSTOP)  # its Spark has not started yet
        ingesting = running.enter_context(a_stage(spark_lake.settings, *INGEST))
        with about_to_commit(spark_lake, ingesting):
            ingesting.signal(signal.SIGSTOP)  # otherwise its wait would time out before the other's Spark starts
            begun = commits_begun(spark_lake.settings, IDS)
            compacting.signal(signal.SIGCONT)
            waits_to_commit(compacting, spark_lake.settings, IDS, begun)
            versions = [file.name.split("-")[0] for file in commits_begun(spark_lake.settings, IDS) - before]
            assert len(versions) > len(set(versions)), "both based on the same state"
            ingesting.signal(signal.SIGCONT)
        assert ingesting.result()["written"][IDS.name] == 2
        compacted = compacting.result()["tables"][IDS.name]
    assert (compacted["rewritten_files"], compacted["failed_files"]) == (3, 0)

    with capture_logs() as logged:
        publish(spark_lake.catalog, RUN_ID)
    assert [entry["table"] for entry in logged if entry["event"].startswith("main was compacted")] == [IDS.name]
    assert_all_is_in_once(spark_lake, "V7", "V8", "V9")


def has_the_lease(spark_lake: SparkLake, compacting: StageProcess) -> bool:
    assert compacting.process.poll() is None, compacting.said()
    return TERMS in spark_lake.catalog.load_table(SEGMENTS.identifier).properties


def assert_all_is_in_once(spark_lake: SparkLake, *more_vins: str) -> None:
    assert spark_lake.rows(IDS, "vin") == ["V1", "V2", *more_vins]
    assert spark_lake.rows(DATA, "data_id") == ["d1"]
    assert spark_lake.seen("times_seen") == [2]
    assert len(spark_lake.rows(QUARANTINE)) == 1
    assert len(spark_lake.rows(SEGMENTS)) == 2
