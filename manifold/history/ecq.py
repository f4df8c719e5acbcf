"""The parts of an answer about an exclusive compacted queue: its live messages and its position."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from manifold.contracts.outcomes import EntryState, Outcome
from manifold.contracts.seq import datetime_of

WHY_EXPIRED = "its retention passed while it was pending"


@dataclass(frozen=True, slots=True)
class LiveMessage:
    """The newest message of a key."""

    key: str
    seq: int
    size_bytes: int | None  # of its payload; None: nobody who could be asked knows it
    state: str  # `pending`, `in flight`, `delivered`, or `expired`
    ended_at: datetime | None = None  # when it expired (UTC)
    reason: str | None = None  # why it expired

    @property
    def ts(self) -> datetime:
        """When it was accepted (UTC): the instant that is in its seq."""
        return datetime_of(self.seq)

    def sized(self, size_bytes: int | None) -> "LiveMessage":
        """The same, with this size if its own is not known."""
        return self if self.size_bytes is not None else replace(self, size_bytes=size_bytes)

    def expired(self, at: datetime) -> "LiveMessage":
        """The same, expired at an instant (UTC)."""
        return replace(self, state=Outcome.EXPIRED, ended_at=at, reason=WHY_EXPIRED)

    def aged(self, pending_retention: timedelta | None, now: datetime) -> "LiveMessage":
        """The same, expired if it is pending past its retention, recorded or not. A retention of None never passes."""
        if self.state != EntryState.PENDING or pending_retention is None or self.ts + pending_retention >= now:
            return self
        return self.expired(self.ts + pending_retention)

    def to_json(self) -> dict[str, Any]:
        """The fields that `manifold ecq show --json` prints; `ended_at` and `reason` only of an expired message."""
        ts = self.ts.isoformat()
        fields = {"key": self.key, "seq": self.seq, "ts": ts, "size_bytes": self.size_bytes, "state": str(self.state)}
        if self.ended_at is not None:
            fields |= {"ended_at": self.ended_at.isoformat(), "reason": self.reason}
        return fields


@dataclass(frozen=True, slots=True)
class CompactedQueue:
    """A client's queue, or a page of it."""

    client_id: str
    last_seq: int | None  # the greatest seq of a message; None: none is known
    acked_seq: int | None  # the position; None: nothing was acknowledged yet
    acked_at: datetime | None  # when it last moved on (UTC)
    entries: list[LiveMessage]  # oldest first
    after: int | None = None  # the next page has the messages after this seq; None: there are no others

    def to_json(self) -> dict[str, Any]:
        """The fields that `manifold ecq show --json` prints."""
        return {
            "client_id": self.client_id,
            "last_seq": self.last_seq,
            "acked_seq": self.acked_seq,
            "acked_at": None if self.acked_at is None else self.acked_at.isoformat(),
            "entries": [entry.to_json() for entry in self.entries],
        }


@dataclass(frozen=True, slots=True)
class Page:
    """How much of a queue is asked for."""

    limit: int | None = None  # messages; None: all
    after: int = 0  # only those with a greater seq
