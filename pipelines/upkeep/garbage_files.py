"""Files that nothing needs any more: old snapshots, orphans of the tables' folders, old segments, old refused messages.

Each step is complete in itself: whoever dies in one has removed less, and nothing that is needed.
"""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf

from contracts.settings import Settings
from contracts.tables import QUARANTINE, SEGMENTS, TABLES, Table
from pipelines.archive.segments import Archive, Segment
from pipelines.ingest.branches import PINS, RUN_ID, ancestors, properties_of
from pipelines.upkeep.garbage_plan import Recorded, Version, old_segments, old_versions
from pipelines.upkeep.garbage_run import SAMPLE, Gone

_NODE = re.compile(r"\d+-(\d+)")
FILE = "file://"

log = structlog.get_logger(__name__)


def drop_refused(spark: SparkSession, settings: Settings, *, now: datetime, dry_run: bool) -> Gone:
    """Whole days of `quarantine` that are past its retention."""
    name = f"{settings.catalog_name}.{QUARANTINE.identifier}"
    cut = now - timedelta(days=settings.quarantine_retention_days)
    midnight = cut.replace(hour=0, minute=0, second=0, microsecond=0)
    old = spark.table(name).where(sf.col("received_at") < sf.lit(midnight))
    gone = Gone(old.count(), [str(row["seq"]) for row in old.select("seq").orderBy("seq").limit(SAMPLE).collect()])
    if gone.count and not dry_run:
        spark.sql(f"DELETE FROM {name} WHERE received_at < TIMESTAMP '{midnight:%Y-%m-%d} 00:00:00+00:00'")  # noqa: S608  # ours
    return gone


def expire_snapshots(
    spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool
) -> dict[str, Gone]:
    """Old snapshots of every table, with the files that only they know."""
    cut = now - timedelta(days=settings.snapshot_retention_days)
    newest_run = _newest_run(catalog.load_table(SEGMENTS.identifier))
    gone: dict[str, Gone] = {}
    for table in TABLES:
        old = sorted(_old_snapshots(catalog.load_table(table.identifier), newest_run, cut))
        gone[table.name] = Gone(len(old), [str(snapshot_id) for snapshot_id in old[:SAMPLE]])
        if old and not dry_run:
            # Those named, and none by age alone: what Iceberg itself would take for old may be what a run began from.
            named = f"snapshot_ids => array({', '.join(map(str, old))}), older_than => TIMESTAMP '1970-01-01 00:00:00+00:00'"
            _call(spark, settings, table, "expire_snapshots", f"{named}, stream_results => true")
    return gone


def _newest_run(segments: IcebergTable) -> str | None:
    said = (properties_of(snapshot) for snapshot in ancestors(segments))
    return next((properties[RUN_ID] for properties in said if PINS in properties), None)


def _old_snapshots(table: IcebergTable, newest_run: str | None, cut: datetime) -> set[int]:
    versions = [
        Version(s.snapshot_id, s.parent_snapshot_id, datetime.fromtimestamp(s.timestamp_ms / 1000, UTC))
        for s in table.snapshots()
    ]
    main = table.current_snapshot()
    if main is None:
        return set()
    keep = {s.snapshot_id for s in table.snapshots() if newest_run and properties_of(s).get(RUN_ID) == newest_run}
    heads = {ref.snapshot_id for ref in table.refs().values()}
    return old_versions(versions, heads, main.snapshot_id, keep=keep, cut=cut)


def remove_orphans(spark: SparkSession, settings: Settings, *, now: datetime, dry_run: bool) -> dict[str, Gone]:
    """Files in the tables' folders that no snapshot knows; listed first, then removed."""
    older_than = f"older_than => TIMESTAMP '{now - timedelta(days=settings.orphan_days):%Y-%m-%d %H:%M:%S}+00:00'"
    gone: dict[str, Gone] = {}
    for table in TABLES:
        found = [row["orphan_file_location"] for row in _rows(spark, settings, table, f"{older_than}, dry_run => true")]
        gone[table.name] = Gone(len(found), sorted(found)[:SAMPLE])
        if found and not dry_run:
            log.info("removing files that no snapshot knows", table=table.name, files=len(found), sample=gone[table.name].sample)
            _rows(spark, settings, table, older_than)
    return gone


def _rows(spark: SparkSession, settings: Settings, table: Table, arguments: str) -> list[Row]:
    return _call(spark, settings, table, "remove_orphan_files", arguments)


def _call(spark: SparkSession, settings: Settings, table: Table, procedure: str, arguments: str) -> list[Row]:
    name = f"{settings.catalog_name}.{table.identifier}"
    return spark.sql(f"CALL {settings.catalog_name}.system.{procedure}(table => '{name}', {arguments})").collect()


def drop_segments(catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool) -> Gone:
    """Segments past the archive's retention whose messages are in the lake. What was refused as a whole file stays."""
    archive = Archive(settings.archive, settings.s3)
    rows = catalog.load_table(SEGMENTS.identifier).scan(selected_fields=("path", "refused_because")).to_arrow().to_pylist()
    ingested = {row["path"] for row in rows if row["refused_because"] is None}
    segments = {segment.path: segment for segment in archive.segments()}
    cut = now - timedelta(days=settings.archive_retention_days)
    old = old_segments((_recorded(segment) for segment in segments.values()), ingested, cut=cut)
    if not dry_run:
        for segment in old:
            archive.remove(segment.path)
        _remove_empty_folders(archive, old)
    return Gone(len(old), [s.path for s in old[:SAMPLE]], sum(segments[s.path].size for s in old))


def _recorded(segment: Segment) -> Recorded:
    name = _NODE.match(PurePosixPath(segment.path).name)
    return Recorded(segment.path, segment.stream.value, name[1] if name else "", segment.began_at or segment.modified_at)


def _remove_empty_folders(archive: Archive, gone: list[Recorded]) -> None:
    """On a disk, an hour's and a day's folder; `rmdir` refuses where somebody has put a file in meanwhile."""
    if not archive.url.startswith(FILE):
        return
    root = Path(archive.url.removeprefix(FILE))
    folders = {root / parent for segment in gone for parent in list(PurePosixPath(segment.path).parents)[:-2]}
    for folder in sorted(folders, key=lambda f: len(f.parts), reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            try:
                folder.rmdir()
            except OSError as exc:
                log.info("folder is in use again", folder=str(folder), reason=str(exc))
