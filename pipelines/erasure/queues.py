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
from pipelines.erasure.names import ErasedVehicle

RECORDS_PER_PAGE = 5000
MEMBERS_PER_PAGE = 1000
DATA_PATTERN = keys.data("*")
TRIGGER_PREFIX = keys.trigger(0).removesuffix("0")
TRIGGER_PATTERN = f"{TRIGGER_PREFIX}*"

Record = tuple[bytes, dict[bytes, bytes]]  # id and fields of a stream's record


def erase_from_queues(redis: Redis, settings: Settings, vehicle: ErasedVehicle) -> int:
    """Remove the entries and messages before `vehicle.before_seq` from the vehicle's queues; return their number.

    No removed entry is sent any more. Dispatchers may run at the same time. Messages that were sent to the vehicle and are not
    acknowledged stay with the broker.
    """
    policy = Policy.of(settings)
    vin = vehicle.vin
    erased = Loader(redis, policy).erase(vin, vehicle.before_seq) + EcqLoader(redis, policy).erase(vin, vehicle.before_seq)
    for queue, inflight in ((vin, keys.inflight(vin)), (ecq_queue(vin), keys.ecq_inflight(vin))):
        if not redis.exists(inflight):  # nothing is in flight, so no deadline is needed
            redis.zrem(keys.deadlines(keys.shard_of(queue, policy.wake_shards)), queue)
    for record_id, _ in _outcomes(redis, vehicle):
        redis.xdel(keys.OUTCOMES, record_id)
    for shard in range(policy.wake_shards):
        _erase_wake_ups(redis, shard, vehicle)
    if any(vehicle.is_named_in(value) for value in redis.hgetall(keys.QUEUE_STATS).values()):
        redis.delete(keys.QUEUE_STATS)  # the dispatcher's next walk of the queues writes them again
    erase_data(redis, vehicle)
    return erased


def _erase_wake_ups(redis: Redis, shard: int, vehicle: ErasedVehicle) -> None:
    """Remove the vehicle's queues from the records of a wake stream. The other queues of such a record get a new record."""
    for record_id, fields in _wake_records(redis, shard, vehicle):
        other_queues = [queue for queue in fields[b"owners"].split(b"\n") if owner_of_queue(queue.decode()) != vehicle.vin]
        if other_queues:
            redis.xadd(keys.wake(shard), cast(Any, fields | {b"owners": b"\n".join(other_queues)}))
        redis.xdel(keys.wake(shard), record_id)


def erase_data(redis: Redis, vehicle: ErasedVehicle) -> None:
    """Remove the payloads and triggers that name the vehicle, and entries from the sets of entries that wait for data.

    The vehicle's own entries are removed from all these sets, and all entries from the set of a data_id that names the vehicle.
    Entries since `vehicle.before_seq` stay.

    As long as the lake has a payload, a dispatcher may load the payload into Redis again for another vehicle. Other vehicles of
    a removed trigger still get their entries, because a dispatcher reads a trigger that Redis lacks from the lake.
    """
    for key, members in _waiting_entries(redis, vehicle):
        redis.srem(key, *members)
    for data_id, since in _parked_data_ids(redis, vehicle):
        redis.zrem(keys.PARKED, data_id)
        if redis.exists(keys.waiting_for(data_id.decode())):  # an entry was parked since, so the data_id must stay
            redis.zadd(keys.PARKED, {data_id: since}, nx=True)
    for data_or_trigger in chain(_data_keys(redis, vehicle), _trigger_keys(redis, vehicle)):
        redis.delete(data_or_trigger)


def find_in_redis(redis: Redis, vehicle: ErasedVehicle) -> list[Found]:
    """Search Redis for what was accepted before the seq `vehicle.before_seq` and still names the vehicle."""
    vin = vehicle.vin
    waiting_counts: Counter[str] = Counter()
    for key, members in _waiting_entries(redis, vehicle):
        waiting_counts[key] += len(members)
    found = [Found(key, "members", count) for key, count in waiting_counts.items()]
    ecq_pending, ecq_inflight, _, _, ecq_delivered, *_ = keys.ecq_keys(vin)
    for queue in (keys.pending(vin), keys.parked(vin), keys.done(vin), ecq_pending, ecq_delivered):
        old_seqs = [seq for seq in cast(list[bytes], redis.zrange(queue, 0, -1)) if int(seq) < vehicle.before_seq]
        if old_seqs:
            found.append(Found(queue, "entries", len(old_seqs)))
    for inflight in (keys.inflight(vin), ecq_inflight):
        seq = redis.hget(inflight, "seq")
        if seq and int(cast(bytes, seq)) < vehicle.before_seq:
            found.append(Found(inflight, "entry"))
    counts = (
        (keys.OUTCOMES, "outcomes", sum(1 for _ in _outcomes(redis, vehicle))),
        (keys.PARKED, "data ids", sum(1 for _ in _parked_data_ids(redis, vehicle))),
        (DATA_PATTERN, "payloads", sum(1 for _ in _data_keys(redis, vehicle))),
        (TRIGGER_PATTERN, "triggers", sum(1 for _ in _trigger_keys(redis, vehicle))),
    )
    return found + [Found(key, what, count) for key, what, count in counts if count]


def _waiting_entries(redis: Redis, vehicle: ErasedVehicle) -> Iterator[tuple[str, list[bytes]]]:
    """Yield (key, members) for the sets of entries that wait for data, in pages. Only entries before `vehicle.before_seq`.

    A member is an entry: owner and seq. If the data_id names the vehicle, the entries of all owners are yielded, else only the
    vehicle's.
    """
    for data_id, _ in _parked(redis):
        key = keys.waiting_for(data_id.decode())
        of_all_owners = vehicle.is_named_in(data_id)
        pattern = "*" if of_all_owners else f"{_glob_escaped(vehicle.vin)}*"
        members = redis.sscan_iter(key, match=pattern, count=MEMBERS_PER_PAGE)
        # The pattern also matches owners whose names only begin with the vehicle's name.
        of_owner = (member for member in members if of_all_owners or _owner(member) == vehicle.vin.encode())
        old_members = (member for member in of_owner if _is_old(member, vehicle))
        while page := list(islice(old_members, MEMBERS_PER_PAGE)):
            yield key, page


def _parked_data_ids(redis: Redis, vehicle: ErasedVehicle) -> Iterator[tuple[bytes, float]]:
    """Yield (data_id, instant since when entries wait for it) if the data_id names the vehicle and only old entries wait."""
    for data_id, since in _parked(redis):
        if vehicle.is_named_in(data_id):
            members = redis.sscan_iter(keys.waiting_for(data_id.decode()), count=MEMBERS_PER_PAGE)
            if all(_is_old(member, vehicle) for member in members):
                yield data_id, since


def _parked(redis: Redis) -> Iterator[tuple[bytes, float]]:
    """Yield (data_id, instant since when entries wait for it) for all data for which entries wait."""
    return cast(Iterator[tuple[bytes, float]], redis.zscan_iter(keys.PARKED, count=MEMBERS_PER_PAGE))


def _owner(member: bytes) -> bytes:
    return member.partition(b" ")[0]


def _is_old(member: bytes, vehicle: ErasedVehicle) -> bool:
    """Whether a waiting entry was accepted before `vehicle.before_seq`.

    An entry that an earlier release parked has no seq, and counts as old.
    """
    _, _, seq = member.partition(b" ")
    return not seq or int(seq) < vehicle.before_seq


def _glob_escaped(vin: str) -> str:
    """Escape the characters that have a meaning in Redis' patterns."""
    return "".join(f"\\{char}" if char in "*?[]^\\" else char for char in vin)


def _outcomes(redis: Redis, vehicle: ErasedVehicle) -> Iterator[Record]:
    """Yield the stream records with outcomes of the vehicle's entries before `vehicle.before_seq`."""
    for record_id, fields in _records(redis, keys.OUTCOMES):
        entry = _entry_of(fields.get(b"o", b""))
        if entry is None:  # the recorder quarantines this record
            continue
        owner, seq = entry
        if owner == vehicle.vin and seq < vehicle.before_seq:
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


def _wake_records(redis: Redis, shard: int, vehicle: ErasedVehicle) -> Iterator[Record]:
    """Yield the records of a wake stream that name a queue of the vehicle."""
    queues = {vehicle.vin.encode(), ecq_queue(vehicle.vin).encode()}
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


def _data_keys(redis: Redis, vehicle: ErasedVehicle) -> Iterator[bytes]:
    """Yield the keys of payloads whose data_id or content names the vehicle."""
    for key in redis.scan_iter(match=DATA_PATTERN, count=MEMBERS_PER_PAGE):
        data_id = key.removeprefix(keys.data("").encode())
        # In a payload, which may be any bytes, a short name would be found by chance.
        if vehicle.is_named_in(data_id) or (vehicle.is_searched_in_opaque and vehicle.is_named_in(redis.get(key) or b"")):
            yield key


def _trigger_keys(redis: Redis, vehicle: ErasedVehicle) -> Iterator[bytes]:
    """Yield the keys of triggers before `vehicle.before_seq` whose request_id or data_id names the vehicle."""
    all_keys = cast(Iterator[bytes], redis.scan_iter(match=TRIGGER_PATTERN, count=MEMBERS_PER_PAGE))
    old_keys = (key for key in all_keys if _is_old_trigger(key, vehicle))
    while page := list(islice(old_keys, MEMBERS_PER_PAGE)):
        with redis.pipeline(transaction=False) as pipe:
            for key in page:
                pipe.hvals(key)
            replies = pipe.execute(raise_on_error=False)
        for key, reply in zip(page, replies, strict=True):
            is_hash = isinstance(reply, list)  # otherwise the reply is an error, because the key has another type
            if is_hash and any(vehicle.is_named_in(value) for value in reply):
                yield key


def _is_old_trigger(key: bytes, vehicle: ErasedVehicle) -> bool:
    """Whether the key is of a trigger that was accepted before `vehicle.before_seq`."""
    seq = key.removeprefix(TRIGGER_PREFIX.encode())
    return seq.isdigit() and int(seq) < vehicle.before_seq
