"""Removes unneeded files: old snapshots, orphans in the folders of tables, old segments, old refused messages.

Each step is complete in itself: a process that dies in one has removed less, and nothing that is needed.
"""

import re
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath

import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf

from manifold.archive.segment import Segment
from manifold.archive.store import Archive
from manifold.contracts.tables import QUARANTINE, SEGMENTS, Table
from manifold.lake.catalog import tables_of
from manifold.settings import Settings
from pipelines.ingest.lease import check_lease
from pipelines.ingest.ledger import ledger_of
from pipelines.maintenance.garbage_days import carry_over
from pipelines.maintenance.garbage_plan import ArchivedSegment, old_segments
from pipelines.maintenance.garbage_run import SAMPLE_SIZE, Removal
from pipelines.maintenance.snapshots import cut_of, needed_runs, old_snapshots

_NODE = re.compile(r"\d+-(\d+)")
FILE = "file://"
ON_DISK = ("file:", "/")
FOLDER = "/dt="

log = structlog.get_logger(__name__)


def drop_refused(spark: SparkSession, settings: Settings, *, now: datetime, dry_run: bool) -> Removal:
    """Remove whole days of `quarantine` past its retention."""
    name = f"{settings.catalog_name}.{QUARANTINE.identifier}"
    cut = now - timedelta(days=settings.quarantine_retention_days)
    midnight = cut.replace(hour=0, minute=0, second=0, microsecond=0)
    old = spark.table(name).where(sf.col("received_at") < sf.lit(midnight))
    if not (count := old.count()):
        return Removal()
    removed = Removal(count, [str(row["seq"]) for row in old.select("seq").orderBy("seq").limit(SAMPLE_SIZE).collect()])
    if not dry_run:
        spark.sql(f"DELETE FROM {name} WHERE received_at < TIMESTAMP '{midnight:%Y-%m-%d} 00:00:00+00:00'")  # noqa: S608  # ours
    return removed


def expire_snapshots(
    spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool
) -> dict[str, Removal]:
    """Expire old snapshots of every table, with the files that only they reference."""
    removed: dict[str, Removal] = {}
    if not dry_run:
        carry_over(catalog)
    # The ledger first: a run whose base there is gone can no longer be published, so nothing refers to what is expired next.
    for table in sorted(tables_of(catalog), key=lambda table: table is not SEGMENTS):
        loaded, needed = catalog.load_table(table.identifier), needed_runs(catalog)
        old = sorted(old_snapshots(loaded, needed, cut_of(loaded, settings, now)))
        removed[table.name] = Removal(len(old), [str(snapshot_id) for snapshot_id in old[:SAMPLE_SIZE]])
        if old and not dry_run:
            check_lease(catalog)
            # Exactly these and none by age: a snapshot that Iceberg considers old may be the base of a run.
            named = f"snapshot_ids => array({', '.join(map(str, old))}), older_than => TIMESTAMP '1970-01-01 00:00:00+00:00'"
            _call(spark, settings, table, "expire_snapshots", f"{named}, stream_results => true")
    return removed


def remove_orphans(
    spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool
) -> dict[str, Removal]:
    """Remove files in the tables' folders that no snapshot references; they are listed first."""
    older_than = f"older_than => TIMESTAMP '{now - timedelta(days=settings.orphan_days):%Y-%m-%d %H:%M:%S}+00:00'"
    removed: dict[str, Removal] = {}
    for table in tables_of(catalog):
        arguments = older_than
        # Iceberg lists folders through Hadoop, which does not know s3://, unless it lists by prefix, through the table's FileIO.
        if not catalog.load_table(table.identifier).location().startswith(ON_DISK):
            arguments += ", prefix_listing => true"
        found = [row["orphan_file_location"] for row in _rows(spark, settings, table, f"{arguments}, dry_run => true")]
        removed[table.name] = Removal(len(found), sorted(found)[:SAMPLE_SIZE])
        if found and not dry_run:
            check_lease(catalog)
            log.info("removing orphan files", table=table.name, files=len(found), sample=removed[table.name].sample)
            _rows(spark, settings, table, arguments)
    return removed


def _rows(spark: SparkSession, settings: Settings, table: Table, arguments: str) -> list[Row]:
    return _call(spark, settings, table, "remove_orphan_files", arguments)


def _call(spark: SparkSession, settings: Settings, table: Table, procedure: str, arguments: str) -> list[Row]:
    name = f"{settings.catalog_name}.{table.identifier}"
    return spark.sql(f"CALL {settings.catalog_name}.system.{procedure}(table => '{name}', {arguments})").collect()


def drop_segments(catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool) -> Removal:
    """Remove segments past the archive's retention whose messages are in the lake. Files refused as a whole stay."""
    archive = Archive(settings.archive, settings.s3)
    cut = now - timedelta(days=settings.archive_retention_days)
    ledger, newest, removed = ledger_of(catalog), _Newest(archive), Removal(bytes=0)
    for group in archive.walk():
        segments = {segment.path: segment for segment in group}
        aged = [_archived_segment(segment) for segment in group if segment.age[0] < cut]
        if not aged and any(FOLDER in path for path in segments):
            break  # all further groups are younger
        rows = ledger.rows((segment.path for segment in aged), "refused_because").to_pylist()
        ingested = {row["path"] for row in rows if row["refused_because"] is None}
        last = {newest.of(writer) for writer in {(each.stream, each.node) for each in aged}}
        old = old_segments({*aged, *last}, ingested, cut=cut)
        if old and not dry_run:
            check_lease(catalog)  # another job with the lease, such as a rollback, may need the segments
            for segment in old:
                archive.remove(segment.path)
            _remove_empty_folders(archive, old)
        sample = [*removed.sample, *(each.path for each in old)][:SAMPLE_SIZE]
        removed = Removal(removed.count + len(old), sample, (removed.bytes or 0) + sum(segments[each.path].size for each in old))
    return removed


class _Newest:
    """Each recorder's newest segment per stream; the archive is listed from its end, only as far as needed."""

    def __init__(self, archive: Archive) -> None:
        self._groups = archive.walk(newest_first=True)
        self._found: dict[tuple[str, str], ArchivedSegment] = {}
        self._settled: set[tuple[str, str]] = set()

    def of(self, writer: tuple[str, str]) -> ArchivedSegment:
        """The newest segment of this writer (stream and recorder), which must have one."""
        while writer not in self._settled and (group := next(self._groups, None)) is not None:
            for each in map(_archived_segment, group):
                known = self._found.setdefault((each.stream, each.node), each)
                if each.began_at > known.began_at:
                    self._found[each.stream, each.node] = each
                if FOLDER in each.path:  # segments without a day are listed first, whenever they began
                    self._settled.add((each.stream, each.node))
        return self._found[writer]


def _archived_segment(segment: Segment) -> ArchivedSegment:
    name = _NODE.match(PurePosixPath(segment.path).name)
    return ArchivedSegment(segment.path, segment.stream.value, name[1] if name else "", segment.began_at or segment.modified_at)


def _remove_empty_folders(archive: Archive, gone: list[ArchivedSegment]) -> None:
    """Remove empty hour and day folders on a disk; `rmdir` refuses if a file was added in the meantime."""
    if not archive.url.startswith(FILE):
        return
    root = Path(archive.url.removeprefix(FILE))
    folders = {root / parent for segment in gone for parent in list(PurePosixPath(segment.path).parents)[:-2]}
    for folder in sorted(folders, key=lambda f: len(f.parts), reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            try:
                folder.rmdir()
            except OSError as exc:
                log.info("empty archive folder kept: it is in use again", folder=str(folder), reason=str(exc))
