"""Repairs differences that verification found, where the lake is certain; others are left as they are."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

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

FOUND = "remembered by the queues alone: recorded when they were compared with the lake, not when it ended"
COUNTS = pa.schema([("difference", pa.string()), ("repaired", pa.int64())])
Batches = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


def repair_queues(found: DataFrame, settings: Settings, now: datetime) -> dict[str, int]:
    """Queue what is missing, end what has ended, record outcomes, restore the order; return how many of each kind.

    Other differences stay.

    Raises:
        Retryable: another process holds the populate lock.
    """
    now_ms = round(now.timestamp() * 1000)
    repair_batches = _repairer(settings.redis, Policy.of(settings), now_ms)
    by_owner = found.repartition(parallelism(found.sparkSession), "vin")
    with connect(settings.redis) as redis, populate_lock(redis) as lock:
        counts = (
            by_owner.mapInArrow(repair_batches, "difference string, repaired bigint")
            .groupBy("difference")
            .sum("repaired")
            .collect()
        )
        lock.check()
    return {row["difference"]: row["sum(repaired)"] for row in counts}


def _repairer(url: str, policy: Policy, now_ms: int) -> Batches:
    def repair_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with connect(url) as redis:
            loader = Loader(redis, policy)
            for batch in batches:
                rows = batch.to_pylist()
                done = {
                    Difference.MISSING: _queue(loader, [r for r in rows if r["difference"] == Difference.MISSING], now_ms),
                    Difference.UNRECORDED: _record(
                        redis, loader, [r for r in rows if r["difference"] == Difference.UNRECORDED], now_ms
                    ),
                    Difference.ENDED: _end(loader, [r for r in rows if r["difference"] == Difference.ENDED], now_ms),
                }
                disordered = [r for r in rows if r["difference"] == Difference.DISORDERED]
                for row in disordered:  # XX: entries that ended in the meantime are not added again
                    redis.zadd(keys.pending(row["vin"]), {str(row["seq"]): row["seq"]}, xx=True)
                done[Difference.DISORDERED] = len(disordered)
                counts = [{"difference": kind.value, "repaired": count} for kind, count in done.items() if count]
                yield pa.RecordBatch.from_pylist(counts, COUNTS)

    return repair_batches


def _queue(loader: Loader, rows: list[dict[str, str]], now_ms: int) -> int:
    """Queue missing entries; return how many were queued or superseded."""
    owners: dict[str, list[tuple[int, str]]] = {}
    for row in rows:
        owners.setdefault(row["vin"], []).append((int(row["seq"]), row["request_id"]))
    # Only seq and request id are queued; the dispatcher reads the rest of the trigger, also whether it is a campaign's, from
    # the lake.
    done = loader.enqueue(((owner, sorted(entries)) for owner, entries in owners.items()), now_ms)
    loader.add_outcomes(
        OutcomeRecord(owner, seq, Outcome.SUPERSEDED, now_ms, reason=SUPERSEDED_BY) for owner, seq in done.superseded
    )
    return done.queued + len(done.superseded)


def _record(redis: Redis, loader: Loader, rows: list[dict[str, str]], now_ms: int) -> int:
    """Send outcomes that the queues remember to the recorder; time and attempts are no longer known. Return how many."""
    pipe = redis.pipeline(transaction=False)
    for row in rows:
        pipe.zscore(keys.done(row["vin"]), row["seq"])
    found = [(row, OF_CODE[int(code)]) for row, code in zip(rows, pipe.execute(), strict=True) if code is not None]
    loader.add_outcomes(OutcomeRecord(row["vin"], int(row["seq"]), how, now_ms, reason=FOUND) for row, how in found)
    return len(found)


def _end(loader: Loader, rows: list[dict[str, str]], now_ms: int) -> int:
    """End entries whose outcomes the lake has, and let the queues forget them. Those in flight end when acked or released."""
    ended = 0
    for outcome in Outcome:
        owners: dict[str, list[int]] = {}
        for row in (row for row in rows if row["outcome"] == outcome):
            owners.setdefault(row["vin"], []).append(int(row["seq"]))
        done = [(e.owner, e.seq) for e in loader.end(owners.items(), outcome, now_ms) if e.outcome is not None]
        loader.forget_done(done)
        ended += len(done)
    return ended
