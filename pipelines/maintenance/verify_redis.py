"""Reads entries of the queues as rows: all of them in one walk, or some of them again. Runs on Spark workers."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from redis import Redis
from redis.exceptions import RedisError

from manifold.contracts import keys
from manifold.queues import DELETE_KEYS, is_corrupt
from manifold.runtime.redis import connect

KEYS_PER_PAGE = 2000
ENTRIES_PER_FLUSH = 5000

log = structlog.get_logger(__name__)
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Page = list[tuple[str, "QueueKey"]]  # owner and kind of each key
Batches = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


class QueueKey(StrEnum):
    """The keys of an owner that can hold an entry; the value is the key's last word."""

    PENDING = "pending"
    PARKED = "parked"
    DONE = "done"  # ended recently
    IN_FLIGHT = "inflight"


KEY_OF = {
    QueueKey.PENDING: keys.pending,
    QueueKey.PARKED: keys.parked,
    QueueKey.DONE: keys.done,
    QueueKey.IN_FLIGHT: keys.inflight,
}


class Difference(StrEnum):
    """How queues and lake disagree about an entry."""

    MISSING = "missing"  # pending in the lake; the queues neither have it nor remember that it ended
    UNRECORDED = "unrecorded"  # the queues remember that it ended; neither the lake nor anything on its way there does
    ENDED = "ended"  # has an outcome in the lake, but still waits in the queues
    EXTRA = "extra"  # waits in the queues, but the lake lacks it although it has younger ones of that recorder
    OVERDUE = "overdue"  # waits in both past its retention: the next garbage collection, or a claim, ends it
    DISORDERED = "disordered"  # precedes an older entry of the same queue
    STRAY = "stray"  # in flight without being pending


ROWS = "vin string, seq bigint, queue_key string, disordered boolean"
ROW_SCHEMA = pa.schema([("vin", pa.string()), ("seq", pa.int64()), ("queue_key", pa.string()), ("disordered", pa.bool_())])


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a page of keys, grouped by key."""

    seqs: Integers
    of_queue: Integers  # index in the page of the key that holds it
    disordered: Flags  # precedes an older one


def walk(url: str, of_whom: Callable[[str], bool]) -> Batches:
    """Make the function that yields rows of these owners' queues. It sees every entry that is there during the whole walk."""

    def read(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with connect(url) as redis:
            for page in pages(redis, QueueKey):
                mine = [key for key in page if of_whom(key[0])]
                yield _rows(mine, replies_to(redis, mine))

    return read


def recheck(url: str) -> Batches:
    """Keep the rows (difference, vin, seq, …) whose difference still exists, as far as the queues can tell."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with connect(url) as redis:
            for batch in batches:
                for start in range(0, batch.num_rows, ENTRIES_PER_FLUSH):
                    some = batch.slice(start, ENTRIES_PER_FLUSH)
                    yield some.filter(pa.array(_still_exist(redis, some), pa.bool_()))

    return read


def pages(redis: Redis, kinds: Iterable[QueueKey]) -> Iterator[Page]:
    """Yield the owner and kind of every key of these kinds, in pages; a key may come twice."""
    queue_keys = {queue_key.value: queue_key for queue_key in kinds}
    page: Page = []
    for raw in redis.scan_iter(match=f"{keys.OF_OWNERS}*", count=KEYS_PER_PAGE):
        owner, word = keys.owner_of(raw.decode())
        if word in queue_keys:
            page.append((owner, queue_keys[word]))
        if len(page) >= KEYS_PER_PAGE:
            yield page
            page = []
    yield page


def replies_to(redis: Redis, page: Page) -> list[Any]:
    """The content of each key: members, a value, nothing, or the error that Redis returned."""
    pipe = redis.pipeline(transaction=False)
    for owner, queue_key in page:
        if queue_key is QueueKey.IN_FLIGHT:
            pipe.hget(keys.inflight(owner), "seq")
        else:
            pipe.zrange(KEY_OF[queue_key](owner), 0, -1)
    return pipe.execute(raise_on_error=False)


def entries_of(page: Page, replies: list[Any]) -> Entries:
    """The entries in these keys, as columns: as Python rows, each would cost several microseconds."""
    held = [reply if isinstance(reply, list) else [] if reply is None else [reply] for reply in replies]
    has_error = any(isinstance(reply, RedisError) for reply in replies)
    seqs = None if has_error else _as_integers(list(chain.from_iterable(held)))
    if seqs is None:  # at least one key is corrupt: read them one by one
        held = [_seqs(reply, owner, queue_key) for (owner, queue_key), reply in zip(page, replies, strict=True)]
        seqs = pa.array(list(chain.from_iterable(held)), pa.int64())
    numbers = seqs.to_numpy()
    of_queue = np.repeat(np.arange(len(page)), [len(each) for each in held])
    is_done = np.array([queue_key is QueueKey.DONE for _, queue_key in page], np.bool_)
    return Entries(numbers, of_queue, _disordered(numbers, of_queue, is_done))


def _rows(page: Page, replies: list[Any]) -> pa.RecordBatch:
    entries = entries_of(page, replies)
    columns = ([owner for owner, _ in page], [queue_key.value for _, queue_key in page])
    owners, kinds = (pa.array(column, pa.string()).take(pa.array(entries.of_queue)) for column in columns)
    arrays = [owners, pa.array(entries.seqs), kinds, pa.array(entries.disordered)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


def _as_integers(held: list[bytes]) -> pa.Array | None:
    """The members as seqs; None if any of them is not a seq."""
    try:
        words = pa.array(held, pa.binary()).cast(pa.string())
        return words.cast(pa.int64()) if pc.all(pc.ascii_is_decimal(words), min_count=0).as_py() else None
    except pa.ArrowInvalid:
        return None


def _disordered(seqs: Integers, of_queue: Integers, is_done: Flags) -> Flags:
    """Flag the entries that precede an older entry of their queue. Entries that ended recently have no order."""
    found = np.zeros(len(seqs), np.bool_)
    falls = (seqs[1:] < seqs[:-1]) & (of_queue[1:] == of_queue[:-1])
    for queue in np.unique(of_queue[1:][falls]):
        if not is_done[queue]:
            first, end = np.searchsorted(of_queue, [queue, queue + 1])
            least_behind = np.minimum.accumulate(seqs[first:end][::-1])[::-1]
            found[first : end - 1] = seqs[first : end - 1] > least_behind[1:]
    return found


def _seqs(reply: Any, owner: str, queue_key: QueueKey) -> list[int]:
    """The seqs in a reply, without invalid members, so that a corrupt key does not keep others from being compared."""
    members = sound(reply)
    held = [members] if queue_key is QueueKey.IN_FLIGHT else members or []
    seqs = _numbers(held)
    if is_corrupt(reply) or len(seqs) < len(held) - held.count(None):
        log.error("corrupt key in redis", key=KEY_OF[queue_key](owner), remedy=DELETE_KEYS)
    return seqs


def _numbers(held: Iterable[bytes | None]) -> list[int]:
    return [int(one) for one in held if one is not None and one.isdigit()]


def sound(reply: Any) -> Any:
    """The reply, or None for a key of another type; any other Redis error is raised."""
    if isinstance(reply, RedisError) and not is_corrupt(reply):
        raise reply
    return None if is_corrupt(reply) else reply


def _still_exist(redis: Redis, some: pa.RecordBatch) -> list[bool]:
    pairs = list(zip(some["difference"].to_pylist(), some["vin"].to_pylist(), some["seq"].to_pylist(), strict=True))
    pipe = redis.pipeline(transaction=False)
    for difference, vin, seq in pairs:
        pipe.zscore(keys.pending(vin), seq)
        pipe.zscore(keys.parked(vin), seq)
        pipe.zscore(keys.done(vin), seq)
        pipe.hget(keys.inflight(vin), "seq")
        pipe.zrange(keys.pending(vin), 0, -1 if difference == Difference.DISORDERED else 0)
    replies = [sound(reply) for reply in pipe.execute(raise_on_error=False)]
    return [_still_exists(Difference(d), seq, *replies[5 * n : 5 * n + 5]) for n, (d, _, seq) in enumerate(pairs)]


def _still_exists(
    difference: Difference,
    seq: int,
    pending: float | None,
    parked: float | None,
    done: float | None,
    inflight: bytes | None,
    queue: list[bytes] | None,
) -> bool:
    match difference:
        case Difference.MISSING:
            return pending is None and parked is None and done is None
        case Difference.UNRECORDED:
            return done is not None
        case Difference.STRAY:
            return pending is None and _numbers([inflight]) == [seq]
        case Difference.DISORDERED:
            seqs = _numbers(queue or ())
            return seq in seqs and any(seq > later for later in seqs[seqs.index(seq) + 1 :])
        case _:
            return pending is not None or parked is not None
