"""A run's sources, and the bounds within which it compares its messages with the tables."""

from datetime import datetime, timedelta

from manifold.archive.parsing import Limits
from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import datetime_of
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.planning import Plan
from pipelines.ingest.reading import Source

MAX_NAMED_DATA_IDS = 1000  # that a filter lists one by one
ONE_DAY = timedelta(days=1)


def source_of(run: Attempt, todo: Plan, stream: Stream) -> Source:
    """The source to read for one stream."""
    limits = Limits(run.settings.max_ids, run.settings.max_data_bytes, run.settings.inline_encoding)
    archive = Archive(run.settings.archive, run.settings.s3)
    return Source(archive, todo.of(stream), todo.skips, todo.problems, limits, todo.nodes, todo.aside)


def bounds_of_refusals(todo: Plan) -> tuple[datetime, datetime] | None:
    """Receive times of the run's outcomes, widened by a day, to prune the files read; None if the outcomes have no seqs."""
    probes = [todo.probes[segment.path] for segment in todo.of(Stream.OUTCOME)]
    seqs = [seq for probe in probes for seq in (probe.first_seq, probe.last_seq) if seq is not None]
    return (datetime_of(min(seqs)) - ONE_DAY, datetime_of(max(seqs)) + ONE_DAY) if seqs else None
