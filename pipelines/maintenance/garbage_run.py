"""Ends overdue entries and removes unneeded data, in a run of its own, so that no ingest relies on rows about to be removed.

Like an ingest, it writes to branches and takes effect when main of `ingested_segments` moves. An ingest that began before is
overtaken and done again; a later one sees the remaining rows. `garbage_plan` explains the order.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import structlog
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from manifold.contracts.outcomes import Outcome
from manifold.contracts.tables import DATA, META, OUTCOMES, SEGMENTS
from manifold.queues import DELETE_KEYS, Loader, Policy
from manifold.runtime.redis import connect
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.branches import branch_of, drop_branches, open_run
from pipelines.ingest.publish import finish_committed_runs, publish
from pipelines.ingest.run import Ingested
from pipelines.ingest.transforms import expired_rows
from pipelines.maintenance.change_rows import remove
from pipelines.maintenance.garbage_rows import Rows
from pipelines.populate.pending import KEYS

SAMPLE_SIZE = 20

log = structlog.get_logger(__name__)
Batches = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Removal:
    """Rows that were or would be removed: how many, a sample, and their bytes if known."""

    count: int = 0
    sample: list[str] = field(default_factory=list)
    bytes: int | None = None
    kept_because: str | None = None  # why nothing was removed, although something might have been


def discover(attempt: Attempt, *, cut: datetime) -> tuple[Removal, Removal]:
    """The entries that would expire, and the data that would be removed, if nothing new has been recorded."""
    rows = Rows(attempt, cut=cut)
    unneeded = rows.unneeded(rows.main(OUTCOMES), and_overdue=True).persist()
    try:
        return _entries(rows.overdue()), _data(rows, unneeded)
    finally:
        unneeded.unpersist()


def collect(attempt: Attempt, *, cut: datetime, keep_data_because: str | None = None) -> tuple[Removal, Removal]:
    """End overdue entries as expired, remove unneeded data (unless there is a reason to keep it), and publish the run.

    Raises:
        ConcurrentPublish: another run was published in the meantime; the lake is unchanged, run it again.
        redis.RedisError: Redis is unavailable or refuses; the lake is unchanged.
    """
    finish_committed_runs(attempt.catalog)
    drop_branches(attempt.catalog, branch_of(attempt.run_id))
    rows = Rows(attempt, cut=cut)
    open_run(attempt.catalog, attempt.run_id, rows.base[SEGMENTS.name], attempt.now)
    expired = _write_expired(attempt, rows)
    ended = (
        attempt.spark.table(attempt.name(OUTCOMES, on_branch=True)) if OUTCOMES.name in attempt.snapshots else rows.main(OUTCOMES)
    )
    data = Removal(kept_because=keep_data_because) if keep_data_because else _remove_data(attempt, rows, ended)
    if not attempt.snapshots:
        drop_branches(attempt.catalog, branch_of(attempt.run_id))
        return expired, data
    attempt.append_to_ledger(
        SEGMENTS.arrow_schema.empty_table(), Ingested(attempt.run_id, written=attempt.written), rows.base[SEGMENTS.name]
    )
    publish(attempt.catalog, attempt.run_id, must=True)
    return expired, data


def _write_expired(attempt: Attempt, rows: Rows) -> Removal:
    """End overdue entries in the queues, and write those that ended so to the run's branch of outcomes.

    The queues come first: if the run dies in between, the same entries are overdue again, and the queues answer the same.
    Entries that the queues have in flight, or know to have ended otherwise, are left to the outcome that is on its way.
    """
    overdue = rows.overdue().persist()
    try:
        if not rows.remember(overdue):
            return Removal()
        end = _ender(attempt.settings.redis, Policy.of(attempt.settings), round(attempt.now.timestamp() * 1000))
        reason = f"its retention of {attempt.settings.retention_days:g} days passed while it was pending"
        ended = overdue.select(*KEYS).mapInArrow(end, "vin string, seq bigint")
        attempt.append(OUTCOMES, expired_rows(ended, at=attempt.now, reason=reason), rows.base[OUTCOMES.name])
        sample = _entries(overdue).sample
    finally:
        overdue.unpersist()
    return Removal(attempt.written[OUTCOMES.name], sample)


def _ender(url: str, policy: Policy, now_ms: int) -> Batches:
    def end(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loader = Loader(connect(url), policy)
        for batch in batches:
            grouped = pa.Table.from_batches([batch]).group_by("vin", use_threads=False).aggregate([("seq", "list")])
            owners = zip(grouped["vin"].to_pylist(), grouped["seq_list"].to_pylist(), strict=True)
            done = [e for e in loader.end(owners, Outcome.EXPIRED, now_ms) if e.outcome is Outcome.EXPIRED]
            for owner in loader.spoilt:
                log.error("corrupt keys in redis", vin=owner, remedy=DELETE_KEYS)
            loader.spoilt.clear()
            yield pa.RecordBatch.from_pydict(
                {"vin": pa.array([e.owner for e in done], pa.string()), "seq": pa.array([e.seq for e in done], pa.int64())}
            )

    return end


def _remove_data(attempt: Attempt, rows: Rows, ended: DataFrame) -> Removal:
    unneeded = rows.unneeded(ended).persist()
    try:
        removed = _data(rows, unneeded)
        if removed.count:
            for table in (DATA, META):
                if rows.main(table).join(unneeded, "data_id", "left_semi").limit(1).count():
                    remove(attempt, table, unneeded, rows.base[table.name])
        return removed
    finally:
        unneeded.unpersist()


def _entries(overdue: DataFrame) -> Removal:
    sample = overdue.orderBy("seq", "vin").limit(SAMPLE_SIZE).collect()
    return Removal(overdue.count(), [f"{row['vin']} {row['seq']}" for row in sample])


def _data(rows: Rows, unneeded: DataFrame) -> Removal:
    sample = [row["data_id"] for row in unneeded.orderBy("data_id").limit(SAMPLE_SIZE).collect()]
    size = rows.main(DATA).join(unneeded, "data_id", "left_semi").agg(sf.coalesce(sf.sum("size_bytes"), sf.lit(0)).alias("b"))
    row = size.first()
    assert row is not None  # an aggregation has one row
    return Removal(unneeded.count(), sample, int(row["b"]))
