"""The life of every entry: from the queues, from the lake, and from the archive's segments that are not in the lake yet."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual
from redis import Redis

from adapters.lake import read_entries, where
from contracts import keys
from contracts.envelope import Envelope, Stream, from_arrow
from contracts.messages import Trigger, parse_trigger
from contracts.outcomes import Outcome, OutcomeRecord, State
from contracts.seq import datetime_of
from contracts.settings import Settings
from contracts.tables import IDS, OUTCOMES, SEGMENTS
from pipelines.archive import Archive, Interval, Unreadable, decode

TAIL = timedelta(days=1)  # how far back segments are looked for that no ingest has taken in
OWNERS_A_FLUSH = 1000


@dataclass(frozen=True, slots=True)
class Life:
    """One entry: what it is, where it stands, and when what happened to it (UTC; None: not yet, or not known)."""

    vin: str
    seq: int
    request_id: str
    data_id: str
    state: str
    accepted_at: datetime
    dispatched_at: datetime | None = None
    acknowledged_at: datetime | None = None
    attempts: int | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields that `manifold vin show --json` prints."""
        names = ("seq", "request_id", "data_id", "state", "accepted_at", "dispatched_at", "acknowledged_at", "attempts", "reason")
        values = {name: getattr(self, name) for name in names}
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


@dataclass(slots=True)
class Tail:
    """What is recorded and not in the lake yet."""

    triggers: list[tuple[Envelope, Trigger]] = field(default_factory=list)
    outcomes: dict[tuple[str, int], OutcomeRecord] = field(default_factory=dict)


class Lives:
    """Answers questions about entries, from all that is known now."""

    def __init__(self, settings: Settings, catalog: Catalog, redis: Redis) -> None:
        self._settings, self._catalog, self._redis = settings, catalog, redis

    def of_vin(self, vin: str) -> list[Life]:
        """Every entry of a vehicle, oldest first."""
        lives = {entry.seq: _from_lake(vin, entry) for entry in read_entries(self._catalog, vin)}
        tail = self.tail()
        if not self._seqs(keys.done(vin)) <= self._known_to_end(vin, lives.values(), tail):
            self.flush()  # how it ended is still in the recorder's journal
            tail = self.tail()
        for envelope, trigger in tail.triggers:
            if vin in trigger.ids:
                lives.setdefault(envelope.seq, _accepted(vin, envelope.seq, trigger.request_id, trigger.data_id))
        in_redis = self._seqs(keys.pending(vin), keys.parked(vin), keys.done(vin))
        for seq in in_redis - lives.keys():  # its trigger is still in the recorder's journal
            request_id, data_id = self._trigger(seq)
            lives[seq] = _accepted(vin, seq, request_id, data_id)
        open_ones = [life for life in lives.values() if life.state == State.PENDING]
        ended = [_ended(life, tail.outcomes) for life in open_ones]
        lives |= {life.seq: life for life in ended}
        lives |= {life.seq: life for life in self.standing([life for life in ended if life.state == State.PENDING])}
        return [lives[seq] for seq in sorted(lives)]

    def of_batch(self, request_id: str) -> list[Life]:
        """Every entry of every trigger with this request_id, by seq and VIN."""
        ended = {(row["vin"], row["seq"]): row for row in self._batch_outcomes(request_id)}
        self.flush()  # which vehicles a trigger names is told by the archive alone
        tail = self.tail()
        lives: dict[tuple[int, str], Life] = {}
        for row in self._scan(IDS.identifier, where(EqualTo, "request_id", request_id)):
            life = _accepted(row["vin"], row["seq"], request_id, row["data_id"])
            outcome = ended.get((life.vin, life.seq))
            lives[life.seq, life.vin] = life if outcome is None else _with_row(life, outcome)
        for envelope, trigger in tail.triggers:
            if trigger.request_id == request_id:
                for vin in trigger.ids:
                    lives.setdefault((envelope.seq, vin), _accepted(vin, envelope.seq, request_id, trigger.data_id))
        settled = [_ended(life, tail.outcomes) if life.state == State.PENDING else life for life in lives.values()]
        open_ones = self.standing([life for life in settled if life.state == State.PENDING])
        done = [life for life in settled if life.state != State.PENDING]
        return sorted([*done, *open_ones], key=lambda life: (life.seq, life.vin))

    def standing(self, lives: list[Life]) -> list[Life]:
        """The same pending entries, with what Redis knows of them now."""
        found: list[Life] = []
        for start in range(0, len(lives), OWNERS_A_FLUSH):
            some = lives[start : start + OWNERS_A_FLUSH]
            pipe = self._redis.pipeline(transaction=False)
            for life in some:
                pipe.hmget(keys.inflight(life.vin), ["seq", "published_at", "attempts"])
                pipe.zscore(keys.parked(life.vin), life.seq)
                pipe.hget(keys.attempts(life.vin), str(life.seq))
                pipe.zscore(keys.done(life.vin), life.seq)
            replies = pipe.execute()
            found += [_standing(life, *replies[4 * n : 4 * n + 4]) for n, life in enumerate(some)]
        return found

    def tail(self) -> Tail:
        """What the archive holds that the lake does not."""
        now = datetime.now(UTC)
        archive = Archive(self._settings.archive, self._settings.s3)
        known = {row["path"] for row in self._scan(SEGMENTS.identifier, where(GreaterThanOrEqual, "ingested_at", now - TAIL))}
        tail = Tail()
        for segment in archive.segments(Interval(now - TAIL, now + TAIL)):
            if segment.path in known or segment.stream is Stream.DATA:
                continue
            with contextlib.suppress(Unreadable, FileNotFoundError):  # the ingest says what is wrong with it
                self._take(from_arrow(decode(archive.read(segment.path))), tail)
        return tail

    def flush(self) -> None:
        """Ask the recorder to close its open segments; where it is away, what it holds is told by Redis alone."""
        with contextlib.suppress(httpx.HTTPError):
            httpx.post(f"http://{self._settings.host}:{self._settings.recorder_port}/flush", timeout=10)

    def _take(self, envelopes: Iterable[Envelope], tail: Tail) -> None:
        for envelope in envelopes:
            if envelope.refused_because is not None or envelope.duplicate_of is not None:
                continue
            if envelope.stream is Stream.OUTCOME:
                record = OutcomeRecord.from_wire(envelope.payload)
                tail.outcomes[record.vin, record.seq] = record
            elif envelope.stream is Stream.TRIGGER:
                trigger = parse_trigger(
                    envelope.payload, max_ids=self._settings.max_ids, max_data_bytes=self._settings.max_data_bytes
                )
                if isinstance(trigger, Trigger):
                    tail.triggers.append((envelope, trigger))

    def _known_to_end(self, vin: str, lives: Iterable[Life], tail: Tail) -> set[int]:
        return {life.seq for life in lives if life.state != State.PENDING} | {seq for owner, seq in tail.outcomes if owner == vin}

    def _seqs(self, *queues: str) -> set[int]:
        pipe = self._redis.pipeline(transaction=False)
        for key in queues:
            pipe.zrange(key, 0, -1)
        return {int(seq) for seqs in pipe.execute() for seq in seqs}

    def _trigger(self, seq: int) -> tuple[str, str]:
        found: Any = self._redis.hmget(keys.trigger(seq), ["request_id", "data_id"])
        return found[0].decode() if found[0] else "", found[1].decode() if found[1] else ""

    def _batch_outcomes(self, request_id: str) -> list[dict[str, Any]]:
        seqs = {row["seq"] for row in self._scan(IDS.identifier, where(EqualTo, "request_id", request_id), ("seq",))}
        return [row for seq in seqs for row in self._scan(OUTCOMES.identifier, where(EqualTo, "seq", seq))]

    def _scan(self, identifier: str, row_filter: Any, columns: tuple[str, ...] = ("*",)) -> list[dict[str, Any]]:
        try:
            return list(self._catalog.load_table(identifier).scan(row_filter, columns).to_arrow().to_pylist())
        except NoSuchTableError:
            return []


def _accepted(vin: str, seq: int, request_id: str, data_id: str) -> Life:
    return Life(vin, seq, request_id, data_id, State.PENDING, datetime_of(seq))


def _from_lake(vin: str, entry: Any) -> Life:
    life = _accepted(vin, entry.seq, entry.request_id, entry.data_id)
    if entry.state == State.PENDING:
        return life
    return replace(
        life,
        state=entry.state,
        dispatched_at=entry.dispatched_at,
        acknowledged_at=entry.acknowledged_at,
        attempts=entry.attempts,
        reason=entry.reason,
    )


def _with_row(life: Life, row: dict[str, Any]) -> Life:
    names = ("dispatched_at", "acknowledged_at", "attempts", "reason")
    return replace(life, state=row["outcome"], **{name: row[name] for name in names})


def _ended(life: Life, outcomes: dict[tuple[str, int], OutcomeRecord]) -> Life:
    record = outcomes.get((life.vin, life.seq))
    if record is None:
        return life
    acknowledged = _instant(record.ended_ms) if record.outcome is Outcome.DELIVERED else None
    return replace(
        life,
        state=record.outcome.value,
        dispatched_at=_instant(record.dispatched_ms),
        acknowledged_at=acknowledged,
        attempts=record.attempts,
        reason=record.reason,
    )


def _standing(life: Life, inflight: list[bytes | None], parked: float | None, attempts: bytes | None, done: float | None) -> Life:
    seq, published_at, tries = inflight
    if seq is not None and int(seq) == life.seq:
        return replace(life, state=State.IN_FLIGHT, dispatched_at=_instant(int(published_at or 0)), attempts=int(tries or 0))
    if done is not None:  # the outcome is on its way to the archive; nearly always it is this one
        return replace(life, state=Outcome.DELIVERED)
    return replace(life, state=State.PENDING if parked is None else State.PARKED, attempts=int(attempts or 0))


def _instant(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
