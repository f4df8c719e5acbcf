"""What a run reads, and the tables with which it compares its messages."""

from datetime import datetime, timedelta

from manifold.archive.parsing import Limits
from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import datetime_of
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.planning import Plan
from pipelines.ingest.reading import Source

MAX_NAMED_DATA_IDS = 1000  # that a filter names one by one
ONE_DAY = timedelta(days=1)


def source_of(run: Attempt, todo: Plan, stream: Stream) -> Source:
    """What is to be read of one stream."""
    limits = Limits(run.settings.max_ids, run.settings.max_data_bytes, run.settings.inline_encoding)
    archive = Archive(run.settings.archive, run.settings.s3)
    return Source(archive, todo.of(stream), todo.skips, todo.problems, limits, todo.nodes, todo.aside)


def bounds_of_refusals(todo: Plan) -> tuple[datetime, datetime] | None:
    """When the run's outcomes were received, widely, so that only those days' files are read; None: they have no seqs."""
    probes = [todo.probes[segment.path] for segment in todo.of(Stream.OUTCOME)]
    seqs = [seq for probe in probes for seq in (probe.first_seq, probe.last_seq) if seq is not None]
    return (datetime_of(min(seqs)) - ONE_DAY, datetime_of(max(seqs)) + ONE_DAY) if seqs else None
