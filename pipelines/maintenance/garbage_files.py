"""Removes unneeded files: old snapshots, orphans in the folders of tables, old segments, old refused messages.

A step may be interrupted at any point: then only a part of the unneeded files is removed, and no needed file.
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
from manifold.contracts.tables import QUARANTINE, Table
from manifold.lake.catalog import tables_of
from manifold.settings import Settings
from pipelines.ingest.lease import check_lease
from pipelines.ingest.ledger import ledger_of
from pipelines.maintenance.garbage_days import carry_over_closed_days
from pipelines.maintenance.garbage_plan import ArchivedSegment, old_segments
from pipelines.maintenance.garbage_run import SAMPLE_SIZE, Removal
from pipelines.maintenance.snapshots import ledger_first, old_snapshots, snapshot_cutoff, unfinished_run_ids

_RECORDER_IN_NAME = re.compile(r"\d+-(\d+)")  # the number of the recorder, in the name of a segment's file
FILE_SCHEME = "file://"
PREFIXES_ON_DISK = ("file:", "/")  # of the locations of tables on a disk
DAY_FOLDER = "/dt="

log = structlog.get_logger(__name__)


def drop_refused_messages(spark: SparkSession, settings: Settings, *, now: datetime, dry_run: bool) -> Removal:
    """Remove refused messages past the retention of `quarantine`, by whole days. `dry_run` only counts."""
    name = f"{settings.catalog_name}.{QUARANTINE.identifier}"
    cutoff = now - timedelta(days=settings.quarantine_retention_days)
    midnight = cutoff.replace(hour=0, minute=0, second=0, microsecond=0)
    old = spark.table(name).where(sf.col("received_at") < sf.lit(midnight))
    count = old.count()
    if not count:
        return Removal()
    sample = old.select("seq").orderBy("seq").limit(SAMPLE_SIZE).collect()
    if not dry_run:
        spark.sql(f"DELETE FROM {name} WHERE received_at < TIMESTAMP '{midnight:%Y-%m-%d} 00:00:00+00:00'")  # noqa: S608  # ours
    return Removal(count, [str(row["seq"]) for row in sample])


def expire_snapshots(
    spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool
) -> dict[str, Removal]:
    """Expire old snapshots of every table, and remove the files that only these snapshots reference. `dry_run` only counts."""
    removals: dict[str, Removal] = {}
    if not dry_run:
        carry_over_closed_days(catalog)  # first, because it needs the snapshots that are expired below
    # Without the ledger's snapshot on which it began, a run cannot be published, so it no longer needs those of other tables.
    for table in ledger_first(tables_of(catalog)):
        loaded = catalog.load_table(table.identifier)
        old = sorted(old_snapshots(loaded, unfinished_run_ids(catalog), snapshot_cutoff(loaded, settings, now)))
        removals[table.name] = Removal(len(old), [str(snapshot_id) for snapshot_id in old[:SAMPLE_SIZE]])
        if old and not dry_run:
            check_lease(catalog)
            # The ids name the snapshots to expire. `older_than` is so early that Iceberg expires no other snapshot by its age:
            # such a snapshot may be the base of a run.
            ids = ", ".join(map(str, old))
            arguments = (
                f"snapshot_ids => array({ids}), older_than => TIMESTAMP '1970-01-01 00:00:00+00:00', stream_results => true"
            )
            _call(spark, settings, table, "expire_snapshots", arguments)
    return removals


def remove_orphans(
    spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool
) -> dict[str, Removal]:
    """Remove files older than `orphan_days` in the tables' folders that no snapshot references. `dry_run` only lists them."""
    older_than = f"older_than => TIMESTAMP '{now - timedelta(days=settings.orphan_days):%Y-%m-%d %H:%M:%S}+00:00'"
    removals: dict[str, Removal] = {}
    for table in tables_of(catalog):
        arguments = older_than
        # By default, Iceberg lists folders with Hadoop, which does not know s3://. Listing by prefix uses the table's FileIO.
        if not catalog.load_table(table.identifier).location().startswith(PREFIXES_ON_DISK):
            arguments += ", prefix_listing => true"
        rows = _call(spark, settings, table, "remove_orphan_files", f"{arguments}, dry_run => true")
        orphans = sorted(row["orphan_file_location"] for row in rows)
        removals[table.name] = Removal(len(orphans), orphans[:SAMPLE_SIZE])
        if orphans and not dry_run:
            check_lease(catalog)
            log.info("removing orphan files", table=table.name, files=len(orphans), sample=orphans[:SAMPLE_SIZE])
            _call(spark, settings, table, "remove_orphan_files", arguments)
    return removals


def _call(spark: SparkSession, settings: Settings, table: Table, procedure: str, arguments: str) -> list[Row]:
    """Call an Iceberg procedure for the table; return its rows."""
    name = f"{settings.catalog_name}.{table.identifier}"
    return spark.sql(f"CALL {settings.catalog_name}.system.{procedure}(table => '{name}', {arguments})").collect()


def drop_segments(catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool) -> Removal:
    """Remove segments past the archive's retention whose messages are in the lake. `dry_run` only counts.

    Files that were refused as a whole stay. So does the newest segment of each recorder and stream (`old_segments`).
    """
    archive = Archive(settings.archive, settings.s3)
    cutoff = now - timedelta(days=settings.archive_retention_days)
    ledger = ledger_of(catalog)
    newest_segments = _NewestSegments(archive)
    count = 0
    size = 0
    sample: list[str] = []
    for group in archive.walk():
        size_by_path = {segment.path: segment.size for segment in group}
        past_retention = {_archived_segment(segment) for segment in group if segment.age[0] < cutoff}
        # The first group has the segments outside of day folders, of any age. The next groups follow in the order of days.
        is_sorted_by_day = any(DAY_FOLDER in path for path in size_by_path)
        if is_sorted_by_day and not past_retention:
            break  # the segments of all further groups are younger
        ledger_rows = ledger.rows((segment.path for segment in past_retention), "refused_because").to_pylist()
        ingested = {row["path"] for row in ledger_rows if row["refused_because"] is None}
        writers = {(segment.stream, segment.node) for segment in past_retention}
        # `old_segments` keeps the newest segment of each writer, so it must get these segments, whichever group has them.
        newest = {newest_segments.of(writer) for writer in writers}
        old = old_segments(past_retention | newest, ingested, cutoff=cutoff)
        if old and not dry_run:
            check_lease(catalog)  # if the lease is lost, another job, such as a rollback, may need the segments
            for segment in old:
                archive.remove(segment.path)
            _remove_empty_folders(archive, old)
        count += len(old)
        size += sum(size_by_path[segment.path] for segment in old)
        sample = (sample + [segment.path for segment in old])[:SAMPLE_SIZE]
    return Removal(count, sample, size)


class _NewestSegments:
    """Finds the newest segment of each writer (stream and recorder). It lists the archive from its end, as far as needed."""

    def __init__(self, archive: Archive) -> None:
        self._groups = archive.walk(newest_first=True)
        self._newest: dict[tuple[str, str], ArchivedSegment] = {}
        self._complete: set[tuple[str, str]] = set()  # writers whose newest segment has been listed

    def of(self, writer: tuple[str, str]) -> ArchivedSegment:
        """The newest segment of this writer (stream and recorder), which must have one."""
        while writer not in self._complete:
            group = next(self._groups, None)
            if group is None:  # the whole archive has been listed
                break
            for segment in map(_archived_segment, group):
                segment_writer = (segment.stream, segment.node)
                newest = self._newest.setdefault(segment_writer, segment)
                if segment.began_at > newest.began_at:
                    self._newest[segment_writer] = segment
                # Segments outside day folders are listed first, whatever their age. The other groups follow, newest first.
                if DAY_FOLDER in segment.path:
                    self._complete.add(segment_writer)
        return self._newest[writer]


def _archived_segment(segment: Segment) -> ArchivedSegment:
    """What `old_segments` needs to know of a segment. If its path has no instant, it counts as begun when it was stored."""
    match = _RECORDER_IN_NAME.match(PurePosixPath(segment.path).name)
    recorder = match[1] if match else ""
    return ArchivedSegment(segment.path, segment.stream.value, recorder, segment.began_at or segment.modified_at)


def _remove_empty_folders(archive: Archive, removed: list[ArchivedSegment]) -> None:
    """Remove the hour and day folders of removed segments that are empty, if the archive is on a disk."""
    if not archive.url.startswith(FILE_SCHEME):
        return
    root = Path(archive.url.removeprefix(FILE_SCHEME))
    folders: set[Path] = set()
    for segment in removed:
        parents = PurePosixPath(segment.path).parents  # hour, day, stream, root
        folders.update(root / folder for folder in parents[:-2])  # the last two stay: stream and root
    for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):  # inner folders before outer folders
        if folder.is_dir() and not any(folder.iterdir()):
            try:
                folder.rmdir()  # refuses if a file has been added since
            except OSError as exc:
                log.info("empty archive folder kept: it is in use again", folder=str(folder), reason=str(exc))
