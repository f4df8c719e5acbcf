"""The life of every entry: from the queues, from the lake, and from the archive's segments that are not in the lake yet."""

from collections.abc import Iterable, Set
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from redis import Redis

from console._recorded import BACK, Recorded, flush, lives_in_lake, read_recorded
from contracts import keys
from contracts.lives import Life, instant_of
from contracts.outcomes import OF_CODE, EntryState, Outcome
from contracts.settings import Settings

OWNERS_A_FLUSH = 1000


class Lives:
    """Answers questions about entries, from all that is known now."""

    def __init__(self, settings: Settings, redis: Redis) -> None:
        self._settings, self._redis = settings, redis

    def of_vin(self, vin: str) -> list[Life]:
        """Every entry of a vehicle, oldest first."""
        in_lake, ingested = self._in_lake(vin)
        lives = {life.seq: life for life in in_lake}
        recorded = read_recorded(self._settings, ingested, vin=vin)
        over = {seq for owner, seq in recorded.outcomes if owner == vin} | {s for s, life in lives.items() if not life.is_open}
        if not self._seqs(keys.done(vin)) <= over and flush(self._settings):
            recorded = read_recorded(self._settings, ingested, vin=vin)  # how it ended was still in the recorder's journal
        for seq, trigger in recorded.triggers:
            lives.setdefault(seq, Life(vin, seq, trigger.request_id, trigger.data_id))
        in_redis = self._seqs(keys.pending(vin), keys.parked(vin), keys.done(vin))
        for seq in in_redis - lives.keys():  # its trigger is still in the recorder's journal
            lives[seq] = Life(vin, seq, *self._trigger(seq))
        return self.now(lives.values(), recorded)

    def now(self, lives: Iterable[Life], recorded: Recorded) -> list[Life]:
        """The same entries as they stand now, by seq and VIN."""
        known = [ended(life, recorded) for life in lives]
        open_ones = self._standing([life for life in known if life.is_open])
        return sorted([*(life for life in known if not life.is_open), *open_ones], key=lambda life: (life.seq, life.vin))

    def _standing(self, lives: list[Life]) -> list[Life]:
        """The same open entries, with what Redis knows of them now."""
        found: list[Life] = []
        past = datetime.now(UTC) - timedelta(days=self._settings.retention_days)
        for start in range(0, len(lives), OWNERS_A_FLUSH):
            some = lives[start : start + OWNERS_A_FLUSH]
            pipe = self._redis.pipeline(transaction=False)
            for life in some:
                pipe.hmget(keys.inflight(life.vin), ["seq", "published_at", "attempts"])
                pipe.zscore(keys.parked(life.vin), life.seq)
                pipe.hget(keys.attempts(life.vin), str(life.seq))
                pipe.zscore(keys.done(life.vin), life.seq)
            replies = pipe.execute()
            found += [_standing(life, past, *replies[4 * n : 4 * n + 4]) for n, life in enumerate(some)]
        return found

    def _in_lake(self, vin: str) -> tuple[list[Life], Set[str]]:
        """The entries that the lake knows, and the segments that it has lately taken in: from the recorder, which has it open."""
        since = datetime.now(UTC) - BACK
        told = lives_in_lake(self._settings, since, vin)
        if told is not None:
            return told
        from adapters.lake import open_catalog, read_entries, read_segments  # here, because loading it takes a second

        catalog = open_catalog(self._settings)
        ingested = read_segments(catalog, since)  # first: what is published meanwhile is then found twice, and not never
        return read_entries(catalog, vin), ingested

    def _seqs(self, *queues: str) -> set[int]:
        pipe = self._redis.pipeline(transaction=False)
        for key in queues:
            pipe.zrange(key, 0, -1)
        return {int(seq) for seqs in pipe.execute() for seq in seqs}

    def _trigger(self, seq: int) -> tuple[str, str]:
        found: Any = self._redis.hmget(keys.trigger(seq), ["request_id", "data_id"])
        return found[0].decode() if found[0] else "", found[1].decode() if found[1] else ""


def ended(life: Life, recorded: Recorded) -> Life:
    """The same entry, ended if the archive says so."""
    record = recorded.outcomes.get((life.vin, life.seq)) if life.is_open else None
    return life if record is None else life.ended(record)


def _standing(
    life: Life,
    past: datetime,
    inflight: list[bytes | None],
    parked: float | None,
    attempts: bytes | None,
    done: float | None,
) -> Life:
    """The same entry as it stands now; what was accepted before `past` is over, whether or not that is on record yet."""
    seq, published_at, tries = inflight
    if seq is not None and int(seq) == life.seq:
        return replace(
            life, state=EntryState.IN_FLIGHT, dispatched_at=instant_of(int(published_at or 0)), attempts=int(tries or 0)
        )
    if done is not None:  # its outcome is on its way to the archive
        return replace(life, state=OF_CODE[int(done)])
    waiting = EntryState.PENDING if parked is None else EntryState.PARKED
    return replace(life, state=Outcome.EXPIRED if life.accepted_at < past else waiting, attempts=int(attempts or 0))
