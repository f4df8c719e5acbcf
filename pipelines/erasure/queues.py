"""Erases a vehicle from Redis: its own keys, and its name in shared keys."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, cast

from redis import Redis

from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.outcomes import OutcomeRecord
from manifold.contracts.queue_names import ecq_queue, owner_of_queue
from manifold.queues import EcqLoader, Loader, Policy
from manifold.settings import Settings
from pipelines.erasure.files import Found
from pipelines.erasure.names import Named

RECORDS_PER_PAGE = 5000
MEMBERS_PER_PAGE = 1000
DATA = keys.data("*")
TRIGGERS = f"{keys.trigger(0)[:-1]}*"

Record = tuple[bytes, dict[bytes, bytes]]


def erase_from_queues(redis: Redis, settings: Settings, named: Named) -> int:
    """Remove what the vehicle's queues accepted before the seq of `named`; return the number of entries. None is sent any more.

    Dispatchers may run. Messages that were sent to the vehicle and are not acknowledged stay with the broker.
    """
    policy, vin = Policy.of(settings), named.vin
    gone = Loader(redis, policy).erase(vin, named.before) + EcqLoader(redis, policy).erase(vin, named.before)
    for queue, inflight in ((vin, keys.inflight(vin)), (ecq_queue(vin), keys.ecq_keys(vin)[1])):
        if not redis.exists(inflight):
            redis.zrem(keys.deadlines(keys.shard_of(queue, policy.wake_shards)), queue)
    for record_id, _ in _outcomes(redis, named):
        redis.xdel(keys.OUTCOMES, record_id)
    for shard in range(policy.wake_shards):
        for record_id, fields in _wakes(redis, shard, named):
            others = [queue for queue in fields[b"owners"].split(b"\n") if owner_of_queue(queue.decode()) != vin]
            if others:
                redis.xadd(keys.wake(shard), cast(Any, fields | {b"owners": b"\n".join(others)}))
            redis.xdel(keys.wake(shard), record_id)
    if any(named.is_in(value) for value in redis.hgetall(keys.QUEUE_STATS).values()):
        redis.delete(keys.QUEUE_STATS)  # the next statistics walk counts again
    erase_data(redis, named)
    return gone


def erase_data(redis: Redis, named: Named) -> None:
    """Remove payloads and triggers that name the vehicle, and notes of entries waiting for data (its own, or under its name).

    A dispatcher may put data back for another vehicle while the lake has it, and just afterwards if it was being read then.
    Other vehicles of a removed trigger still get their entry: a dispatcher that misses the trigger here reads it from the lake.
    """
    for key, notes in _notes(redis, named):
        redis.srem(key, *notes)
    for data_id, since in _waited_for(redis, named):
        redis.zrem(keys.PARKED, data_id)
        if redis.exists(keys.waiting_for(data_id.decode())):  # an entry was parked in the meantime
            redis.zadd(keys.PARKED, {data_id: since}, nx=True)
    for key_of_data in chain(_data(redis, named), _triggers(redis, named)):
        redis.delete(key_of_data)


def prove_queues(redis: Redis, named: Named) -> list[Found]:
    """Check the erasure: find what Redis still holds of the vehicle that was accepted before the seq `named.before`."""
    notes: Counter[str] = Counter()
    for key, some in _notes(redis, named):
        notes[key] += len(some)
    found = [Found(key, "members", count) for key, count in notes.items()]
    ecq_pending, ecq_inflight, _, _, ecq_delivered, *_ = keys.ecq_keys(named.vin)
    for queue in (keys.pending(named.vin), keys.parked(named.vin), keys.done(named.vin), ecq_pending, ecq_delivered):
        old = [seq for seq in cast(list[bytes], redis.zrange(queue, 0, -1)) if int(seq) < named.before]
        found += [Found(queue, "entries", len(old))] if old else []
    for inflight in (keys.inflight(named.vin), ecq_inflight):
        held = redis.hget(inflight, "seq")
        found += [Found(inflight, "entry")] if held and int(cast(bytes, held)) < named.before else []
    counts = (
        (keys.OUTCOMES, "outcomes", sum(1 for _ in _outcomes(redis, named))),
        (keys.PARKED, "data ids", sum(1 for _ in _waited_for(redis, named))),
        (DATA, "payloads", sum(1 for _ in _data(redis, named))),
        (TRIGGERS, "triggers", sum(1 for _ in _triggers(redis, named))),
    )
    return found + [Found(key, what, count) for key, what, count in counts if count]


def _notes(redis: Redis, named: Named) -> Iterator[tuple[str, list[bytes]]]:
    """Yield sets of entries that wait for data, with pages of old members: the vehicle's, or all if the data id names it."""
    for data_id, _ in _parked(redis):
        key, whole = keys.waiting_for(data_id.decode()), named.is_in(data_id)
        members = redis.sscan_iter(key, match="*" if whole else f"{_escaped(named.vin)}*", count=MEMBERS_PER_PAGE)
        old = (m for m in members if (whole or _owner(m) == named.vin.encode()) and _is_old(m, named))
        while page := list(islice(old, MEMBERS_PER_PAGE)):
            yield key, page


def _waited_for(redis: Redis, named: Named) -> Iterator[tuple[bytes, float]]:
    """Yield the data ids that name the vehicle and for which only old entries wait, each with the time since when they wait."""
    for data_id, since in _parked(redis):
        if named.is_in(data_id):
            members = redis.sscan_iter(keys.waiting_for(data_id.decode()), count=MEMBERS_PER_PAGE)
            if all(_is_old(member, named) for member in members):
                yield data_id, since


def _parked(redis: Redis) -> Iterator[tuple[bytes, float]]:
    return cast(Iterator[tuple[bytes, float]], redis.zscan_iter(keys.PARKED, count=MEMBERS_PER_PAGE))


def _owner(note: bytes) -> bytes:
    return note.partition(b" ")[0]


def _is_old(note: bytes, named: Named) -> bool:
    seq = note.partition(b" ")[2]
    return not seq or int(seq) < named.before  # an earlier version wrote no seq


def _escaped(vin: str) -> str:
    return "".join(f"\\{c}" if c in "*?[]^\\" else c for c in vin)


def _outcomes(redis: Redis, named: Named) -> Iterator[Record]:
    for record in _records(redis, keys.OUTCOMES):
        entry = _entry_of(record[1].get(b"o", b""))
        if entry is not None and entry[0] == named.vin and entry[1] < named.before:
            yield record


def _entry_of(payload: bytes) -> tuple[str, int] | None:
    """The owner and seq of the entry that an outcome or acknowledgement names; None if it is neither."""
    try:
        record = OutcomeRecord.from_wire(payload)
    except ValueError:
        pass
    else:
        return record.vin, record.seq
    try:
        acked = EcqAck.from_wire(payload)
    except ValueError:
        return None
    return acked.client_id, acked.seq


def _wakes(redis: Redis, shard: int, named: Named) -> Iterator[Record]:
    its_own = {named.vin.encode(), ecq_queue(named.vin).encode()}
    for record in _records(redis, keys.wake(shard)):
        if its_own.intersection(record[1].get(b"owners", b"").split(b"\n")):
            yield record


def _records(redis: Redis, stream: str) -> Iterator[Record]:
    start = "-"
    while page := cast(list[Record], redis.xrange(stream, start, "+", count=RECORDS_PER_PAGE)):
        yield from page
        start = f"({page[-1][0].decode()}"


def _data(redis: Redis, named: Named) -> Iterator[bytes]:
    """Yield the keys of payloads that name the vehicle in their data id or content."""
    for key in redis.scan_iter(match=DATA, count=MEMBERS_PER_PAGE):
        if named.is_in(key.removeprefix(keys.data("").encode())) or (named.opaque and named.is_in(redis.get(key) or b"")):
            yield key


def _triggers(redis: Redis, named: Named) -> Iterator[bytes]:
    """Yield the keys of old triggers whose request_id or data_id names the vehicle."""
    prefix = TRIGGERS[:-1].encode()
    walked = cast(Iterator[bytes], redis.scan_iter(match=TRIGGERS, count=MEMBERS_PER_PAGE))
    old = (key for key in walked if (seq := key.removeprefix(prefix)).isdigit() and int(seq) < named.before)
    while page := list(islice(old, MEMBERS_PER_PAGE)):
        with redis.pipeline(transaction=False) as asked:
            for key in page:
                asked.hvals(key)
            replies = asked.execute(raise_on_error=False)  # a key of another type is not a trigger
        for key, reply in zip(page, replies, strict=True):
            if isinstance(reply, list) and any(named.is_in(value) for value in reply):
                yield key
