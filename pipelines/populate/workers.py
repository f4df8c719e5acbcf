"""Loads entries into the queues and drops ended ones, on Spark workers."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from manifold.contracts.brakes import EntryTrigger
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.lake.reads import TRIGGER_COLUMNS, trigger_of
from manifold.queues import Forgotten, Loader, Policy
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.populate.worker_errors import SPOILT, TRIGGERS, WORDS, Batches, error_of, reporting_errors

MAX_ROWS = 2_000_000  # that a worker holds at once; a larger partition is split
VEHICLE_BATCH_SIZE = 500
SUPERSEDED_BY = "a newer trigger of this request_id took its place"


def counted(rows: DataFrame, work: Batches, names: tuple[str, ...]) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Run `work` on Spark workers; return its sums and its words, by column.

    Raises:
        redis.RedisError: Redis failed on a worker.
    """
    schema = ", ".join([*(f"{name} string" for name in ("problem", *WORDS)), *(f"{name} bigint" for name in names)])
    counts = rows.mapInArrow(reporting_errors(work, names), schema)
    sums = [sf.coalesce(sf.sum(name), sf.lit(0)).alias(name) for name in names]
    words = [sf.array_join(sf.collect_list(name), "\n").alias(name) for name in WORDS]
    row = counts.agg(sf.max("problem").alias("problem"), *words, *sums).first()
    assert row is not None  # an aggregation has one row
    if row["problem"] is not None:
        raise error_of(row["problem"])
    return {name: row[name] for name in names}, {name: row[name].split() for name in WORDS}


def loading(url: str, policy: Policy, now_ms: int) -> Batches:
    """Make the function that loads rows into the queues, triggers first, so that no entry is there without its trigger."""

    def load(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        redis = connect(url)
        loader, stored = Loader(redis, policy), set[int]()
        for rows in _chunks(batches):
            triggers = {seq: trigger for seq, trigger in _triggers(rows).items() if seq not in stored}
            spoilt = loader.store_triggers(triggers)
            stored.update(triggers)
            done = loader.offer(_by_owner(rows, with_request_id=policy.compaction), now_ms)
            superseded = (OutcomeRecord(o, s, Outcome.SUPERSEDED, now_ms, reason=SUPERSEDED_BY) for o, s in done.superseded)
            loader.add_outcomes(superseded)
            counts = {"owners": done.owners, "offered": done.offered, "queued": done.queued, "superseded": len(done.superseded)}
            words = {SPOILT: "\n".join(done.spoilt) or None, TRIGGERS: "\n".join(spoilt) or None}
            yield pa.RecordBatch.from_pylist([counts | words])

    return load


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield a partition as a whole, or in pieces if it is too large for that."""
    piece: list[pa.RecordBatch] = []
    for batch in batches:
        piece.append(batch)
        if sum(b.num_rows for b in piece) >= MAX_ROWS:
            yield pa.Table.from_batches(piece)
            piece = []
    if piece:
        yield pa.Table.from_batches(piece)


def _triggers(rows: pa.Table) -> dict[int, EntryTrigger]:
    """The trigger of each seq in the rows."""
    distinct = rows.group_by("seq", use_threads=False).aggregate([(name, "first") for name in TRIGGER_COLUMNS])
    found = distinct.rename_columns([name.removesuffix("_first") for name in distinct.column_names])
    return {row["seq"]: trigger_of(row) for row in found.to_pylist()}


def _by_owner(rows: pa.Table, *, with_request_id: bool) -> Iterator[tuple[str, list[Any]]]:
    """Yield each vehicle with its entries, oldest first, as `Loader.offer` takes them. Hashing is far cheaper than sorting."""
    lists = [("seq", "list"), ("request_id", "list")] if with_request_id else [("seq", "list")]
    grouped = rows.group_by("vin", use_threads=False).aggregate(lists)
    for batch in grouped.to_batches(max_chunksize=VEHICLE_BATCH_SIZE):
        owners, seqs = batch["vin"].to_pylist(), batch["seq_list"].to_pylist()
        if with_request_id:
            for owner, mine, requests in zip(owners, seqs, batch["request_id_list"].to_pylist(), strict=True):
                yield owner, [part for entry in sorted(zip(mine, requests, strict=True)) for part in entry]
        else:
            for owner, mine in zip(owners, seqs, strict=True):
                yield owner, sorted(mine)


def forget_ended(ended: DataFrame, settings: Settings) -> Forgotten:
    """Let the queues forget these ended entries (vin, seq); return how many they forgot, and how many they kept."""
    url, policy = settings.redis, Policy.of(settings)

    def forget(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loader = Loader(connect(url), policy)
        for batch in batches:
            pairs = zip(batch["vin"].to_pylist(), batch["seq"].to_pylist(), strict=True)
            done = loader.forget_done(pairs)
            yield pa.RecordBatch.from_pydict({"forgotten": [done.forgotten], "kept": [done.kept]})

    return Forgotten(**counted(ended, forget, Forgotten._fields)[0])
