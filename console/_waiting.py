"""What waits for one vehicle, from Redis alone."""

from dataclasses import replace

from contracts import keys
from contracts.lives import Life, instant_of
from contracts.outcomes import EntryState
from contracts.settings import Settings
from queues import connect


async def waiting_of(settings: Settings, vin: str, count: int) -> tuple[int, list[Life]]:
    """How many entries wait, are parked or in flight, and the oldest `count` of them."""
    async with connect(settings.redis) as redis:
        pipe = redis.pipeline(transaction=False)
        for key in (keys.pending(vin), keys.parked(vin)):
            pipe.zcard(key)
            pipe.zrange(key, 0, count - 1)
        pipe.hgetall(keys.inflight(vin))
        pipe.hgetall(keys.attempts(vin))
        pending_count, pending, parked_count, parked, inflight, attempts = await pipe.execute()
        seqs = sorted([*map(int, pending), *map(int, parked)])[:count]
        for seq in seqs:
            pipe.hmget(keys.trigger(seq), ["request_id", "data_id"])
        triggers = await pipe.execute() if seqs else []
    aside = set(map(int, parked))
    lives = []
    for seq, (request_id, data_id) in zip(seqs, triggers, strict=True):
        tries = int(attempts.get(str(seq).encode(), 0))
        life = Life(vin, seq, (request_id or b"").decode(), (data_id or b"").decode(), attempts=tries)
        lives.append(_standing(life, inflight, aside))
    return pending_count + parked_count, lives


def _standing(life: Life, inflight: dict[bytes, bytes], parked: set[int]) -> Life:
    if int(inflight.get(b"seq", 0)) == life.seq:
        dispatched_at = instant_of(int(inflight[b"published_at"]))
        return replace(life, state=EntryState.IN_FLIGHT, dispatched_at=dispatched_at, attempts=int(inflight[b"attempts"]))
    return replace(life, state=EntryState.PARKED) if life.seq in parked else life
