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

ENTRIES_PER_PIPELINE = 1000
# Redis stores the score of an entry, its seq, as a double. Up to this many seqs round to the same score.
MAX_SEQS_PER_SCORE = 1024


def waiting_of(redis: Redis, vin: str, count: int) -> tuple[int, list[EntryHistory]]:
    """Return the number of pending, parked and in-flight entries, and the oldest `count` of them.

    In Redis, the entry in flight is one of the pending ones.
    """
    pipe = redis.pipeline(transaction=False)
    for key in (keys.pending(vin), keys.parked(vin)):
        pipe.zcard(key)
        pipe.zrange(key, 0, count - 1)
    pipe.hgetall(keys.inflight(vin))
    pipe.hgetall(keys.attempts(vin))
    pending_count, pending, parked_count, parked, inflight, attempts = pipe.execute()
    pending_seqs = {int(seq) for seq in pending}
    parked_seqs = {int(seq) for seq in parked}
    in_flight_seq = inflight.get(b"seq")
    oldest_seqs = sorted([*pending_seqs, *parked_seqs])[:count]
    waiting = []
    for entry in with_trigger_ids(redis, vin, oldest_seqs):
        if in_flight_seq is not None and int(in_flight_seq) == entry.seq:
            waiting.append(_in_flight(entry, inflight.get(b"published_at"), inflight.get(b"attempts")))
            continue
        state = EntryState.PARKED if entry.seq in parked_seqs else EntryState.PENDING
        waiting.append(replace(entry, state=state, attempts=int(attempts.get(str(entry.seq).encode(), 0))))
    return pending_count + parked_count, waiting


def with_trigger_ids(redis: Redis, vin: str, seqs: Iterable[int]) -> list[EntryHistory]:
    """Return the entries with these seqs, in the given order, with request_id and data_id of their triggers.

    Both ids are empty if Redis no longer has the trigger.
    """
    entry_seqs = list(seqs)
    if not entry_seqs:
        return []
    pipe = redis.pipeline(transaction=False)
    for seq in entry_seqs:
        pipe.hmget(keys.trigger(seq), ["request_id", "data_id"])
    entries: list[EntryHistory] = []
    for seq, (request_id, data_id) in zip(entry_seqs, pipe.execute(), strict=True):
        entries.append(EntryHistory(vin, seq, (request_id or b"").decode(), (data_id or b"").decode()))
    return entries


def waiting_seqs(redis: Redis, vin: str, bounds: Bounds | None = None) -> set[int]:
    """Return the seqs of pending and parked entries.

    With `bounds`, return only the newest within the bounds: at least `bounds.limit` + 1 if there are as many, so that the caller
    sees whether another page follows. Redis compares rounded seqs, so some may be just outside the bounds.
    """
    pipe = redis.pipeline(transaction=False)
    for key in (keys.pending(vin), keys.parked(vin)):
        if bounds is None:
            pipe.zrange(key, 0, -1)
        else:
            max_seqs = bounds.limit + 1 + MAX_SEQS_PER_SCORE
            pipe.zrevrangebyscore(key, bounds.before, bounds.since, start=0, num=max_seqs)
    return {int(seq) for seq in chain.from_iterable(pipe.execute())}


def ended_seqs(redis: Redis, vin: str) -> set[int]:
    """Return the seqs of ended entries. The queues remember an ended entry until its outcome is in the lake."""
    ended: Any = redis.zrange(keys.done(vin), 0, -1)
    return {int(seq) for seq in ended}


def with_current_states(redis: Redis, entries: Iterable[EntryHistory], retention_days: float) -> list[EntryHistory]:
    """Return the entries with their current states, sorted by seq and VIN. Entries that have ended are not looked up."""
    open_entries: list[EntryHistory] = []
    result: list[EntryHistory] = []
    for entry in entries:
        if entry.is_open:
            open_entries.append(entry)
        else:
            result.append(entry)
    retention_start = datetime.now(UTC) - timedelta(days=retention_days)
    for start in range(0, len(open_entries), ENTRIES_PER_PIPELINE):
        chunk = open_entries[start : start + ENTRIES_PER_PIPELINE]
        pipe = redis.pipeline(transaction=False)
        for entry in chunk:
            pipe.hmget(keys.inflight(entry.vin), ["seq", "published_at", "attempts"])
            pipe.zscore(keys.parked(entry.vin), entry.seq)
            pipe.hget(keys.attempts(entry.vin), str(entry.seq))
            pipe.zscore(keys.done(entry.vin), entry.seq)
        replies = pipe.execute()
        for index, entry in enumerate(chunk):
            first_reply = 4 * index  # each entry has four commands
            result.append(_with_current_state(entry, retention_start, *replies[first_reply : first_reply + 4]))
    return sorted(result, key=lambda entry: (entry.seq, entry.vin))


def _with_current_state(
    entry: EntryHistory,
    retention_start: datetime,
    inflight: list[bytes | None],
    parked: float | None,
    attempts: bytes | None,
    done: float | None,
) -> EntryHistory:
    """Return an open entry with its current state, from the replies of Redis.

    `parked` and `done` are the entry's scores in these sets; None: it is not in the set. The score in `done` is the code of its
    outcome. An entry that was accepted before `retention_start` has expired, even if its outcome is not recorded yet.
    """
    in_flight_seq, published_at, in_flight_attempts = inflight
    if in_flight_seq is not None and int(in_flight_seq) == entry.seq:
        return _in_flight(entry, published_at, in_flight_attempts)
    if done is not None:  # the entry has ended, and its outcome is not in the archive yet
        return replace(entry, state=OF_CODE[int(done)])
    state: str = EntryState.PENDING if parked is None else EntryState.PARKED
    if entry.accepted_at < retention_start:
        state = Outcome.EXPIRED
    return replace(entry, state=state, attempts=int(attempts or 0))


def _in_flight(entry: EntryHistory, published_at: bytes | None, attempts: bytes | None) -> EntryHistory:
    """Return the entry as in flight, with the values of Redis. `published_at` is in Unix milliseconds; None: unknown."""
    dispatched_at = instant_of(int(published_at)) if published_at else None
    return replace(entry, state=EntryState.IN_FLIGHT, dispatched_at=dispatched_at, attempts=int(attempts or 0))
