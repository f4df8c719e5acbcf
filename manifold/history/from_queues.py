"""Reads waiting and recently ended entries from the queues. Reads Redis only, and changes nothing."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

from redis import Redis

from manifold.contracts import keys
from manifold.contracts.outcomes import OF_CODE, EntryState, Outcome
from manifold.history.entry import Bounds, EntryHistory, instant_of

ENTRIES_PER_FLUSH = 1000
ROUNDED = 1024  # maximum number of seqs with the same score in Redis, which stores doubles


def waiting_of(redis: Redis, vin: str, count: int) -> tuple[int, list[EntryHistory]]:
    """Return the number of pending, parked and in-flight entries, and the oldest `count` of them."""
    pipe = redis.pipeline(transaction=False)
    for key in (keys.pending(vin), keys.parked(vin)):
        pipe.zcard(key)
        pipe.zrange(key, 0, count - 1)
    pipe.hgetall(keys.inflight(vin))
    pipe.hgetall(keys.attempts(vin))
    pending_count, pending, parked_count, parked, inflight, attempts = pipe.execute()
    parked_seqs = set(map(int, parked))
    in_flight_seq, published_at, tries = (inflight.get(name) for name in (b"seq", b"published_at", b"attempts"))
    waiting = []
    for entry in with_trigger_ids(redis, vin, sorted([*map(int, pending), *parked_seqs])[:count]):
        if in_flight_seq is not None and int(in_flight_seq) == entry.seq:
            waiting.append(_in_flight(entry, published_at, tries))
            continue
        state = EntryState.PARKED if entry.seq in parked_seqs else EntryState.PENDING
        waiting.append(replace(entry, state=state, attempts=int(attempts.get(str(entry.seq).encode(), 0))))
    return pending_count + parked_count, waiting


def with_trigger_ids(redis: Redis, vin: str, seqs: Iterable[int]) -> list[EntryHistory]:
    """Return the entries with these seqs, in order, with request_id and data_id of their triggers."""
    wanted = list(seqs)
    pipe = redis.pipeline(transaction=False)
    for seq in wanted:
        pipe.hmget(keys.trigger(seq), ["request_id", "data_id"])
    triggers = zip(wanted, pipe.execute() if wanted else (), strict=True)
    return [
        EntryHistory(vin, seq, (request_id or b"").decode(), (data_id or b"").decode()) for seq, (request_id, data_id) in triggers
    ]


def waiting_seqs(redis: Redis, vin: str, bounds: Bounds | None = None) -> set[int]:
    """Return the seqs of pending and parked entries: all, or the newest within the bounds plus one more if there are more."""
    pipe = redis.pipeline(transaction=False)
    for key in (keys.pending(vin), keys.parked(vin)):
        if bounds is None:
            pipe.zrange(key, 0, -1)
        else:
            pipe.zrevrangebyscore(key, bounds.before, bounds.since, start=0, num=bounds.limit + 1 + ROUNDED)
    return {int(seq) for seq in chain.from_iterable(pipe.execute())}


def done_seqs(redis: Redis, vin: str) -> set[int]:
    """Return the seqs of ended entries that are remembered until the lake has their outcomes."""
    ended: Any = redis.zrange(keys.done(vin), 0, -1)
    return set(map(int, ended))


def with_current_states(redis: Redis, entries: Iterable[EntryHistory], retention_days: float) -> list[EntryHistory]:
    """Return the entries with their current states, by seq and VIN. Ended ones are not looked up."""
    known = list(entries)
    open_ones = [entry for entry in known if entry.is_open]
    found = [entry for entry in known if not entry.is_open]
    past = datetime.now(UTC) - timedelta(days=retention_days)
    for start in range(0, len(open_ones), ENTRIES_PER_FLUSH):
        some = open_ones[start : start + ENTRIES_PER_FLUSH]
        pipe = redis.pipeline(transaction=False)
        for entry in some:
            pipe.hmget(keys.inflight(entry.vin), ["seq", "published_at", "attempts"])
            pipe.zscore(keys.parked(entry.vin), entry.seq)
            pipe.hget(keys.attempts(entry.vin), str(entry.seq))
            pipe.zscore(keys.done(entry.vin), entry.seq)
        replies = pipe.execute()
        found += [_with_state(entry, past, *replies[4 * n : 4 * n + 4]) for n, entry in enumerate(some)]
    return sorted(found, key=lambda entry: (entry.seq, entry.vin))


def _with_state(
    entry: EntryHistory,
    past: datetime,
    inflight: list[bytes | None],
    parked: float | None,
    attempts: bytes | None,
    done: float | None,
) -> EntryHistory:
    """Return the entry with its current state. If it was accepted before `past`, it is expired, recorded or not."""
    seq, published_at, tries = inflight
    if seq is not None and int(seq) == entry.seq:
        return _in_flight(entry, published_at, tries)
    if done is not None:  # its outcome is not in the archive yet
        return replace(entry, state=OF_CODE[int(done)])
    waiting = EntryState.PENDING if parked is None else EntryState.PARKED
    return replace(entry, state=Outcome.EXPIRED if entry.accepted_at < past else waiting, attempts=int(attempts or 0))


def _in_flight(entry: EntryHistory, published_at: bytes | None, tries: bytes | None) -> EntryHistory:
    dispatched_at = instant_of(int(published_at or 0))
    return replace(entry, state=EntryState.IN_FLIGHT, dispatched_at=dispatched_at, attempts=int(tries or 0))
