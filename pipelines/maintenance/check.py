"""Compares archive, ledger and tables, segment by segment: `python -m pipelines check`. No Spark.

The archive is read again with the parsers of ingest, a group of segments at a time. The rows that ingest should have made of
these segments are counted in the tables, all at the same pinned snapshots. A committed run that is not in every table's main yet
is finished first.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

import structlog
from pyiceberg.catalog import Catalog

from manifold.archive.segment import Interval, Segment
from manifold.contracts.tables import SEGMENTS
from manifold.lake.catalog import ensure_tables
from manifold.lake.grouping import grouped
from manifold.settings import Settings
from pipelines.ingest.ledger import Ledger, missing_segments
from pipelines.ingest.publish import main_snapshots
from pipelines.maintenance.check_plan import Disagreement, Finding
from pipelines.maintenance.comparison import Comparison

MESSAGE_BATCH_SIZE = 200_000
MAX_INGEST_DELAY = timedelta(days=1)  # no scheduled run ingests segments that have been in the archive for longer
MAX_FINDINGS = 1000  # listed in the result; all are counted

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check: what was compared, and where archive, ledger and tables disagree."""

    segments: int
    messages: int
    troubles: dict[str, int]  # kind of disagreement → number of findings
    findings: list[Finding] = field(default_factory=list)  # the first MAX_FINDINGS
    repaired: int = 0  # number of segments that were ingested again

    @property
    def agree(self) -> bool:
        """Whether nothing is wrong, or everything was repaired."""
        return not self.troubles

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


def check(catalog: Catalog, settings: Settings, *, now: datetime, interval: Interval | None = None) -> Checked:
    """Compare the archive (segments that began in `interval`) with the ledger, and the ledger with the tables."""
    findings, segments, messages = disagreements(catalog, settings, now=now, interval=interval)
    troubles = Counter(str(finding.trouble) for finding in findings)
    result = Checked(segments, messages, dict(troubles), findings[:MAX_FINDINGS])
    log.info("archive, ledger and tables compared", agree=result.agree, segments=segments, disagreements=result.troubles)
    return result


def disagreements(
    catalog: Catalog, settings: Settings, *, now: datetime, interval: Interval | None = None
) -> tuple[list[Finding], int, int]:
    """Return every disagreement, the number of segments compared, and the number of their messages.

    Only segments that began in `interval` are compared; None means all. Segments that the archive lacks are found only with None.
    """
    ensure_tables(catalog)
    loaded = catalog.load_table(SEGMENTS.identifier)
    ledger = Ledger(loaded)
    comparison = Comparison(catalog, settings, main_snapshots(catalog, loaded), now)
    findings: list[Finding] = []
    compared_segments = 0
    compared_messages = 0
    overdue_since = now - MAX_INGEST_DELAY
    for archived in comparison.archive.walk(interval):
        ledger_rows = ledger.rows((segment.path for segment in archived), "messages", "refused_because").to_pylist()
        row_by_path = {row["path"]: row for row in ledger_rows}
        rows_per_path = Counter(row["path"] for row in ledger_rows)
        for path, count in rows_per_path.items():
            if count > 1:
                findings.append(Finding(path, Disagreement.LISTED_TWICE, expected=1, found=count))
        not_in_ledger = [segment for segment in archived if segment.path not in row_by_path]
        overdue = [segment for segment in not_in_ledger if segment.modified_at < overdue_since]
        findings += [Finding(segment.path, Disagreement.WAITING) for segment in overdue]
        in_ledger = sorted(segment for segment in archived if segment.path in row_by_path)
        for group in _groups(in_ledger, row_by_path):
            findings += comparison.compare(group, row_by_path)
        compared_segments += len(in_ledger)
        compared_messages += sum(row_by_path[segment.path]["messages"] for segment in in_ledger)
    if interval is None:
        # Garbage collection may have removed some segments of the day on which the archive's retention begins. Later days must be
        # complete.
        first_complete_day = (now - timedelta(days=settings.archive_retention_days)).date() + timedelta(days=1)
        missing_paths = missing_segments(ledger, comparison.archive, first_complete_day)
        findings += [Finding(path, Disagreement.GONE) for path in missing_paths]
    return sorted(findings), compared_segments, compared_messages


def _groups(segments: Sequence[Segment], row_by_path: dict[str, dict[str, Any]]) -> Iterator[list[Segment]]:
    """Split the segments, which are sorted by stream, into groups of one stream with at most `MESSAGE_BATCH_SIZE` messages.

    A larger segment is a group by itself.
    """
    for _, segments_of_stream in groupby(segments, lambda segment: segment.stream):
        yield from grouped(segments_of_stream, lambda segment: int(row_by_path[segment.path]["messages"]), MESSAGE_BATCH_SIZE)
