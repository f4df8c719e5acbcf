"""The life of one entry: what it is, where it stands, and when what happened to it."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from contracts.outcomes import Outcome, OutcomeRecord, State
from contracts.seq import datetime_of

SHOWN = ("seq", "request_id", "data_id", "state", "accepted_at", "dispatched_at", "acknowledged_at", "attempts", "reason")


@dataclass(frozen=True, slots=True)
class Life:
    """`state` is a `State` or an `Outcome`. Instants are UTC; None: not yet, or not known."""

    vin: str
    seq: int
    request_id: str
    data_id: str
    state: str = State.PENDING
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

    def ended(self, record: OutcomeRecord) -> "Life":
        """The same entry, as this record ended it."""
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
    def from_json(cls, vin: str, fields: dict[str, Any]) -> "Life":
        """What `to_json` gave, of this vehicle."""
        said = {name: value for name, value in fields.items() if name in SHOWN and name != "accepted_at"}
        for name in ("dispatched_at", "acknowledged_at"):
            said[name] = None if said[name] is None else datetime.fromisoformat(said[name])
        return cls(vin, **said)


_OPEN = frozenset(state.value for state in State)


def instant_of(unix_ms: int | None) -> datetime | None:
    """Unix milliseconds as an instant (UTC)."""
    return None if unix_ms is None else datetime.fromtimestamp(unix_ms / 1000, UTC)
