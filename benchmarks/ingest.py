"""Ingest of a trigger archive: against the same job in bare Spark to Parquet, and where scale might hurt.

`python -m benchmarks.ingest [--case plain|judged|many-segments|one-big-trigger|grown|all] [--rows 10000000]`. Rows are entries:
one for each VIN of each trigger. Ratios are by the wall clock and by CPU time of all processes, which holds on a busy machine
too.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from benchmarks.archives import Shape, bare_spark, write_archive
from benchmarks.audit import PAYLOADS
from benchmarks.machine import Cost, Row, cost_of, report
from manifold.archive.store import Archive
from manifold.contracts.tables import IDS, SEGMENTS
from manifold.lake.catalog import open_catalog
from manifold.settings import Settings
from pipelines.ingest.audit import audit_run
from pipelines.ingest.planning import plan
from pipelines.ingest.publish import publish
from pipelines.ingest.run import Run
from pipelines.ingest.write import ingest, written_result
from pipelines.spark.session import session
from tests.support.lake_rows import append_payloads

ROWS = 10_000_000
VINS_PER_TRIGGER, TRIGGERS_PER_SEGMENT = 5000, 100
ROWS_A_SMALL_SEGMENT, BIG_TRIGGERS_PART, GROWN, HOURS_SEGMENTS = 1000, 10, 50, 120
AIM, GROWN_AIM, JUDGED_AIM, AUDIT_AIM = 0.75, 1.15, 0.35, 1.0
ROUNDS = 2


def ordinary(rows: int) -> Shape:
    """Triggers of 5,000 VINs, a hundred in a segment."""
    return Shape(max(1, rows // VINS_PER_TRIGGER), VINS_PER_TRIGGER, TRIGGERS_PER_SEGMENT)


def whole_run(spark: SparkSession, settings: Settings, archive: Path, run_id: str, count: int) -> None:
    """What `manifold ingest` does with triggers, but for the audit."""
    catalog = open_catalog(settings)
    of_archive = settings.model_copy(update={"archive_url": f"file://{archive}"})
    done = ingest(Run(spark, catalog, of_archive, run_id, datetime.now(UTC)))
    publish(catalog, run_id)
    assert done.written[IDS.name] == count, done


@contextmanager
def warm(folder: Path, shape: Shape | None = None) -> Iterator[tuple[SparkSession, Settings]]:
    """Spark over a new lake, after a small run of everything that is measured."""
    settings = Settings(home=folder / "home", spark_driver_memory="4g")
    archive = folder / "warm"
    count = write_archive(archive, shape or ordinary(VINS_PER_TRIGGER * TRIGGERS_PER_SEGMENT * 4), day=0)
    with session(settings, "bench") as spark:
        bare_spark(spark, archive, folder / "warm-spark")
        whole_run(spark, settings, archive, "warm", count)
        yield spark, settings


def plain(folder: Path, rows: int) -> list[Row]:
    """Each on the same archives in turn, so that what else the machine does falls on all."""
    bare = ours = Cost()
    with warm(folder) as (spark, settings):
        for day in range(1, ROUNDS + 1):
            archive = folder / f"archive-{day}"
            count = write_archive(archive, ordinary(rows), day=day)
            bare += cost_of(bare_spark, spark, archive, folder / f"spark-{day}")
            ours += cost_of(whole_run, spark, settings, archive, f"day_{day}", count)
    count *= ROUNDS
    return [
        _speed("bare Spark to Parquet", count, bare, bare),
        _speed("ingest and publish", count, ours, bare, AIM),
    ]


def judged(folder: Path, rows: int) -> list[Row]:
    """A whole run, stage by stage, beside the same job in bare Spark; the audit beside the write of the rows that it judges."""
    bare = wrote = audited = published = Cost()
    with warm(folder) as (spark, settings):
        append_payloads(open_catalog(settings), PAYLOADS, at=datetime.now(UTC))
        whole_audit(spark, settings, folder / "warm-2", "warm_2", write_archive(folder / "warm-2", ordinary(rows // 25), day=9))
        for day in range(1, ROUNDS + 1):
            archive = folder / f"archive-{day}"
            count = write_archive(archive, ordinary(rows), day=day)
            bare += cost_of(bare_spark, spark, archive, folder / f"spark-{day}")
            costs = whole_audit(spark, settings, archive, f"day_{day}", count)
            wrote, audited, published = wrote + costs[0], audited + costs[1], published + costs[2]
    ratio, cpu = audited.wall_s / wrote.wall_s, audited.cpu_s / wrote.cpu_s
    count *= ROUNDS
    return [
        _speed("bare Spark to Parquet", count, bare, bare),
        _speed("write, audit and publish", count, wrote + audited + published, bare, JUDGED_AIM),
        Row("write", f"{wrote.wall_s / ROUNDS:.1f} s", "1.00", cpu="1.00"),
        Row("audit", f"{audited.wall_s / ROUNDS:.1f} s", f"{ratio:.2f}", f"≤ {AUDIT_AIM}", ratio <= AUDIT_AIM, f"{cpu:.2f}"),
    ]


def whole_audit(spark: SparkSession, settings: Settings, archive: Path, run_id: str, count: int) -> tuple[Cost, Cost, Cost]:
    """What writing, judging and publishing a run cost."""
    catalog = open_catalog(settings)
    of_archive = settings.model_copy(update={"archive_url": f"file://{archive}"})
    run = Run(spark, catalog, of_archive, run_id, datetime.now(UTC))
    wrote = cost_of(ingest, run)
    audited = cost_of(audit_run, run)
    published = cost_of(publish, catalog, run_id)
    assert written_result(catalog, run_id).written[IDS.name] == count
    return wrote, audited, published


def many_segments(folder: Path, rows: int) -> list[Row]:
    """The same entries in 10,000 segments and in a few, and what planning alone takes."""
    segments = max(8, rows // ROWS_A_SMALL_SEGMENT)
    small = Shape(segments * 5, ROWS_A_SMALL_SEGMENT // 5, 5)
    few = Shape(small.triggers, small.vins, small.triggers // 8)
    with warm(folder) as (spark, settings):
        write_archive(folder / "few", few, day=1)
        write_archive(folder / "small", small, day=2)
        whole = cost_of(whole_run, spark, settings, folder / "few", "few", few.rows)
        archive = Archive(f"file://{folder}/small")
        planned = cost_of(plan, open_catalog(settings), archive, None)
        many = cost_of(whole_run, spark, settings, folder / "small", "small", small.rows)
        known = cost_of(plan, open_catalog(settings), archive, None)
    return [
        _speed("in 8 segments", few.rows, whole, whole),
        _speed(f"in {segments:,} segments", small.rows, many, whole),
        Row("planning of them, all new", f"{planned.wall_s:.1f} s", cpu=f"{planned.cpu_s:.1f} s"),
        Row("planning when all are known", f"{known.wall_s:.1f} s", cpu=f"{known.cpu_s:.1f} s"),
    ]


def one_big_trigger(folder: Path, rows: int) -> list[Row]:
    """A batch for a million VINs, a tenth of the rows, beside the same VINs in batches of 5,000."""
    vins = rows // BIG_TRIGGERS_PART
    with warm(folder) as (spark, settings):
        count = write_archive(folder / "ordinary", ordinary(vins), day=1)
        write_archive(folder / "big", Shape(1, vins, 1), day=2)
        usual = cost_of(whole_run, spark, settings, folder / "ordinary", "ordinary", count)
        once = cost_of(whole_run, spark, settings, folder / "big", "big", vins)
    return [
        _speed(f"{count:,} entries in ordinary triggers", count, usual, usual),
        _speed(f"{vins:,} entries in one trigger", vins, once, usual),
    ]


def grown(folder: Path, rows: int) -> list[Row]:
    """The same new hour into a lake with one hour, and into one that has grown 50-fold: rows, files, snapshots and segments."""
    hour = Shape(HOURS_SEGMENTS, max(1, rows // GROWN // HOURS_SEGMENTS), 1)
    young = old = Cost()
    with warm(folder, hour) as (spark, settings):
        for day in range(1, 2 * ROUNDS + 1):
            write_archive(folder / f"hour-{day}", hour, day=day)
        for day in range(1, ROUNDS + 1):
            young += cost_of(whole_run, spark, settings, folder / f"hour-{day}", f"young_{day}", hour.rows)
        _grow(spark, settings, hour.rows, GROWN)
        for day in range(ROUNDS + 1, 2 * ROUNDS + 1):
            old += cost_of(whole_run, spark, settings, folder / f"hour-{day}", f"old_{day}", hour.rows)
    ratio, cpu = old.wall_s / young.wall_s, old.cpu_s / young.cpu_s
    return [
        Row(f"an hour of {hour.rows:,} entries, new lake", f"{young.wall_s / ROUNDS:.1f} s", "1.00", cpu="1.00"),
        Row(
            f"grown {GROWN}-fold",
            f"{old.wall_s / ROUNDS:.1f} s",
            f"{ratio:.2f}",
            f"≤ {GROWN_AIM}",
            ratio <= GROWN_AIM,
            f"{cpu:.2f}",
        ),
    ]


def _grow(spark: SparkSession, settings: Settings, rows: int, times: int) -> None:
    """As many hours more: entries and segments, each hour in a commit of its own as runs make them, on days before the first."""
    name = f"{settings.catalog_name}.{IDS.identifier}"
    hour = spark.read.table(name).limit(rows).persist()
    segments = spark.read.table(f"{settings.catalog_name}.{SEGMENTS.identifier}").limit(HOURS_SEGMENTS).persist()
    for number in range(1, times + 1):
        earlier = sf.make_interval(days=sf.lit(number))
        hour.withColumn("ts", sf.col("ts") - earlier).writeTo(name).option("fanout-enabled", "true").append()
        renamed = segments.withColumn("path", sf.concat(sf.lit(f"grown-{number}/"), sf.col("path")))
        gone = renamed.withColumn("first_seq", sf.lit(number).cast("bigint")).withColumn(
            "last_seq", sf.lit(number).cast("bigint")
        )
        gone.writeTo(f"{settings.catalog_name}.{SEGMENTS.identifier}").append()
    hour.unpersist()
    segments.unpersist()


def _speed(what: str, rows: int, cost: Cost, limit: Cost, aim: float | None = None) -> Row:
    ratio, cpu = limit.wall_s / cost.wall_s, limit.cpu_s / cost.cpu_s
    met = None if aim is None else ratio >= aim
    return Row(what, f"{rows / cost.wall_s:,.0f} rows/s", f"{ratio:.2f}", "" if aim is None else f"≥ {aim}", met, f"{cpu:.2f}")


CASES: dict[str, Callable[[Path, int], list[Row]]] = {
    "plain": plain,
    "judged": judged,
    "many-segments": many_segments,
    "one-big-trigger": one_big_trigger,
    "grown": grown,
}


def run(case: str = "plain", rows: int = ROWS) -> list[Row]:
    """Measure in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="manifold-bench-") as folder:
        return CASES[case](Path(folder), rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=[*CASES, "all"], default="plain")
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args()
    for case in CASES if options.case == "all" else (options.case,):
        report(f"ingest-{case}" if case != "plain" else "ingest", f"{case}, {options.rows:,} entries", run(case, options.rows))
