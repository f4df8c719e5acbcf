"""Finds the queues that may differ from the lake, by digests of buckets of vehicles, without shuffling entries.

A digest is the XOR of the hashes of entries. An entry and its outcome have the same hash, so in the XOR of all entries and all
outcomes of the lake, the ended entries cancel out, without a join. If the queues have the same pending entries, the XOR of both
digests is 0. Buckets whose digests differ are compared entry by entry (`verify_entries`). An outcome without an entry makes its
bucket differ, which only costs that comparison. A key that SCAN returns twice is read once.
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
    contents_of,
    entries_of,
    pages,
    valid_reply,
)
from pipelines.spark.parallelism import parallelism

BUCKETS = 1 << 18  # if a vehicle differs, all vehicles of its bucket are compared
SEED = np.uint64(42)  # the seed of Spark's `xxhash64`
MAX_WALKERS = 8  # tasks that read the queues; more would only wait, because Redis serves one at a time
# Columns of a bucket: the numbers of entries that wait, that are too young to compare, that are disordered or stray, and that are
# compared; and the digest of the compared entries.
COLUMNS = ("waiting", "young", "odd", "entries", "digest")
ROWS = ", ".join(f"{column} bigint" for column in ("bucket", *COLUMNS))
ROW_SCHEMA = pa.schema([(column, pa.int64()) for column in ("bucket", *COLUMNS)])
WALKED_KEYS = (QueueKey.PENDING, QueueKey.PARKED, QueueKey.IN_FLIGHT)


@dataclass(frozen=True, slots=True)
class Digests:
    """The result of comparing the digests of all buckets."""

    differing: list[int]  # buckets to compare entry by entry
    in_queues: int  # number of pending and parked entries
    too_young: int  # number of pending and parked entries that are not ingested yet


@dataclass(frozen=True, slots=True)
class Buckets:
    """A set of buckets, which selects vehicles in Redis and in the lake."""

    numbers: frozenset[int]

    def contain(self, owner: str) -> bool:
        """Whether the owner is in one of these buckets."""
        return _bucket(owner) in self.numbers

    def filter(self, rows: DataFrame) -> DataFrame:
        """Keep the rows whose vehicle (column `vin`) is in one of these buckets."""
        buckets = rows.sparkSession.createDataFrame(pa.table({"bucket": pa.array(self.numbers, pa.int64())}))
        return rows.join(sf.broadcast(buckets), _bucket_of("vin") == buckets["bucket"], "left_semi")


def compare_digests(lake: PinnedLake) -> Digests:
    """Compare digests of the lake's pending entries with digests of the queues. Entries not ingested yet are left out.

    Raises:
        redis.RedisError: Redis is unavailable or refuses.
    """
    walkers = min(parallelism(lake.spark), MAX_WALKERS)
    walk = _walk(lake.settings.redis, walkers, lake.newest_of_node)
    walked = lake.spark.range(0, walkers, 1, walkers).mapInArrow(walk, ROWS)
    digests = _digests_of(lake.entries(), sign=1).unionByName(_digests_of(lake.ended(), sign=-1)).unionByName(walked)
    ended_twice = lake.ended_twice()
    if ended_twice is not None:  # add these entries again, because both of their outcomes were subtracted
        digests = digests.unionByName(_digests_of(ended_twice, sign=1))
    sums = [sf.sum(column).alias(column) for column in COLUMNS if column != "digest"]
    buckets = digests.groupBy("bucket").agg(*sums, sf.bit_xor("digest").alias("digest")).toArrow()
    is_differing = np.logical_or.reduce([buckets[column].to_numpy() != 0 for column in ("odd", "entries", "digest")])
    return Digests(
        differing=buckets["bucket"].to_numpy()[is_differing].tolist(),
        in_queues=int(buckets["waiting"].to_numpy().sum()),
        too_young=int(buckets["young"].to_numpy().sum()),
    )


def _bucket_of(vin: str) -> Column:
    """The bucket of the vehicle in this column, as `_bucket` computes it."""
    return sf.crc32(vin).bitwiseAND(BUCKETS - 1)


def _digests_of(rows: DataFrame, *, sign: int) -> DataFrame:
    """Rows of `ROWS` for these rows of the lake (vin, seq).

    `sign` is 1 for entries and -1 for outcomes. The column `entries` has the number of rows times `-sign`, so its sum over lake
    and queues is 0 if they agree.
    """
    checksum = sf.shiftleft(sf.crc32("vin"), 32).bitwiseOR(sf.crc32(sf.reverse("vin")))  # as `_vehicle_checksum`
    hashed = rows.select(_bucket_of("vin").alias("bucket"), sf.xxhash64(checksum, "seq").alias("digest"))
    counts = [sf.lit(0).cast("bigint").alias(column) for column in ("waiting", "young", "odd")]
    return hashed.groupBy("bucket").agg(*counts, (sf.count("*") * -sign).alias("entries"), sf.bit_xor("digest").alias("digest"))


def _walk(url: str, walkers: int, newest_of_node: dict[int, int]) -> Batches:
    """Make the function for `mapInArrow` that reads the queues and yields rows of `ROWS`.

    Each input row is a walker: its column `id` has the walker's number, from 0 to `walkers` - 1. A walker lists all keys, and
    reads those of its share of the buckets. `newest_of_node` has the newest ingested seq of each recorder.
    """
    newest = np.full(MAX_NODE + 1, -1, np.int64)  # -1: no entry of this recorder is ingested yet
    for node, seq in newest_of_node.items():
        newest[node] = seq

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for walker in batch["id"].to_pylist():
                with connect(url) as redis:
                    sums = _Sums(redis, newest)
                    for page in pages(redis, WALKED_KEYS):
                        sums.add([(owner, queue_key) for owner, queue_key in page if _bucket(owner) % walkers == walker])
                    yield sums.rows()

    return read


class _Sums:
    """The sums of `COLUMNS` over the entries of a walk, by bucket."""

    def __init__(self, redis: Redis, newest: Integers) -> None:
        self._redis = redis
        self._newest = newest  # newest ingested seq, by recorder
        self._seen = SeenKeys()
        self._sums = {column: np.zeros(BUCKETS, np.int64) for column in COLUMNS}

    def add(self, page: Page) -> None:
        """Add the entries of a page of keys, except keys that were read before."""
        are_new = self._seen.add(_hashes(page))
        page = [key for key, is_new in zip(page, are_new, strict=True) if is_new]
        entries = entries_of(page, contents_of(self._redis, page))
        starts = np.flatnonzero(np.diff(entries.of_queue, prepend=-1))  # index of the first entry of each queue that has any
        if not len(starts):
            return
        # Indexing an array of keys with `entries.of_queue` makes an array of entries.
        is_in_flight_key = np.array([queue_key is QueueKey.IN_FLIGHT for _, queue_key in page], np.bool_)
        is_in_flight = is_in_flight_key[entries.of_queue]
        recorders = entries.seqs >> COUNTER_BITS & MAX_NODE
        is_young = entries.seqs > self._newest[recorders]
        is_compared = ~is_in_flight & ~is_young
        vehicle_hashes = hash_long(np.array([_vehicle_checksum(owner) for owner, _ in page], np.uint64), SEED)[entries.of_queue]
        entry_hashes = hash_long(entries.seqs.view(np.uint64), vehicle_hashes)
        digests = np.where(is_compared, entry_hashes, 0).view(np.int64)

        # The entries of each queue are reduced first, then the queues of each bucket: `at` adds repeated indices one by one.
        buckets = np.array([_bucket(owner) for owner, _ in page])[entries.of_queue[starts]]
        flags_of_column = {
            "waiting": ~is_in_flight,
            "young": ~is_in_flight & is_young,
            "odd": entries.disordered | self._flag_strays(page, entries, is_in_flight),
            "entries": is_compared,
        }
        for column, flags in flags_of_column.items():
            np.add.at(self._sums[column], buckets, np.add.reduceat(flags.astype(np.int64), starts))
        np.bitwise_xor.at(self._sums["digest"], buckets, np.bitwise_xor.reduceat(digests, starts))

    def rows(self) -> pa.RecordBatch:
        """Return one row of `ROWS` for each bucket that is not empty."""
        has_entries = np.logical_or.reduce([sums != 0 for sums in self._sums.values()])
        buckets = np.flatnonzero(has_entries)
        columns = [pa.array(self._sums[column][buckets]) for column in COLUMNS]
        return pa.RecordBatch.from_arrays([pa.array(buckets), *columns], schema=ROW_SCHEMA)

    def _flag_strays(self, page: Page, entries: Entries, is_in_flight: Flags) -> Flags:
        """Flag the entries that are in flight without being pending."""
        is_stray = np.zeros(len(is_in_flight), np.bool_)
        indices = np.flatnonzero(is_in_flight)
        pipe = self._redis.pipeline(transaction=False)
        for index in indices.tolist():
            owner, _ = page[entries.of_queue[index]]
            pipe.zscore(keys.pending(owner), int(entries.seqs[index]))
        is_stray[indices] = [valid_reply(score) is None for score in pipe.execute(raise_on_error=False)]
        return is_stray


def _hashes(page: Page) -> Hashes:
    """A hash of each key in the page, from its kind and its owner."""
    kinds = np.array([WALKED_KEYS.index(queue_key) for _, queue_key in page], np.uint64)
    hashes: Hashes = hash_long(kinds, np.array([_vehicle_checksum(owner) for owner, _ in page], np.uint64))
    return hashes


def _bucket(owner: str) -> int:
    return zlib.crc32(owner.encode()) & (BUCKETS - 1)


def _vehicle_checksum(owner: str) -> int:
    """Two checksums of 32 bits as one number: with a single checksum, some of a million vehicles would have the same."""
    return zlib.crc32(owner.encode()) << 32 | zlib.crc32(owner[::-1].encode())


def hash_long(values: Any, seeds: Any) -> Any:
    """Hash 64-bit integers with XXH64, as Spark's `xxhash64` hashes a bigint. Arguments and result are arrays of uint64.

    Source: `XXH64.hashLong` in org.apache.spark.sql.catalyst.expressions, and the definition of XXH64 for inputs of 8 bytes.
    """
    prime_1, prime_2, prime_3, prime_4, prime_5 = (
        np.uint64(prime)
        for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
    )
    length = np.uint64(8)  # bytes of a value
    with np.errstate(over="ignore"):  # the arithmetic is modulo 2**64
        mixed = seeds + prime_5 + length ^ _rotate_left(values * prime_2, 31) * prime_1
        mixed = _rotate_left(mixed, 27) * prime_1 + prime_4
        mixed = (mixed ^ mixed >> np.uint64(33)) * prime_2
        mixed = (mixed ^ mixed >> np.uint64(29)) * prime_3
        return mixed ^ mixed >> np.uint64(32)


def _rotate_left(values: Any, bits: int) -> Any:
    return values << np.uint64(bits) | values >> np.uint64(64 - bits)
