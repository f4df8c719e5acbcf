"""Reads the entries of the queues as rows, all in one walk, and rechecks differences. Runs on Spark workers."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any, NamedTuple

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
RECHECK_BATCH_SIZE = 5000  # differences per pipeline

log = structlog.get_logger(__name__)
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Page = list[tuple[str, "QueueKey"]]  # owner and kind of each key
Batches = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


class QueueKey(StrEnum):
    """The keys of an owner that can hold an entry; the value is the key's last word."""

    PENDING = "pending"
    PARKED = "parked"
    DONE = "done"  # entries that ended recently
    IN_FLIGHT = "inflight"


KEY_OF = {
    QueueKey.PENDING: keys.pending,
    QueueKey.PARKED: keys.parked,
    QueueKey.DONE: keys.done,
    QueueKey.IN_FLIGHT: keys.inflight,
}


class Difference(StrEnum):
    """How queues and lake disagree about an entry."""

    MISSING = "missing"  # pending in the lake; the queues neither have the entry nor remember that it ended
    UNRECORDED = "unrecorded"  # the queues remember that the entry ended; no outcome is in the lake or on its way there
    ENDED = "ended"  # the entry has an outcome in the lake, but still waits in the queues
    EXTRA = "extra"  # the entry waits in the queues; the lake lacks it, but has younger entries of the same recorder
    OVERDUE = "overdue"  # the entry waits past its retention; the next garbage collection, or a claim, ends it
    DISORDERED = "disordered"  # the entry precedes an older entry of the same queue
    STRAY = "stray"  # the entry is in flight, but not pending


ROWS = "vin string, seq bigint, queue_key string, disordered boolean"
ROW_SCHEMA = pa.schema([("vin", pa.string()), ("seq", pa.int64()), ("queue_key", pa.string()), ("disordered", pa.bool_())])


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a page of keys, grouped by key."""

    seqs: Integers
    of_queue: Integers  # for each entry, the index in the page of the key that holds it
    disordered: Flags  # for each entry, whether it precedes an older entry of the same key


def walk(url: str, is_selected: Callable[[str], bool]) -> Batches:
    """Make the function that yields rows of `ROWS` for the queues of selected owners.

    The walk yields every entry that is in a queue during the whole walk, and may yield entries that are there for a part of it.
    """

    def read(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # the rows that go in only start a task
        with connect(url) as redis:
            for page in pages(redis, QueueKey):
                selected = [(owner, queue_key) for owner, queue_key in page if is_selected(owner)]
                yield _rows(selected, contents_of(redis, selected))

    return read


def recheck(url: str) -> Batches:
    """Make the function that keeps the rows (difference, vin, seq, …) whose difference still exists in the queues."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with connect(url) as redis:
            for batch in batches:
                for start in range(0, batch.num_rows, RECHECK_BATCH_SIZE):
                    differences = batch.slice(start, RECHECK_BATCH_SIZE)
                    yield differences.filter(pa.array(_flag_existing(redis, differences), pa.bool_()))

    return read


def pages(redis: Redis, kinds: Iterable[QueueKey]) -> Iterator[Page]:
    """Yield every key of these kinds, as its owner and kind, in pages. A key that SCAN returns twice is yielded twice."""
    kind_of_word = {queue_key.value: queue_key for queue_key in kinds}
    page: Page = []
    for key in redis.scan_iter(match=f"{keys.OF_OWNERS}*", count=KEYS_PER_PAGE):
        owner, last_word = keys.owner_of(key.decode())
        if last_word in kind_of_word:
            page.append((owner, kind_of_word[last_word]))
        if len(page) >= KEYS_PER_PAGE:
            yield page
            page = []
    yield page


def contents_of(redis: Redis, page: Page) -> list[Any]:
    """Read the content of each key.

    A content is the list of a queue's members, the entry in flight as bytes, None if there is no such key, or the error that
    Redis returned.
    """
    pipe = redis.pipeline(transaction=False)
    for owner, queue_key in page:
        if queue_key is QueueKey.IN_FLIGHT:
            pipe.hget(keys.inflight(owner), "seq")
        else:
            pipe.zrange(KEY_OF[queue_key](owner), 0, -1)
    return pipe.execute(raise_on_error=False)


def entries_of(page: Page, contents: list[Any]) -> Entries:
    """The entries in the keys of a page, whose contents are those of `contents_of`.

    The result has arrays, because a Python object for each entry would cost several microseconds.
    """
    members_of_keys = [_members(content) for content in contents]
    sizes = [len(members) for members in members_of_keys]
    has_error = any(isinstance(content, RedisError) for content in contents)
    seqs = None if has_error else _parse_if_all_valid(list(chain.from_iterable(members_of_keys)))
    if seqs is None:  # at least one key is corrupt, so each key is parsed by itself
        seqs_of_keys = [
            _valid_seqs(content, owner, queue_key) for (owner, queue_key), content in zip(page, contents, strict=True)
        ]
        sizes = [len(key_seqs) for key_seqs in seqs_of_keys]
        seqs = pa.array(list(chain.from_iterable(seqs_of_keys)), pa.int64())
    seq_array = seqs.to_numpy()
    of_queue = np.repeat(np.arange(len(page)), sizes)
    is_done = np.array([queue_key is QueueKey.DONE for _, queue_key in page], np.bool_)
    return Entries(seq_array, of_queue, _disordered(seq_array, of_queue, is_done))


def _members(content: Any) -> list[Any]:
    """The members in the content of a key, each of which should be a seq. The entry in flight is a single member."""
    if isinstance(content, list):
        return content
    return [] if content is None else [content]


def _rows(page: Page, contents: list[Any]) -> pa.RecordBatch:
    """Rows of `ROWS` for the entries in the keys of a page."""
    entries = entries_of(page, contents)
    of_queue = pa.array(entries.of_queue)
    owners = pa.array([owner for owner, _ in page], pa.string()).take(of_queue)
    kinds = pa.array([queue_key.value for _, queue_key in page], pa.string()).take(of_queue)
    arrays = [owners, pa.array(entries.seqs), kinds, pa.array(entries.disordered)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


def _parse_if_all_valid(members: list[bytes]) -> pa.Array | None:
    """The members as seqs; None if any member is not a seq."""
    try:
        texts = pa.array(members, pa.binary()).cast(pa.string())
        are_decimal = pc.all(pc.ascii_is_decimal(texts), min_count=0).as_py()  # with `min_count=0`, true if there is no member
        return texts.cast(pa.int64()) if are_decimal else None
    except pa.ArrowInvalid:
        return None


def _disordered(seqs: Integers, of_queue: Integers, is_done: Flags) -> Flags:
    """Flag the entries that precede an older entry of their queue. Recently ended entries are not flagged: they have no order."""
    is_disordered = np.zeros(len(seqs), np.bool_)
    is_below_previous = (seqs[1:] < seqs[:-1]) & (of_queue[1:] == of_queue[:-1])
    queues_out_of_order = np.unique(of_queue[1:][is_below_previous])
    for queue in queues_out_of_order:
        if not is_done[queue]:
            first, end = np.searchsorted(of_queue, [queue, queue + 1])  # `of_queue` is sorted
            queue_seqs = seqs[first:end]
            min_from_here = np.minimum.accumulate(queue_seqs[::-1])[::-1]  # the lowest seq from each entry to the queue's end
            is_disordered[first : end - 1] = queue_seqs[:-1] > min_from_here[1:]
    return is_disordered


def _valid_seqs(content: Any, owner: str, queue_key: QueueKey) -> list[int]:
    """The seqs in a key's content. Invalid members are logged and left out, so that the other keys can still be compared."""
    members = _members(valid_reply(content))
    seqs = _parse_seqs(members)
    has_invalid_members = len(seqs) < len(members)
    if is_corrupt(content) or has_invalid_members:
        log.error("corrupt key in redis; only its valid entries are compared", key=KEY_OF[queue_key](owner), remedy=DELETE_KEYS)
    return seqs


def _parse_seqs(members: Iterable[bytes]) -> list[int]:
    return [int(member) for member in members if member.isdigit()]


def valid_reply(reply: Any) -> Any:
    """Return the reply, or None if the key has another type. Raise any other Redis error."""
    if is_corrupt(reply):
        return None
    if isinstance(reply, RedisError):
        raise reply
    return reply


class _EntryInRedis(NamedTuple):
    """What Redis now has for an entry: its scores in three keys (None: the key lacks it), and its vehicle's other entries."""

    pending: float | None
    parked: float | None
    done: float | None
    in_flight: bytes | None  # the seq that is in flight
    queue: list[bytes] | None  # members of the pending queue: all for a disordered entry, else only the first (not used)


def _flag_existing(redis: Redis, differences: pa.RecordBatch) -> list[bool]:
    """Look up in Redis whether the difference of each row still exists."""
    columns = [differences[name].to_pylist() for name in ("difference", "vin", "seq")]
    rows = list(zip(*columns, strict=True))
    pipe = redis.pipeline(transaction=False)
    for difference, vin, seq in rows:  # one command for each field of `_EntryInRedis`
        pipe.zscore(keys.pending(vin), seq)
        pipe.zscore(keys.parked(vin), seq)
        pipe.zscore(keys.done(vin), seq)
        pipe.hget(keys.inflight(vin), "seq")
        last_index = -1 if difference == Difference.DISORDERED else 0  # only its check needs the whole queue
        pipe.zrange(keys.pending(vin), 0, last_index)
    replies = [valid_reply(reply) for reply in pipe.execute(raise_on_error=False)]
    fields = len(_EntryInRedis._fields)
    entries = [_EntryInRedis(*replies[start : start + fields]) for start in range(0, len(replies), fields)]
    return [_exists(Difference(difference), seq, entry) for (difference, _, seq), entry in zip(rows, entries, strict=True)]


def _exists(difference: Difference, seq: int, entry: _EntryInRedis) -> bool:
    """Whether the entry with this seq still has the difference."""
    match difference:
        case Difference.MISSING:
            return entry.pending is None and entry.parked is None and entry.done is None
        case Difference.UNRECORDED:
            return entry.done is not None
        case Difference.STRAY:
            return entry.pending is None and entry.in_flight is not None and _parse_seqs([entry.in_flight]) == [seq]
        case Difference.DISORDERED:
            seqs = _parse_seqs(entry.queue or ())
            if seq not in seqs:
                return False
            later_seqs = seqs[seqs.index(seq) + 1 :]
            return any(seq > later_seq for later_seq in later_seqs)
        case _:  # ended, extra, overdue: the difference is that the entry waits
            return entry.pending is not None or entry.parked is not None
