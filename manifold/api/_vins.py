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
MAX_SEQS_PER_SCORE = 1024  # Redis stores the score of an entry, its seq, as a double; up to this many seqs round to the same one
PRESENCE_FIELDS = ("connected", "since", "heard", "subscribed")


def vehicle_routes(sources: Sources) -> APIRouter:
    """Return the route of a vehicle's queue."""
    router = APIRouter(tags=["vehicles"])

    @router.get("/vins/{vin}")
    async def vehicle(vin: Vin, limit: Limit = PAGE, after: After = 0) -> Vehicle:
        """The presence of a vehicle and its entries in the queues, a page at a time; an empty page for an unknown vehicle."""
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
    """Read presence and a page of the queue in one round trip to Redis, and details of the entries in a second one."""
    batch = AsyncBatch(sources.redis, sources.policy)
    batch.call(("HMGET", keys.presence(vin), *PRESENCE_FIELDS), list)
    batch.call(("HMGET", keys.inflight(vin), "seq", "published_at", "attempts"), list)
    for key in (keys.pending(vin), keys.parked(vin)):
        batch.call(("ZCARD", key), int)
        batch.call(_range_command(key, after, limit), _seqs)
    batch.call(("ZCARD", keys.done(vin)), int)
    for code in OF_CODE:
        batch.call(("ZREVRANGEBYSCORE", keys.done(vin), code, code, "LIMIT", 0, limit), _seqs)
    # The replies, in the order of the calls. The entry in flight is one of the pending ones.
    presence, inflight, pending_count, pending, parked_count, parked, remembered_count, *ended = await batch.run()
    waiting_seqs = sorted(seq for seq in {*pending, *parked} if seq > after)
    page_seqs = waiting_seqs[:limit]
    outcomes: dict[int, str] = {}
    for outcome, seqs in zip(OF_CODE.values(), ended, strict=True):
        outcomes |= dict.fromkeys(seqs, outcome)
    newest_ended_seqs = sorted(outcomes)[-limit:]
    entries = await _entries(sources, vin, [*page_seqs, *newest_ended_seqs])
    in_flight_count = 0 if inflight[0] is None else 1
    parked_seqs = set(parked)
    return Vehicle.model_construct(
        vin=vin,
        presence=_presence(presence, sources.policy.presence_ms),
        pending=max(0, pending_count - in_flight_count),
        parked=parked_count,
        in_flight=in_flight_count,
        remembered=remembered_count,
        entries=[Entry.of(_with_state(entries[seq], inflight, parked_seqs)) for seq in page_seqs],
        after=page_seqs[-1] if len(waiting_seqs) > limit else None,
        ended=[Entry.of(replace(entries[seq], state=outcomes[seq], attempts=None)) for seq in newest_ended_seqs],
    )


def _range_command(key: str, after: int, limit: int) -> tuple[Any, ...]:
    """Return the command that reads at least one entry more than a page, which shows whether there is another page.

    Scores are rounded seqs, so with `after` the reply may begin with entries of a lower seq that round to the same score.
    """
    if not after:
        return ("ZRANGE", key, 0, limit)
    return ("ZRANGEBYSCORE", key, after, "+inf", "LIMIT", 0, limit + 1 + MAX_SEQS_PER_SCORE)


async def _entries(sources: Sources, vin: str, seqs: list[int]) -> dict[int, EntryHistory]:
    """Return by seq these entries with their trigger's ids and their number of attempts so far."""
    if not seqs:
        return {}
    batch = AsyncBatch(sources.redis, sources.policy)
    batch.call(("HMGET", keys.attempts(vin), *seqs), list)
    for seq in seqs:
        batch.call(("HMGET", keys.trigger(seq), "request_id", "data_id"), list)
    attempts, *triggers = await batch.run(tolerant=True)
    if not isinstance(attempts, list):  # the key has the wrong type
        attempts = [None] * len(seqs)
    entries: dict[int, EntryHistory] = {}
    for seq, trigger, attempt_count in zip(seqs, triggers, attempts, strict=True):
        request_id, data_id = _trigger_ids(trigger)
        entries[seq] = EntryHistory(vin, seq, request_id, data_id, attempts=int(attempt_count or 0))
    return entries


def _trigger_ids(trigger: object) -> tuple[str, str]:
    """Return request_id and data_id of a trigger, from its reply; empty texts if the trigger is gone or has the wrong type."""
    if not isinstance(trigger, list):  # an error: the key has the wrong type
        return "", ""
    request_id, data_id = trigger
    return (request_id or b"").decode(errors="replace"), (data_id or b"").decode(errors="replace")


def _with_state(entry: EntryHistory, inflight: list[bytes | None], parked_seqs: set[int]) -> EntryHistory:
    """Return a pending entry as in flight if that is its state, as parked if its seq is in `parked_seqs`, else unchanged.

    `inflight` has seq, published_at and attempts of the vehicle's entry in flight; each is None if there is none.
    """
    seq, published_at, attempts = inflight
    if seq is not None and int(seq) == entry.seq:
        dispatched_at = instant_of(int(published_at)) if published_at else None
        return replace(entry, state=EntryState.IN_FLIGHT, dispatched_at=dispatched_at, attempts=int(attempts or 0))
    return replace(entry, state=EntryState.PARKED) if entry.seq in parked_seqs else entry


def _presence(fields: list[bytes | None], presence_ms: int) -> Presence | None:
    """Return the presence of a vehicle, from its values of `PRESENCE_FIELDS`; None if it has none.

    The rule is that of the queues: a vehicle that was only heard counts as connected for `presence_ms` after it was heard.
    """
    if not any(fields):
        return None
    connected, since, heard, subscribed = (field.decode() if field else "" for field in fields)
    was_heard_lately = connected == "heard" and int(heard or 0) + presence_ms >= wall_clock_ms()
    is_here = connected == "yes" or was_heard_lately
    return Presence.model_construct(
        here=is_here,
        listening=is_here and subscribed != "no",  # unknown counts as subscribed
        since=instant_of(int(since)) if since else None,
        heard_at=instant_of(int(heard)) if heard else None,
    )


def _seqs(reply: Iterable[bytes]) -> list[int]:
    return [int(seq) for seq in reply]
