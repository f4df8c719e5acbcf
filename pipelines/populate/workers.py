"""Loads entries into the queues, and lets the queues forget ended entries, on Spark workers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from redis import exceptions
from redis.exceptions import RedisError

from manifold.contracts.brakes import EntryTrigger
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.lake.reads import TRIGGER_COLUMNS, trigger_of
from manifold.queues import Forgotten, Loader, Policy
from manifold.runtime.redis import connect
from manifold.settings import Settings

MAX_ROWS_IN_MEMORY = 2_000_000  # of a worker; a larger partition is loaded in chunks
VEHICLE_BATCH_SIZE = 500
SUPERSEDED_BY = "a newer trigger of this request_id took its place"
# Columns of names, one per line.
SPOILT = "spoilt"  # owners with a Redis key of another type
SPOILT_TRIGGERS = "spoilt_triggers"  # Redis keys of triggers that have another type
NAME_COLUMNS = (SPOILT, SPOILT_TRIGGERS)

# A function that a Spark worker runs on the Arrow batches of a partition.
BatchFunction = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


def run_and_count(rows: DataFrame, work: BatchFunction, counts: tuple[str, ...]) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Run `work` on Spark workers. Of its rows, return the sums of the columns `counts`, and the names in `NAME_COLUMNS`.

    Raises:
        redis.RedisError: Redis failed on a worker.
    """
    text_columns = [f"{name} string" for name in ("problem", *NAME_COLUMNS)]
    count_columns = [f"{name} bigint" for name in counts]
    worker_rows = rows.mapInArrow(_reporting_errors(work, counts), ", ".join([*text_columns, *count_columns]))
    one_problem = sf.max("problem").alias("problem")
    names = [sf.array_join(sf.collect_list(name), "\n").alias(name) for name in NAME_COLUMNS]
    sums = [sf.coalesce(sf.sum(name), sf.lit(0)).alias(name) for name in counts]
    totals = worker_rows.agg(one_problem, *names, *sums).first()
    assert totals is not None  # an aggregation has one row
    if totals["problem"] is not None:
        raise _error_of(totals["problem"])
    return {name: totals[name] for name in counts}, {name: totals[name].split() for name in NAME_COLUMNS}


def _reporting_errors(work: BatchFunction, counts: Sequence[str]) -> BatchFunction:
    """Wrap a function whose rows have the columns `counts` and `NAME_COLUMNS`, so that it reports Redis errors as rows.

    An exception on a worker would fill pages of Spark's log. The rows of the wrapped function also have the column `problem`,
    which is null. If a Redis error ends the function, the last row has the error in `problem`.
    """
    text_columns = [(name, pa.string()) for name in ("problem", *NAME_COLUMNS)]
    count_columns = [(name, pa.int64()) for name in counts]
    schema = pa.schema([*text_columns, *count_columns])

    def reporting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        remaining = iter(batches)
        try:
            for rows in work(remaining):
                yield pa.RecordBatch.from_pylist(rows.to_pylist(), schema=schema)
        except RedisError as exc:
            yield pa.RecordBatch.from_pylist([{"problem": f"{type(exc).__name__}: {exc}"}], schema=schema)
            for _ in remaining:  # Spark expects that all input is consumed
                pass

    return reporting


def _error_of(problem: str) -> RedisError:
    """Make the Redis error that a worker reported in `problem`."""
    class_name, _, message = problem.partition(": ")
    error_class: type[RedisError] = getattr(exceptions, class_name, RedisError)
    return error_class(message)


def entry_loader(url: str, policy: Policy, now_ms: int) -> BatchFunction:
    """Make the function that loads a partition's entries into the queues, and yields rows with counts and `NAME_COLUMNS`.

    The partition has a row for each entry, with vin, seq and the columns of its trigger, and all entries of each of its vehicles.
    The function stores triggers first, so that no entry lacks its trigger. If the partition is loaded in chunks, there is a row
    for each chunk.
    """

    def load(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loader = Loader(connect(url), policy)
        stored_seqs = set[int]()  # of triggers stored with an earlier chunk
        for rows in _chunks(batches):
            triggers = {seq: trigger for seq, trigger in _triggers(rows).items() if seq not in stored_seqs}
            corrupt_triggers = loader.store_triggers(triggers)
            stored_seqs.update(triggers)
            result = loader.offer(_by_owner(rows, with_request_id=policy.compaction), now_ms)
            loader.add_outcomes(
                OutcomeRecord(owner, seq, Outcome.SUPERSEDED, now_ms, reason=SUPERSEDED_BY) for owner, seq in result.superseded
            )
            row = {
                "owners": result.owners,
                "offered": result.offered,
                "queued": result.queued,
                "superseded": len(result.superseded),
                SPOILT: "\n".join(result.spoilt) or None,
                SPOILT_TRIGGERS: "\n".join(corrupt_triggers) or None,
            }
            yield pa.RecordBatch.from_pylist([row])

    return load


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of a partition in one table; in several if there are more than `MAX_ROWS_IN_MEMORY`."""
    chunk: list[pa.RecordBatch] = []
    for batch in batches:
        chunk.append(batch)
        if sum(chunk_batch.num_rows for chunk_batch in chunk) >= MAX_ROWS_IN_MEMORY:
            yield pa.Table.from_batches(chunk)
            chunk = []
    if chunk:
        yield pa.Table.from_batches(chunk)


def _triggers(rows: pa.Table) -> dict[int, EntryTrigger]:
    """The trigger of each seq in the rows. Rows of the same seq have the same trigger."""
    distinct = rows.group_by("seq", use_threads=False).aggregate([(name, "first") for name in TRIGGER_COLUMNS])
    triggers = distinct.rename_columns([name.removesuffix("_first") for name in distinct.column_names])
    return {row["seq"]: trigger_of(row) for row in triggers.to_pylist()}


def _by_owner(rows: pa.Table, *, with_request_id: bool) -> Iterator[tuple[str, list[Any]]]:
    """Yield each vehicle with its entries, oldest first: (vin, [seq, …]), or (vin, [seq, request_id, seq, …]).

    Redis needs the request_id if a newer entry supersedes older entries of the same request (setting `compaction`). Rows are
    grouped by hash, which is far cheaper than sorting them.
    """
    lists = [("seq", "list"), ("request_id", "list")] if with_request_id else [("seq", "list")]
    grouped = rows.group_by("vin", use_threads=False).aggregate(lists)
    for batch in grouped.to_batches(max_chunksize=VEHICLE_BATCH_SIZE):
        owners, seqs = batch["vin"].to_pylist(), batch["seq_list"].to_pylist()
        if with_request_id:
            request_ids = batch["request_id_list"].to_pylist()
            for owner, owner_seqs, owner_request_ids in zip(owners, seqs, request_ids, strict=True):
                entries = sorted(zip(owner_seqs, owner_request_ids, strict=True))
                yield owner, list(chain.from_iterable(entries))  # flattened
        else:
            for owner, owner_seqs in zip(owners, seqs, strict=True):
                yield owner, sorted(owner_seqs)


def forget_ended(ended: DataFrame, settings: Settings) -> Forgotten:
    """Let the queues forget these ended entries (vin, seq), except those that they must still remember; return both numbers."""
    url, policy = settings.redis, Policy.of(settings)

    def forget(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loader = Loader(connect(url), policy)
        for batch in batches:
            pairs = zip(batch["vin"].to_pylist(), batch["seq"].to_pylist(), strict=True)
            result = loader.forget_done(pairs)
            yield pa.RecordBatch.from_pydict({"forgotten": [result.forgotten], "kept": [result.kept]})

    counts, _ = run_and_count(ended, forget, Forgotten._fields)
    return Forgotten(**counts)
