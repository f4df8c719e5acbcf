"""Repairs the differences for which it is certain what is right. Other differences are left as they are."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.outcomes import OF_CODE, Outcome, OutcomeRecord
from manifold.queues import Loader, Policy
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.maintenance.verify_redis import Difference
from pipelines.populate.lock import populate_lock
from pipelines.populate.workers import SUPERSEDED_BY
from pipelines.spark.parallelism import parallelism

REASON_OF_UNRECORDED = "remembered by the queues alone: recorded when they were compared with the lake, not when it ended"
COUNTS = pa.schema([("difference", pa.string()), ("repaired", pa.int64())])
Batches = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


def repair_queues(found: DataFrame, settings: Settings, now: datetime) -> dict[str, int]:
    """Repair missing, unrecorded, ended and disordered entries; return the number of repaired differences by kind.

    Missing entries are queued, outcomes of unrecorded entries are sent to the recorder, ended entries are ended in the queues,
    and disordered entries are put in order. Entries that are extra, overdue or stray are left as they are.

    Raises:
        Retryable: another process holds the populate lock.
    """
    now_ms = round(now.timestamp() * 1000)
    repair_batches = _repairer(settings.redis, Policy.of(settings), now_ms)
    by_owner = found.repartition(parallelism(found.sparkSession), "vin")
    with connect(settings.redis) as redis, populate_lock(redis) as lock:
        repaired = by_owner.mapInArrow(repair_batches, "difference string, repaired bigint")
        sums = repaired.groupBy("difference").sum("repaired").collect()
        lock.require_held()
    return {row["difference"]: row["sum(repaired)"] for row in sums}


def _repairer(url: str, policy: Policy, now_ms: int) -> Batches:
    """Make the function that repairs differences (rows of `verify_entries.DIFFERENCES`), and yields rows of `COUNTS`."""

    def repair_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with connect(url) as redis:
            loader = Loader(redis, policy)
            for batch in batches:
                rows: dict[Difference, list[dict[str, Any]]] = {kind: [] for kind in Difference}
                for row in batch.to_pylist():
                    rows[Difference(row["difference"])].append(row)
                repaired = {
                    Difference.MISSING: _queue_missing(loader, rows[Difference.MISSING], now_ms),
                    Difference.UNRECORDED: _send_outcomes(redis, loader, rows[Difference.UNRECORDED], now_ms),
                    Difference.ENDED: _end_entries(loader, rows[Difference.ENDED], now_ms),
                    Difference.DISORDERED: _restore_order(redis, rows[Difference.DISORDERED]),
                }
                counts = [{"difference": kind.value, "repaired": count} for kind, count in repaired.items() if count]
                yield pa.RecordBatch.from_pylist(counts, COUNTS)

    return repair_batches


def _restore_order(redis: Redis, rows: list[dict[str, Any]]) -> int:
    """Set the score of each disordered entry to its seq; return the number of entries."""
    for row in rows:
        # With XX, an entry that has ended and left the queue since is not added again.
        redis.zadd(keys.pending(row["vin"]), {str(row["seq"]): row["seq"]}, xx=True)
    return len(rows)


def _queue_missing(loader: Loader, rows: list[dict[str, Any]], now_ms: int) -> int:
    """Queue missing entries; return the number of entries that were queued or superseded."""
    owners: dict[str, list[tuple[int, str]]] = {}
    for row in rows:
        owners.setdefault(row["vin"], []).append((int(row["seq"]), row["request_id"]))
    # Only seq and request id are queued. The dispatcher reads the rest of the trigger from the lake, including its campaign.
    result = loader.enqueue(((owner, sorted(entries)) for owner, entries in owners.items()), now_ms)
    loader.add_outcomes(
        OutcomeRecord(owner, seq, Outcome.SUPERSEDED, now_ms, reason=SUPERSEDED_BY) for owner, seq in result.superseded
    )
    return result.queued + len(result.superseded)


def _send_outcomes(redis: Redis, loader: Loader, rows: list[dict[str, Any]], now_ms: int) -> int:
    """Send the recorder the outcomes that the queues still remember, and return their number.

    The queues remember only the kind of an outcome, not its time and its delivery attempts.
    """
    pipe = redis.pipeline(transaction=False)
    for row in rows:
        pipe.zscore(keys.done(row["vin"]), row["seq"])  # the score of an ended entry is the code of its outcome
    records = []
    for row, code in zip(rows, pipe.execute(), strict=True):
        if code is not None:  # the queues have not forgotten the entry meanwhile
            outcome = OF_CODE[int(code)]
            records.append(OutcomeRecord(row["vin"], int(row["seq"]), outcome, now_ms, reason=REASON_OF_UNRECORDED))
    loader.add_outcomes(records)
    return len(records)


def _end_entries(loader: Loader, rows: list[dict[str, Any]], now_ms: int) -> int:
    """End entries of which the lake has an outcome, and let the queues forget them. Return the number of ended entries.

    Entries in flight are not ended here: they end when they are acknowledged or released.
    """
    ended_count = 0
    for outcome in Outcome:
        owners: dict[str, list[int]] = {}
        for row in rows:
            if row["outcome"] == outcome:
                owners.setdefault(row["vin"], []).append(int(row["seq"]))
        results = loader.end(owners.items(), outcome, now_ms)
        ended = [(entry.owner, entry.seq) for entry in results if entry.outcome is not None]  # the others are in flight
        loader.forget_done(ended)
        ended_count += len(ended)
    return ended_count
