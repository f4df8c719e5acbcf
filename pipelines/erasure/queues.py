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
DATA_PATTERN = keys.data("*")
TRIGGER_PREFIX = keys.trigger(0).removesuffix("0")
TRIGGER_PATTERN = f"{TRIGGER_PREFIX}*"

Record = tuple[bytes, dict[bytes, bytes]]  # id and fields of a stream's record


def erase_from_queues(redis: Redis, settings: Settings, named: Named) -> int:
    """Remove the entries and messages that the vehicle's queues accepted before the seq of `named`; return their number.

    No removed entry is sent any more. Dispatchers may run at the same time. Messages that were sent to the vehicle and are not
    acknowledged stay with the broker.
    """
    policy = Policy.of(settings)
    vin = named.vin
    erased = Loader(redis, policy).erase(vin, named.before) + EcqLoader(redis, policy).erase(vin, named.before)
    _, ecq_inflight, *_ = keys.ecq_keys(vin)
    for queue, inflight in ((vin, keys.inflight(vin)), (ecq_queue(vin), ecq_inflight)):
        if not redis.exists(inflight):  # nothing is in flight, so no deadline is needed
            redis.zrem(keys.deadlines(keys.shard_of(queue, policy.wake_shards)), queue)
    for record_id, _ in _outcomes(redis, named):
        redis.xdel(keys.OUTCOMES, record_id)
    for shard in range(policy.wake_shards):
        for record_id, fields in _wake_records(redis, shard, named):
            other_queues = [queue for queue in fields[b"owners"].split(b"\n") if owner_of_queue(queue.decode()) != vin]
            if other_queues:
                redis.xadd(keys.wake(shard), cast(Any, fields | {b"owners": b"\n".join(other_queues)}))
            redis.xdel(keys.wake(shard), record_id)
    if any(named.is_in(value) for value in redis.hgetall(keys.QUEUE_STATS).values()):
        redis.delete(keys.QUEUE_STATS)  # the dispatcher's next walk of the queues writes them again
    erase_data(redis, named)
    return erased


def erase_data(redis: Redis, named: Named) -> None:
    """Remove the payloads and triggers that name the vehicle, and the notes of entries that wait for data.

    Notes of the vehicle's own entries are removed, and all notes of entries that wait for data whose data_id names the vehicle.

    As long as the lake has a payload, a dispatcher may load the payload into Redis again for another vehicle. Other vehicles of
    a removed trigger still get their entries, because a dispatcher reads a trigger that Redis lacks from the lake.
    """
    for key, notes in _waiting_notes(redis, named):
        redis.srem(key, *notes)
    for data_id, since in _parked_data_ids(redis, named):
        redis.zrem(keys.PARKED, data_id)
        if redis.exists(keys.waiting_for(data_id.decode())):  # an entry was parked since, so the data_id must stay
            redis.zadd(keys.PARKED, {data_id: since}, nx=True)
    for data_or_trigger in chain(_data_keys(redis, named), _trigger_keys(redis, named)):
        redis.delete(data_or_trigger)


def prove_queues(redis: Redis, named: Named) -> list[Found]:
    """Search Redis for what was accepted before the seq `named.before` and still names the vehicle."""
    note_counts: Counter[str] = Counter()
    for key, notes in _waiting_notes(redis, named):
        note_counts[key] += len(notes)
    found = [Found(key, "members", count) for key, count in note_counts.items()]
    ecq_pending, ecq_inflight, _, _, ecq_delivered, *_ = keys.ecq_keys(named.vin)
    for queue in (keys.pending(named.vin), keys.parked(named.vin), keys.done(named.vin), ecq_pending, ecq_delivered):
        old_seqs = [seq for seq in cast(list[bytes], redis.zrange(queue, 0, -1)) if int(seq) < named.before]
        if old_seqs:
            found.append(Found(queue, "entries", len(old_seqs)))
    for inflight in (keys.inflight(named.vin), ecq_inflight):
        seq = redis.hget(inflight, "seq")
        if seq and int(cast(bytes, seq)) < named.before:
            found.append(Found(inflight, "entry"))
    counts = (
        (keys.OUTCOMES, "outcomes", sum(1 for _ in _outcomes(redis, named))),
        (keys.PARKED, "data ids", sum(1 for _ in _parked_data_ids(redis, named))),
        (DATA_PATTERN, "payloads", sum(1 for _ in _data_keys(redis, named))),
        (TRIGGER_PATTERN, "triggers", sum(1 for _ in _trigger_keys(redis, named))),
    )
    return found + [Found(key, what, count) for key, what, count in counts if count]


def _waiting_notes(redis: Redis, named: Named) -> Iterator[tuple[str, list[bytes]]]:
    """Yield (key, notes) of the entries that wait for data, in pages. Only notes of entries before `named.before`.

    A note is a member of the set `key`: owner and seq. If the data_id names the vehicle, the notes of all owners are yielded,
    else only the vehicle's.
    """
    for data_id, _ in _parked(redis):
        key = keys.waiting_for(data_id.decode())
        of_all_owners = named.is_in(data_id)
        pattern = "*" if of_all_owners else f"{_glob_escaped(named.vin)}*"
        members = redis.sscan_iter(key, match=pattern, count=MEMBERS_PER_PAGE)
        of_owner = (note for note in members if of_all_owners or _owner(note) == named.vin.encode())
        old = (note for note in of_owner if _is_old(note, named))
        while page := list(islice(old, MEMBERS_PER_PAGE)):
            yield key, page


def _parked_data_ids(redis: Redis, named: Named) -> Iterator[tuple[bytes, float]]:
    """Yield (data_id, instant since when entries wait for it) if the data_id names the vehicle and only old entries wait."""
    for data_id, since in _parked(redis):
        if named.is_in(data_id):
            members = redis.sscan_iter(keys.waiting_for(data_id.decode()), count=MEMBERS_PER_PAGE)
            if all(_is_old(member, named) for member in members):
                yield data_id, since


def _parked(redis: Redis) -> Iterator[tuple[bytes, float]]:
    """Yield (data_id, instant since when entries wait for it) for all data for which entries wait."""
    return cast(Iterator[tuple[bytes, float]], redis.zscan_iter(keys.PARKED, count=MEMBERS_PER_PAGE))


def _owner(note: bytes) -> bytes:
    return note.partition(b" ")[0]


def _is_old(note: bytes, named: Named) -> bool:
    _, _, seq = note.partition(b" ")
    return not seq or int(seq) < named.before  # notes of an earlier release have no seq


def _glob_escaped(vin: str) -> str:
    """Escape the characters that have a meaning in Redis' patterns."""
    return "".join(f"\\{char}" if char in "*?[]^\\" else char for char in vin)


def _outcomes(redis: Redis, named: Named) -> Iterator[Record]:
    """Yield the stream records with outcomes of the vehicle's entries before `named.before`."""
    for record_id, fields in _records(redis, keys.OUTCOMES):
        entry = _entry_of(fields.get(b"o", b""))
        if entry is None:
            continue
        owner, seq = entry
        if owner == named.vin and seq < named.before:
            yield record_id, fields


def _entry_of(payload: bytes) -> tuple[str, int] | None:
    """The owner and seq of the entry to which an outcome or acknowledgement belongs; None if the payload is neither."""
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


def _wake_records(redis: Redis, shard: int, named: Named) -> Iterator[Record]:
    """Yield the records of a wake stream that name a queue of the vehicle."""
    queues = {named.vin.encode(), ecq_queue(named.vin).encode()}
    for record_id, fields in _records(redis, keys.wake(shard)):
        if queues.intersection(fields.get(b"owners", b"").split(b"\n")):
            yield record_id, fields


def _records(redis: Redis, stream: str) -> Iterator[Record]:
    """Yield all records of a stream, oldest first."""
    start = "-"
    while page := cast(list[Record], redis.xrange(stream, start, "+", count=RECORDS_PER_PAGE)):
        yield from page
        last_id, _ = page[-1]
        start = f"({last_id.decode()}"  # exclusive


def _data_keys(redis: Redis, named: Named) -> Iterator[bytes]:
    """Yield the keys of payloads whose data_id or content names the vehicle."""
    for key in redis.scan_iter(match=DATA_PATTERN, count=MEMBERS_PER_PAGE):
        data_id = key.removeprefix(keys.data("").encode())
        if named.is_in(data_id) or (named.opaque and named.is_in(redis.get(key) or b"")):
            yield key


def _trigger_keys(redis: Redis, named: Named) -> Iterator[bytes]:
    """Yield the keys of triggers before `named.before` whose request_id or data_id names the vehicle."""
    all_keys = cast(Iterator[bytes], redis.scan_iter(match=TRIGGER_PATTERN, count=MEMBERS_PER_PAGE))
    old_keys = (key for key in all_keys if _is_old_trigger(key, named))
    while page := list(islice(old_keys, MEMBERS_PER_PAGE)):
        with redis.pipeline(transaction=False) as pipe:
            for key in page:
                pipe.hvals(key)
            replies = pipe.execute(raise_on_error=False)
        for key, reply in zip(page, replies, strict=True):
            is_hash = isinstance(reply, list)  # otherwise the reply is an error, because the key has another type
            if is_hash and any(named.is_in(value) for value in reply):
                yield key


def _is_old_trigger(key: bytes, named: Named) -> bool:
    seq = key.removeprefix(TRIGGER_PREFIX.encode())
    return seq.isdigit() and int(seq) < named.before
