"""Finds the queues that may differ from the lake: one digest of each side per bucket of vehicles, without a shuffle.

A digest is the XOR of a hash of each entry. So the digest of the lake's pending entries is that of all entries and all
outcomes together, without a join; and if queues and lake agree, everything cancels out. Buckets that differ are compared entry
by entry (`verify_entries`). An outcome without an entry makes its bucket differ; the only cost is that comparison. A key that
SCAN returns twice is read once.
"""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.seq import COUNTER_BITS, MAX_NODE
from manifold.runtime.redis import connect
from pipelines.maintenance.seen_keys import Hashes, SeenKeys
from pipelines.maintenance.verify_lake import PinnedLake
from pipelines.maintenance.verify_redis import (
    Batches,
    Entries,
    Flags,
    Integers,
    Page,
    QueueKey,
    entries_of,
    pages,
    replies_to,
    sound,
)
from pipelines.spark.parallelism import parallelism

BUCKETS = 1 << 18  # a vehicle that differs has its whole bucket compared
SEED = np.uint64(42)  # as in Spark's `xxhash64`
MAX_WALKERS = 8  # Redis serves one at a time
COLUMNS = ("waiting", "young", "odd", "entries", "digest")
ROWS = ", ".join(f"{column} bigint" for column in ("bucket", *COLUMNS))
ROW_SCHEMA = pa.schema([(column, pa.int64()) for column in ("bucket", *COLUMNS)])
WALKED = (QueueKey.PENDING, QueueKey.PARKED, QueueKey.IN_FLIGHT)


@dataclass(frozen=True, slots=True)
class Digests:
    """The buckets to compare entry by entry, and how many entries are pending or parked, and not ingested yet."""

    differing: list[int]
    in_queues: int
    too_young: int


@dataclass(frozen=True, slots=True)
class Buckets:
    """A set of buckets, on both sides."""

    numbers: frozenset[int]

    def have(self, owner: str) -> bool:
        """Whether the owner is in one of them."""
        return _bucket(owner) in self.numbers

    def of(self, rows: DataFrame) -> DataFrame:
        """Keep the rows of vehicles (column `vin`) in one of them."""
        mine = rows.sparkSession.createDataFrame(pa.table({"bucket": pa.array(self.numbers, pa.int64())}))
        return rows.join(sf.broadcast(mine), _bucket_of("vin") == mine["bucket"], "left_semi")


def compare_digests(lake: PinnedLake) -> Digests:
    """Compare digests of the lake's pending entries with those of the queues, without entries that the lake cannot know yet.

    Raises:
        redis.RedisError: Redis is unavailable or refuses.
    """
    walkers = min(parallelism(lake.spark), MAX_WALKERS)
    walk = _walk(lake.settings.redis, walkers, lake.newest_of_node)
    walked = lake.spark.range(0, walkers, 1, walkers).mapInArrow(walk, ROWS)
    both = _in_lake(lake.entries(), 1).unionByName(_in_lake(lake.ended(), -1)).unionByName(walked)
    if (twice := lake.ended_twice()) is not None:
        both = both.unionByName(_in_lake(twice, 1))
    sums = [sf.sum(column).alias(column) for column in COLUMNS[:-1]]
    found = both.groupBy("bucket").agg(*sums, sf.bit_xor("digest").alias("digest")).toArrow()
    differs = np.logical_or.reduce([found[column].to_numpy() != 0 for column in ("odd", "entries", "digest")])
    in_queues, too_young = (int(found[column].to_numpy().sum()) for column in ("waiting", "young"))
    return Digests(found["bucket"].to_numpy()[differs].tolist(), in_queues, too_young)


def _bucket_of(vin: str) -> Column:
    return sf.crc32(vin).bitwiseAND(BUCKETS - 1)


def _in_lake(rows: DataFrame, sign: int) -> DataFrame:
    vehicle = sf.shiftleft(sf.crc32("vin"), 32).bitwiseOR(sf.crc32(sf.reverse("vin")))
    hashed = rows.select(_bucket_of("vin").alias("bucket"), sf.xxhash64(vehicle, "seq").alias("digest"))
    counts = [sf.lit(0).cast("bigint").alias(column) for column in ("waiting", "young", "odd")]
    return hashed.groupBy("bucket").agg(*counts, (sf.count("*") * -sign).alias("entries"), sf.bit_xor("digest").alias("digest"))


def _walk(url: str, walkers: int, newest_of_node: dict[int, int]) -> Batches:
    """Make the function that yields rows of `ROWS`; each walker reads the owners in its share of the buckets."""
    newest = np.full(MAX_NODE + 1, -1, np.int64)
    for node, seq in newest_of_node.items():
        newest[node] = seq

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for walker in batch["id"].to_pylist():
                with connect(url) as redis:
                    sums = _Sums(redis, newest)
                    for page in pages(redis, WALKED):
                        sums.add([key for key in page if _bucket(key[0]) % walkers == walker])
                    yield sums.rows()

    return read


class _Sums:
    """The digests of a walk, by bucket."""

    def __init__(self, redis: Redis, newest: Integers) -> None:
        self._redis, self._newest, self._seen = redis, newest, SeenKeys()
        self._sums = {column: np.zeros(BUCKETS, np.int64) for column in COLUMNS}

    def add(self, page: Page) -> None:
        """Add the entries of a page of keys, except keys that were read before."""
        page = [key for key, is_new in zip(page, self._seen.note(_hashes(page)), strict=True) if is_new]
        entries = entries_of(page, replies_to(self._redis, page))
        starts = np.flatnonzero(np.diff(entries.of_queue, prepend=-1))
        if not len(starts):
            return
        is_flying = np.array([queue_key is QueueKey.IN_FLIGHT for _, queue_key in page], np.bool_)[entries.of_queue]
        is_young = entries.seqs > self._newest[entries.seqs >> COUNTER_BITS & MAX_NODE]
        is_compared = ~is_flying & ~is_young
        vehicles = hash_long(np.array([_vehicle(owner) for owner, _ in page], np.uint64), SEED)[entries.of_queue]
        digests = np.where(is_compared, hash_long(entries.seqs.view(np.uint64), vehicles), 0).view(np.int64)

        buckets = np.array([_bucket(owner) for owner, _ in page])[entries.of_queue[starts]]
        counted = {
            "waiting": ~is_flying,
            "young": ~is_flying & is_young,
            "odd": entries.disordered | self._flag_strays(page, entries, is_flying),
            "entries": is_compared,
        }
        for column, flags in counted.items():
            np.add.at(self._sums[column], buckets, np.add.reduceat(flags.astype(np.int64), starts))
        np.bitwise_xor.at(self._sums["digest"], buckets, np.bitwise_xor.reduceat(digests, starts))

    def rows(self) -> pa.RecordBatch:
        """One row per bucket that is not empty."""
        (buckets,) = np.nonzero(np.logical_or.reduce([each != 0 for each in self._sums.values()]))
        columns = [pa.array(self._sums[column][buckets]) for column in COLUMNS]
        return pa.RecordBatch.from_arrays([pa.array(buckets), *columns], schema=ROW_SCHEMA)

    def _flag_strays(self, page: Page, entries: Entries, is_flying: Flags) -> Flags:
        """Flag the entries that are in flight without being pending."""
        found = np.zeros(len(is_flying), np.bool_)
        places = np.flatnonzero(is_flying)
        pipe = self._redis.pipeline(transaction=False)
        for place in places.tolist():
            pipe.zscore(keys.pending(page[entries.of_queue[place]][0]), int(entries.seqs[place]))
        found[places] = [sound(score) is None for score in pipe.execute(raise_on_error=False)]
        return found


def _hashes(page: Page) -> Hashes:
    """One hash per key, of its owner and its kind."""
    kinds = np.array([WALKED.index(queue_key) for _, queue_key in page], np.uint64)
    hashes: Hashes = hash_long(kinds, np.array([_vehicle(owner) for owner, _ in page], np.uint64))
    return hashes


def _bucket(owner: str) -> int:
    return zlib.crc32(owner.encode()) & (BUCKETS - 1)


def _vehicle(owner: str) -> int:
    """Two checksums: with one of 32 bits, some of a million vehicles would share theirs."""
    return zlib.crc32(owner.encode()) << 32 | zlib.crc32(owner[::-1].encode())


def hash_long(values: Any, seeds: Any) -> Any:
    """XXH64 of 64-bit integers, as Spark's `xxhash64` computes it for a bigint; arrays of uint64.

    Source: `XXH64.hashLong` in org.apache.spark.sql.catalyst.expressions, and the definition of XXH64 for inputs of 8 bytes.
    """
    one, two, three, four, five = (
        np.uint64(prime)
        for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
    )
    with np.errstate(over="ignore"):  # the arithmetic is modulo 2**64
        mixed = seeds + five + np.uint64(8) ^ _rotated(values * two, 31) * one
        mixed = _rotated(mixed, 27) * one + four
        mixed = (mixed ^ mixed >> np.uint64(33)) * two
        mixed = (mixed ^ mixed >> np.uint64(29)) * three
        return mixed ^ mixed >> np.uint64(32)


def _rotated(values: Any, bits: int) -> Any:
    return values << np.uint64(bits) | values >> np.uint64(64 - bits)
