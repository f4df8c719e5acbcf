"""Result types for entries, batches and data, and the bounds of a query."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from manifold.contracts.messages import sha1_hex
from manifold.contracts.outcomes import EntryState, Outcome, OutcomeRecord
from manifold.contracts.seq import MAX_SEQ, datetime_of

OPEN = "open"  # state of an entry that was not looked up individually and has no outcome in the lake
_STATES_WITHOUT_OUTCOME = frozenset(state.value for state in EntryState)
# The fields of an entry's JSON form.
SHOWN = ("seq", "request_id", "data_id", "state", "accepted_at", "dispatched_at", "acknowledged_at", "attempts", "reason")


@dataclass(frozen=True, slots=True)
class EntryHistory:
    """One entry: its identity, state, and event times.

    `state` is an `EntryState` or an `Outcome`. Times are UTC; a time is None if its event has not happened yet or is unknown.
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
        """When the entry was accepted (UTC), from its seq."""
        return datetime_of(self.seq)

    @property
    def is_open(self) -> bool:
        """Whether the entry has no known outcome."""
        return self.state in _STATES_WITHOUT_OUTCOME

    def with_outcome(self, record: OutcomeRecord) -> "EntryHistory":
        """Return the entry as ended with this outcome."""
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
        """Return the fields for `manifold vin show --json`."""
        values = {name: getattr(self, name) for name in SHOWN}
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, vin: str, fields: dict[str, Any]) -> "EntryHistory":
        """Parse an entry written by `to_json`; `accepted_at` follows from the seq."""
        values = {name: value for name, value in fields.items() if name in SHOWN and name != "accepted_at"}
        for name in ("dispatched_at", "acknowledged_at"):
            if values[name] is not None:
                values[name] = datetime.fromisoformat(values[name])
        return cls(vin, **values)


@dataclass(frozen=True, slots=True)
class BatchHistory:
    """One trigger: its number of vehicles, and its number of entries by state."""

    seq: int
    data_id: str
    vehicles: int
    states: Mapping[str, int]  # number of entries by `EntryState`, `Outcome`, or `OPEN`

    @property
    def accepted_at(self) -> datetime:
        """When the trigger was accepted (UTC), from its seq."""
        return datetime_of(self.seq)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a query for a request_id or a vehicle: page size, and limits on what is read."""

    limit: int = 20  # triggers of a request_id; entries of a vehicle
    entries: int = 100_000  # entries of triggers looked up individually
    rows: int = 5_000_000  # rows read from the lake before the page is cut
    before: int = MAX_SEQ  # upper bound of seqs, exclusive
    since: int = 0  # lower bound of seqs, inclusive

    def contains(self, seq: int) -> bool:
        """Whether this seq is within the bounds of seqs."""
        return self.since <= seq < self.before

    def within_entry_limit(self, batches: Iterable[BatchHistory]) -> set[int]:
        """Return the seqs of as many of the newest triggers as have together at most `entries` entries."""
        remaining = self.entries
        seqs = set()
        for batch in sorted(batches, key=lambda batch: batch.seq, reverse=True):
            remaining -= batch.vehicles
            if remaining < 0:
                break
            seqs.add(batch.seq)
        return seqs


@dataclass(frozen=True, slots=True)
class BatchPage:
    """Triggers, oldest first, and the entries of the newest of these triggers, as far as the entry limit allows."""

    batches: list[BatchHistory] = field(default_factory=list)
    before: int | None = None  # `before` of the next page; None: no older triggers
    entries: list[EntryHistory] = field(default_factory=list)
    complete_seqs: frozenset[int] = frozenset()  # seqs of the triggers whose entries are all in `entries`


@dataclass(frozen=True, slots=True)
class VehiclePage:
    """Entries of one vehicle, oldest first."""

    entries: list[EntryHistory] = field(default_factory=list)
    before: int | None = None  # `before` of the next page; None: no older entries


@dataclass(frozen=True, slots=True)
class DataHistory:
    """The payload of a data_id, and when it was published (UTC)."""

    payload: bytes
    first_seen_at: datetime | None  # None: the data is only in the queues, which keep no times
    last_seen_at: datetime | None
    times_seen: int

    def facts(self, data_id: str) -> dict[str, object]:
        """Return the fields of the data, without its payload."""
        return {
            "data_id": data_id,
            "sha1": sha1_hex(self.payload),
            "size_bytes": len(self.payload),
            "first_seen_at": self.first_seen_at,
            "last_seen_at": self.last_seen_at,
            "times_seen": self.times_seen,
        }


def instant_of(unix_ms: int | None) -> datetime | None:
    """Convert Unix milliseconds to a datetime (UTC); None stays None."""
    return None if unix_ms is None else datetime.fromtimestamp(unix_ms / 1000, UTC)
