"""Ends overdue entries and removes unneeded data, in a run of its own, so that no ingest relies on rows about to be removed.

Like an ingest, the run writes to branches and takes effect when main of `ingested_segments` moves. An ingest that began before
is overtaken and starts again; a later ingest sees only the remaining rows. `garbage_plan` explains the order of the steps.
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
from pipelines.ingest.run import Ingested, Run
from pipelines.ingest.write_outcomes import expired_rows
from pipelines.maintenance.change_rows import delete_rows
from pipelines.maintenance.garbage_rows import GarbageRows
from pipelines.populate.pending import KEYS

SAMPLE_SIZE = 20

log = structlog.get_logger(__name__)
Batches = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Removal:
    """The rows or files that were removed or would be removed: their number, a sample, and their bytes if known."""

    count: int = 0
    sample: list[str] = field(default_factory=list)
    bytes: int | None = None
    kept_because: str | None = None  # why nothing was removed, if the reason is not that nothing is old


def discover(run: Run, *, cutoff: datetime) -> tuple[Removal, Removal]:
    """Return the entries that a collection would expire, and the data that it would remove. Nothing is changed.

    Segments that are not ingested yet are not considered, although a collection ingests them first.
    """
    attempt = Attempt.on_main(run)
    rows = GarbageRows(attempt, cutoff=cutoff)
    unneeded = rows.unneeded(attempt.main(OUTCOMES), overdue_are_ended=True).persist()
    try:
        return _removal_of_entries(rows.overdue()), _removal_of_data(attempt, unneeded)
    finally:
        unneeded.unpersist()


def collect(run: Run, *, cutoff: datetime, keep_data_because: str | None = None) -> tuple[Removal, Removal]:
    """End overdue entries as expired, remove unneeded data, and publish the run. Return both removals.

    With `keep_data_because`, no data is removed, and the removal gives this reason.

    Raises:
        Overtaken: another run was published since this run began; the lake is unchanged, run it again.
        redis.RedisError: Redis is unavailable or refuses; the lake is unchanged.
    """
    finish_committed_runs(run.catalog)
    drop_branches(run.catalog, branch_of(run.run_id))  # of an earlier attempt that was overtaken
    attempt = Attempt.on_main(run)
    rows = GarbageRows(attempt, cutoff=cutoff)
    open_run(attempt.catalog, attempt.run_id, attempt.base[SEGMENTS.name], attempt.now)
    expired = _write_expired(attempt, rows)
    if keep_data_because:
        data = Removal(kept_because=keep_data_because)
    else:
        wrote_outcomes = OUTCOMES.name in attempt.snapshots  # then only the run's branch has the outcomes of expired entries
        ended = attempt.spark.table(attempt.name(OUTCOMES, on_branch=True)) if wrote_outcomes else attempt.main(OUTCOMES)
        data = _remove_data(attempt, rows, ended)
    if not attempt.snapshots:  # no table was changed
        drop_branches(attempt.catalog, branch_of(attempt.run_id))
        return expired, data
    no_segments = SEGMENTS.arrow_schema.empty_table()
    attempt.append_to_ledger(no_segments, Ingested(attempt.run_id, written=attempt.written))
    publish(attempt.catalog, attempt.run_id, must=True)  # raises Overtaken if another job has closed the run
    return expired, data


def _write_expired(attempt: Attempt, rows: GarbageRows) -> Removal:
    """End overdue entries in the queues, and write the outcomes of the entries that expired to the run's branch.

    The queues are changed first: if the run dies before it is published, the next collection finds the same entries overdue, and
    ending them in the queues again has the same result. An entry stays open if it is in flight, or if the queues know that it has
    ended otherwise: its outcome has not arrived in the lake yet.
    """
    overdue = rows.overdue().persist()
    try:
        days_with_overdue = rows.remember_closed_days(overdue)
        if not days_with_overdue:
            return Removal()
        expire = _expirer(attempt.settings.redis, Policy.of(attempt.settings), round(attempt.now.timestamp() * 1000))
        reason = f"its retention of {attempt.settings.retention_days:g} days passed while it was pending"
        expired = overdue.select(*KEYS).mapInArrow(expire, "vin string, seq bigint")
        attempt.append(OUTCOMES, expired_rows(expired, at=attempt.now, reason=reason))
        sample = _removal_of_entries(overdue).sample
    finally:
        overdue.unpersist()
    return Removal(attempt.written[OUTCOMES.name], sample)


def _expirer(url: str, policy: Policy, now_ms: int) -> Batches:
    """Make the function that ends entries (vin, seq) in the queues as expired, and yields the entries that expired.

    Other entries are in flight, have another outcome already, or are in a queue with corrupt keys.
    """

    def expire(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loader = Loader(connect(url), policy)
        for batch in batches:
            grouped = pa.Table.from_batches([batch]).group_by("vin", use_threads=False).aggregate([("seq", "list")])
            owners = zip(grouped["vin"].to_pylist(), grouped["seq_list"].to_pylist(), strict=True)
            ended = loader.end(owners, Outcome.EXPIRED, now_ms)
            expired = [entry for entry in ended if entry.outcome is Outcome.EXPIRED]
            for owner in loader.spoilt:
                log.error("corrupt keys in redis; overdue entries not expired", vin=owner, remedy=DELETE_KEYS)
            loader.spoilt.clear()
            vins = pa.array([entry.owner for entry in expired], pa.string())
            seqs = pa.array([entry.seq for entry in expired], pa.int64())
            yield pa.RecordBatch.from_pydict({"vin": vins, "seq": seqs})

    return expire


def _remove_data(attempt: Attempt, rows: GarbageRows, ended: DataFrame) -> Removal:
    """Remove the unneeded data on the run's branches. `ended` has the outcomes of all entries that are not pending."""
    unneeded = rows.unneeded(ended).persist()
    try:
        removal = _removal_of_data(attempt, unneeded)
        if removal.count:
            for table in (DATA, META):
                has_rows = attempt.main(table).join(unneeded, "data_id", "left_semi").limit(1).count()
                if has_rows:
                    delete_rows(attempt, table, unneeded)
        return removal
    finally:
        unneeded.unpersist()


def _removal_of_entries(overdue: DataFrame) -> Removal:
    """The number of these entries, and a sample of them, as VIN and seq."""
    sample = overdue.orderBy("seq", "vin").limit(SAMPLE_SIZE).collect()
    return Removal(overdue.count(), [f"{row['vin']} {row['seq']}" for row in sample])


def _removal_of_data(attempt: Attempt, unneeded: DataFrame) -> Removal:
    """The number of these data ids, a sample of them, and the size of their payloads."""
    sample = [row["data_id"] for row in unneeded.orderBy("data_id").limit(SAMPLE_SIZE).collect()]
    payloads = attempt.main(DATA).join(unneeded, "data_id", "left_semi")
    total = payloads.agg(sf.coalesce(sf.sum("size_bytes"), sf.lit(0)).alias("bytes")).first()
    assert total is not None  # an aggregation has one row
    return Removal(unneeded.count(), sample, int(total["bytes"]))
