"""A vehicle taken out of Redis: its own keys, and the shared ones in which it is named."""

from collections.abc import Iterator
from typing import Any, cast

from redis import Redis

from contracts import keys
from contracts.outcomes import OutcomeRecord
from contracts.settings import Settings
from pipelines.erasure.files import Found
from pipelines.erasure.names import Named
from queues import Loader, Policy

RECORDS_A_PAGE = 5000
MEMBERS_A_PAGE = 1000

Record = tuple[bytes, dict[bytes, bytes]]


def erase_from_queues(redis: Redis, settings: Settings, named: Named) -> int:
    """Take everything accepted before the seq out of the queues; how many entries. Nothing of it is sent any more.

    Dispatchers may run. What the vehicle was sent and has not acknowledged stays with the broker.
    """
    policy, vin = Policy.of(settings), named.vin
    gone = Loader(redis, policy).erase(vin, named.before)
    if not redis.exists(keys.inflight(vin)):
        redis.zrem(keys.deadlines(keys.shard_of(vin, policy.wake_shards)), vin)
    for key, members in _parked(redis, named):
        redis.srem(key, *members)
    for record_id, _ in _outcomes(redis, named):
        redis.xdel(keys.OUTCOMES, record_id)
    for shard in range(policy.wake_shards):
        for record_id, fields in _wakes(redis, shard, named):
            others = [owner for owner in fields[b"owners"].split(b"\n") if owner.decode() != vin]
            if others:
                redis.xadd(keys.wake(shard), cast(Any, fields | {b"owners": b"\n".join(others)}))
            redis.xdel(keys.wake(shard), record_id)
    if any(named.is_in(value) for value in redis.hgetall(keys.CENSUS).values()):
        redis.delete(keys.CENSUS)  # the next census counts again
    for payload in _data(redis, named):
        redis.delete(payload)
    return gone


def prove_queues(redis: Redis, named: Named) -> list[Found]:
    """Where Redis still names the vehicle with something accepted before the seq."""
    found = [Found(key, "members", len(members)) for key, members in _parked(redis, named)]
    for queue in (keys.pending(named.vin), keys.parked(named.vin), keys.done(named.vin)):
        old = [seq for seq in cast(list[bytes], redis.zrange(queue, 0, -1)) if int(seq) < named.before]
        found += [Found(queue, "entries", len(old))] if old else []
    held = redis.hget(keys.inflight(named.vin), "seq")
    found += [Found(keys.inflight(named.vin), "entry")] if held and int(cast(bytes, held)) < named.before else []
    outcomes = sum(1 for _ in _outcomes(redis, named))
    found += [Found(keys.OUTCOMES, "outcomes", outcomes)] if outcomes else []
    return found


def _parked(redis: Redis, named: Named) -> Iterator[tuple[str, list[bytes]]]:
    """The sets of entries that wait for data, and the vehicle's members in them."""
    vin = named.vin.encode()
    for data_id in cast(list[bytes], redis.zrange(keys.PARKED, 0, -1)):
        key = keys.waiting_for(data_id.decode())
        members = redis.sscan_iter(key, match=f"{_escaped(named.vin)}*", count=MEMBERS_A_PAGE)
        mine = [m for m in members if m == vin or (m.startswith(vin + b" ") and int(m.rpartition(b" ")[2]) < named.before)]
        if mine:
            yield key, mine


def _escaped(vin: str) -> str:
    return "".join(f"\\{c}" if c in "*?[]^\\" else c for c in vin)


def _outcomes(redis: Redis, named: Named) -> Iterator[Record]:
    for record in _records(redis, keys.OUTCOMES):
        try:
            said = OutcomeRecord.from_wire(record[1].get(b"o", b""))
        except ValueError:
            continue  # the recorder puts it into quarantine
        if said.vin == named.vin and said.seq < named.before:
            yield record


def _wakes(redis: Redis, shard: int, named: Named) -> Iterator[Record]:
    vin = named.vin.encode()
    for record in _records(redis, keys.wake(shard)):
        if vin in record[1].get(b"owners", b"").split(b"\n"):
            yield record


def _records(redis: Redis, stream: str) -> Iterator[Record]:
    start = "-"
    while page := cast(list[Record], redis.xrange(stream, start, "+", count=RECORDS_A_PAGE)):
        yield from page
        start = f"({page[-1][0].decode()}"


def _data(redis: Redis, named: Named) -> Iterator[bytes]:
    """Payloads under a name that names the vehicle, or that hold it."""
    for key in redis.scan_iter(match="d:*", count=MEMBERS_A_PAGE):
        if named.is_in(key.removeprefix(b"d:")) or (named.opaque and named.is_in(redis.get(key) or b"")):
            yield key
