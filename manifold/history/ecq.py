"""Result types for an exclusive compacted queue: its live messages and its position."""

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
    size_bytes: int | None  # payload size; None: unknown to every available source
    state: str  # `pending`, `in flight`, `delivered`, or `expired`
    ended_at: datetime | None = None  # time of expiry (UTC)
    reason: str | None = None  # reason of expiry

    @property
    def ts(self) -> datetime:
        """When the message was accepted (UTC), from its seq."""
        return datetime_of(self.seq)

    def with_size_if_unknown(self, size_bytes: int | None) -> "LiveMessage":
        """Return the message with this size if its own size is unknown, else unchanged."""
        return replace(self, size_bytes=size_bytes) if self.size_bytes is None else self

    def as_expired(self, at: datetime) -> "LiveMessage":
        """Return a copy that expired at `at` (UTC)."""
        return replace(self, state=Outcome.EXPIRED, ended_at=at, reason=WHY_EXPIRED)

    def expired_if_overdue(self, pending_retention: timedelta | None, now: datetime) -> "LiveMessage":
        """Return the message as expired if it is pending past its retention, even if that expiry is not recorded yet.

        Otherwise return it unchanged. `pending_retention` of None is unlimited.
        """
        if self.state != EntryState.PENDING or pending_retention is None:
            return self
        expires_at = self.ts + pending_retention
        return self.as_expired(expires_at) if expires_at < now else self

    def to_json(self) -> dict[str, Any]:
        """Return the fields for `manifold ecq show --json`. Only an expired message has `ended_at` and `reason`."""
        ts = self.ts.isoformat()
        fields = {"key": self.key, "seq": self.seq, "ts": ts, "size_bytes": self.size_bytes, "state": str(self.state)}
        if self.ended_at is not None:
            fields |= {"ended_at": self.ended_at.isoformat(), "reason": self.reason}
        return fields


@dataclass(frozen=True, slots=True)
class CompactedQueue:
    """A client's queue, or a page of it."""

    client_id: str
    last_seq: int | None  # greatest seq of a message; None: unknown
    acked_seq: int | None  # the position; None: nothing acknowledged yet
    acked_at: datetime | None  # time of the last acknowledgement (UTC)
    entries: list[LiveMessage]  # oldest first
    after: int | None = None  # `after` of the next page; None: no more messages

    def to_json(self) -> dict[str, Any]:
        """Return the fields for `manifold ecq show --json`."""
        return {
            "client_id": self.client_id,
            "last_seq": self.last_seq,
            "acked_seq": self.acked_seq,
            "acked_at": None if self.acked_at is None else self.acked_at.isoformat(),
            "entries": [entry.to_json() for entry in self.entries],
        }


@dataclass(frozen=True, slots=True)
class Page:
    """The requested part of a queue."""

    limit: int | None = None  # messages; None: all
    after: int = 0  # messages with a greater seq only
