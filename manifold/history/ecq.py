"""The parts of an answer about an exclusive compacted queue: its live messages and its position."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from manifold.contracts.seq import datetime_of


@dataclass(frozen=True, slots=True)
class LiveMessage:
    """The newest message of a key."""

    key: str
    seq: int
    size_bytes: int | None  # of its payload; None: nobody who could be asked knows it
    state: str  # `pending`, `in flight`, or `delivered`

    @property
    def ts(self) -> datetime:
        """When it was accepted (UTC): the instant that is in its seq."""
        return datetime_of(self.seq)

    def sized(self, size_bytes: int | None) -> "LiveMessage":
        """The same, with this size if its own is not known."""
        return self if self.size_bytes is not None else replace(self, size_bytes=size_bytes)

    def to_json(self) -> dict[str, Any]:
        """The fields that `manifold ecq show --json` prints."""
        ts = self.ts.isoformat()
        return {"key": self.key, "seq": self.seq, "ts": ts, "size_bytes": self.size_bytes, "state": str(self.state)}


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
