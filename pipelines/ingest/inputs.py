"""What a run reads, and the tables with which it compares its messages."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from pyiceberg.catalog import Catalog

from manifold.archive.parsing import Limits
from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import DATA, META, PAYLOAD_INDEX, Table
from manifold.lake.payloads import is_filled
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.planning import Plan
from pipelines.ingest.reading import Source

MAX_NAMED_DATA_IDS = 1000  # that a filter names one by one
A_DAY = timedelta(days=1)


def source_of(run: Attempt, todo: Plan, stream: Stream) -> Source:
    """What is to be read of one stream."""
    limits = Limits(run.settings.max_ids, run.settings.max_data_bytes, run.settings.inline_encoding)
    archive = Archive(run.settings.archive, run.settings.s3)
    return Source(archive, todo.of(stream), todo.skips, todo.problems, limits, todo.nodes, todo.aside)


def table_of_known_data(catalog: Catalog, base: Mapping[str, int]) -> Table:
    """Which table says what is stored: the index, if it is whole in what the run began with; else the payloads' own."""
    names = catalog.load_table(META.identifier)
    return META if PAYLOAD_INDEX in names.properties and is_filled(names, base[META.name]) else DATA


def bounds_of_refusals(todo: Plan) -> tuple[datetime, datetime] | None:
    """When the run's outcomes were received, widely, so that only those days' files are read; None: they have no seqs."""
    probes = [todo.probes[segment.path] for segment in todo.of(Stream.OUTCOME)]
    seqs = [seq for probe in probes for seq in (probe.first_seq, probe.last_seq) if seq is not None]
    return (datetime_of(min(seqs)) - A_DAY, datetime_of(max(seqs)) + A_DAY) if seqs else None
