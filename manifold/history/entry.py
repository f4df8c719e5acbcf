"""The parts of an answer: the history of an entry, of a batch, of data; and the bounds of a question."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from manifold.contracts.messages import sha1_hex
from manifold.contracts.outcomes import EntryState, Outcome, OutcomeRecord
from manifold.contracts.seq import MAX_SEQ, datetime_of

OPEN = "open"  # of an entry that was not looked at by itself: nothing in the lake says that it has ended
SHOWN = ("seq", "request_id", "data_id", "state", "accepted_at", "dispatched_at", "acknowledged_at", "attempts", "reason")


@dataclass(frozen=True, slots=True)
class EntryHistory:
    """One entry: its identity, its state, and the times of its events.

    `state` is an `EntryState` or an `Outcome`. Instants are UTC; None: not yet, or not known.
    """

    vin: str
    seq: int
    request_id: str
    data_id: str
    state: str = EntryState.PENDING
    dispatched_at: datetime | None = None
    acknowledged_at: datetime | None = None
    ended_at: datetime | None = None
    attempts: int | None = None
    reason: str | None = None

    @property
    def accepted_at(self) -> datetime:
        """The instant that is in its seq."""
        return datetime_of(self.seq)

    @property
    def is_open(self) -> bool:
        """Whether nothing says that it has ended."""
        return self.state in _OPEN

    def ended(self, record: OutcomeRecord) -> "EntryHistory":
        """The entry as it stands after this outcome."""
        ended_at = instant_of(record.ended_ms)
        return replace(
            self,
            state=record.outcome.value,
            dispatched_at=instant_of(record.dispatched_ms),
            acknowledged_at=ended_at if record.outcome is Outcome.DELIVERED else None,
            ended_at=ended_at,
            attempts=record.attempts,
            reason=record.reason,
        )

    def to_json(self) -> dict[str, Any]:
        """The fields that `manifold vin show --json` prints."""
        values = {name: getattr(self, name) for name in SHOWN}
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, vin: str, fields: dict[str, Any]) -> "EntryHistory":
        """The entry of this vehicle that `to_json` wrote."""
        values = {name: value for name, value in fields.items() if name in SHOWN and name != "accepted_at"}
        for name in ("dispatched_at", "acknowledged_at"):
            values[name] = None if values[name] is None else datetime.fromisoformat(values[name])
        return cls(vin, **values)


@dataclass(frozen=True, slots=True)
class BatchHistory:
    """One trigger, how many vehicles it names, and how many of their entries stand how."""

    seq: int
    data_id: str
    vehicles: int
    states: Mapping[str, int]  # by `EntryState`, `Outcome`, or `OPEN`

    @property
    def accepted_at(self) -> datetime:
        """The instant that is in its seq."""
        return datetime_of(self.seq)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a question about a request_id or a vehicle: the size of a page, and what may be read for it."""

    limit: int = 20  # triggers of a request_id; entries of a vehicle
    entries: int = 100_000  # of triggers, that are looked at one by one
    rows: int = 5_000_000  # of the lake, before the answer says how far back it has come
    before: int = MAX_SEQ  # what has seqs below this
    since: int = 0  # and from this on

    def told(self, batches: Iterable[BatchHistory]) -> set[int]:
        """Seqs of the newest triggers whose entries are not too many to be looked at one by one."""
        left = self.entries
        found = set()
        for batch in sorted(batches, key=lambda batch: batch.seq, reverse=True):
            left -= batch.vehicles
            if left < 0:
                break
            found.add(batch.seq)
        return found


@dataclass(frozen=True, slots=True)
class BatchPage:
    """Triggers, oldest first; and the entries of those that are few enough to be told one by one."""

    batches: list[BatchHistory] = field(default_factory=list)
    before: int | None = None  # the next page has the triggers before this seq; None: there are no others
    entries: list[EntryHistory] = field(default_factory=list)
    told: frozenset[int] = frozenset()  # seqs of the triggers whose entries are all among `entries`


@dataclass(frozen=True, slots=True)
class VehiclePage:
    """Entries of one vehicle, oldest first."""

    entries: list[EntryHistory] = field(default_factory=list)
    before: int | None = None  # the next page has the entries before this seq; None: there are no others


@dataclass(frozen=True, slots=True)
class DataHistory:
    """The bytes, and when they were published. Instants are UTC; None: known to the queues alone, which do not say."""

    payload: bytes
    first_seen_at: datetime | None
    last_seen_at: datetime | None
    times_seen: int

    def facts(self, data_id: str) -> dict[str, object]:
        """The fields of the data, without its bytes."""
        return {
            "data_id": data_id,
            "sha1": sha1_hex(self.payload),
            "size_bytes": len(self.payload),
            "first_seen_at": self.first_seen_at,
            "last_seen_at": self.last_seen_at,
            "times_seen": self.times_seen,
        }


_OPEN = frozenset(state.value for state in EntryState)


def instant_of(unix_ms: int | None) -> datetime | None:
    """Unix milliseconds as an instant (UTC)."""
    return None if unix_ms is None else datetime.fromtimestamp(unix_ms / 1000, UTC)
