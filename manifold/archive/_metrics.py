"""Metrics of an ingress service's journal and segments, for Prometheus."""

from prometheus_client import Counter, Gauge, Histogram

_FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

FSYNC_SECONDS = Histogram("manifold_journal_fsync_seconds", "one group of messages: written and on disk", buckets=_FAST)
JOURNAL_WRITABLE = Gauge("manifold_journal_writable", "1 while the journal can be written")
JOURNAL_FILES = Gauge("manifold_journal_files", "journal files that are not in the archive yet")
ARCHIVE_WRITABLE = Gauge("manifold_archive_writable", "1 while segments can be written")
LEASE_RENEWED = Gauge("manifold_recorder_lease_renewed", "1 while archive or Redis hears that this recorder keeps its number")
SEGMENTS = Counter("manifold_archive_segments", "segments written", ["stream"])

JOURNAL_WRITABLE.set(1)
ARCHIVE_WRITABLE.set(1)
