"""`/vins/{vin}`: the state of a vehicle's queue, from Redis alone, in two round trips."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from redis.exceptions import ResponseError

from manifold.api._parameters import After, Limit, Vin
from manifold.api._sources import Sources
from manifold.api.models.entries import Entry
from manifold.api.models.vehicles import Presence, Vehicle
from manifold.contracts import keys
from manifold.contracts.errors import Permanent
from manifold.contracts.outcomes import OF_CODE, EntryState
from manifold.contracts.seq import wall_clock_ms
from manifold.history.entry import EntryHistory, instant_of
from manifold.queues import AsyncBatch, is_corrupt

PAGE = 100
SAME_SCORE = 1024  # maximum number of seqs with the same score: Redis stores the score as a double
PRESENCE = ("connected", "since", "heard", "subscribed")


def vehicle_routes(sources: Sources) -> APIRouter:
    """Return the route of a vehicle's queue."""
    router = APIRouter(tags=["vehicles"])

    @router.get("/vins/{vin}")
    async def vehicle(vin: Vin, limit: Limit = PAGE, after: After = 0) -> Vehicle:
        """What the queues know of a vehicle now, a page at a time; an empty page if they do not know it."""
        try:
            return await _vehicle(sources, vin, limit, after)
        except ResponseError as exc:
            if is_corrupt(exc):
                raise Permanent(
                    f"a key of {vin} in Redis holds another type than it should: `manifold queue peek {vin}`"
                ) from exc
            raise

    return router


async def _vehicle(sources: Sources, vin: str, limit: int, after: int) -> Vehicle:
    """Read presence and a page of the queue from Redis in one round trip, and add what is on record of each entry."""
    batch = AsyncBatch(sources.redis, sources.policy)
    batch.call(("HMGET", keys.presence(vin), *PRESENCE), list)
    batch.call(("HMGET", keys.inflight(vin), "seq", "published_at", "attempts"), list)
    for key in (keys.pending(vin), keys.parked(vin)):
        batch.call(("ZCARD", key), int)
        batch.call(_range_command(key, after, limit), _seqs)
    batch.call(("ZCARD", keys.done(vin)), int)
    for code in OF_CODE:
        batch.call(("ZREVRANGEBYSCORE", keys.done(vin), code, code, "LIMIT", 0, limit), _seqs)
    presence, inflight, queued, pending, parked_count, parked, remembered, *ended = await batch.run()
    waiting = sorted(seq for seq in {*pending, *parked} if seq > after)
    page = waiting[:limit]
    outcomes = {seq: outcome for outcome, seqs in zip(OF_CODE.values(), ended, strict=True) for seq in seqs}
    newest_ended = sorted(outcomes)[-limit:]
    histories = await _histories(sources, vin, [*page, *newest_ended])
    in_flight = inflight[0] is not None
    parked_seqs = set(parked)
    return Vehicle.model_construct(
        vin=vin,
        presence=_presence(presence, sources.policy.presence_ms),
        pending=max(0, queued - in_flight),
        parked=parked_count,
        in_flight=int(in_flight),
        remembered=remembered,
        entries=[Entry.of(_with_state(histories[seq], inflight, parked_seqs)) for seq in page],
        after=page[-1] if len(waiting) > limit else None,
        ended=[Entry.of(replace(histories[seq], state=outcomes[seq], attempts=None)) for seq in newest_ended],
    )


def _range_command(key: str, after: int, limit: int) -> tuple[Any, ...]:
    """Return the command for one entry more than a page, which shows whether there are others."""
    if not after:
        return ("ZRANGE", key, 0, limit)
    return ("ZRANGEBYSCORE", key, after, "+inf", "LIMIT", 0, limit + 1 + SAME_SCORE)


async def _histories(sources: Sources, vin: str, seqs: list[int]) -> dict[int, EntryHistory]:
    """Return the entries as queued, with their trigger's ids and the attempts so far."""
    if not seqs:
        return {}
    batch = AsyncBatch(sources.redis, sources.policy)
    batch.call(("HMGET", keys.attempts(vin), *seqs), list)
    for seq in seqs:
        batch.call(("HMGET", keys.trigger(seq), "request_id", "data_id"), list)
    attempts, *triggers = await batch.run(tolerant=True)
    tries = attempts if isinstance(attempts, list) else [None] * len(seqs)
    return {
        seq: EntryHistory(vin, seq, *_texts(trigger), attempts=int(count or 0))
        for seq, trigger, count in zip(seqs, triggers, tries, strict=True)
    }


def _texts(trigger: object) -> tuple[str, str]:
    """Return request_id and data_id; empty if the trigger is gone or its key has the wrong type."""
    request_id, data_id = trigger if isinstance(trigger, list) else (None, None)
    return (request_id or b"").decode(errors="replace"), (data_id or b"").decode(errors="replace")


def _with_state(entry: EntryHistory, inflight: list[bytes | None], parked_seqs: set[int]) -> EntryHistory:
    seq, published_at, attempts = inflight
    if seq is not None and int(seq) == entry.seq:
        dispatched_at = instant_of(int(published_at)) if published_at else None
        return replace(entry, state=EntryState.IN_FLIGHT, dispatched_at=dispatched_at, attempts=int(attempts or 0))
    return replace(entry, state=EntryState.PARKED) if entry.seq in parked_seqs else entry


def _presence(fields: list[bytes | None], presence_ms: int) -> Presence | None:
    """Return the presence by the queues' rule: a vehicle that was only heard is present until the presence timeout."""
    if not any(fields):
        return None
    connected, since, heard, subscribed = (field.decode() if field else "" for field in fields)
    here = connected == "yes" or (connected == "heard" and int(heard or 0) + presence_ms >= wall_clock_ms())
    return Presence.model_construct(
        here=here,
        listening=here and subscribed != "no",
        since=instant_of(int(since)) if since else None,
        heard_at=instant_of(int(heard)) if heard else None,
    )


def _seqs(reply: Iterable[bytes]) -> list[int]:
    return [int(seq) for seq in reply]
