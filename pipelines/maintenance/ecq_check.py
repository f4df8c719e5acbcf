"""Compares what segments of the stream `ecq` should have brought with the tables. Pure.

Compaction removes superseded messages and settled states; garbage collection removes messages past their retention.
So a missing message is not an error if there is a newer one of its key, and only states of the last day are compared.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa

from manifold.archive.parsing import EcqKind
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import ECQ_INDEX, ECQ_PAYLOAD, ECQ_STATE

Key = tuple[str, str]  # client id, key
StateKey = tuple[str, int, int, str]  # as the key of ecq_state


class BroughtState(NamedTuple):
    """The message that brought a state, and when it was acknowledged or rewound."""

    seq: int
    at: datetime


def stored_keys(key: StateKey) -> tuple[StateKey, ...]:
    """The keys under which a state may be in the table: earlier releases stored an expiry as an acknowledgement."""
    return (key, (*key[:3], EcqKind.ACKNOWLEDGED.value)) if key[3] == EcqKind.EXPIRED else (key,)


@dataclass(slots=True)
class BroughtToQueues:
    """Messages and states that a segment brought to compacted queues."""

    messages: dict[int, Key] = field(default_factory=dict)  # by seq
    states: dict[StateKey, BroughtState] = field(default_factory=dict)

    def seqs(self) -> set[int]:
        """The seqs of all its messages."""
        return {*self.messages, *(state.seq for state in self.states.values())}

    def note(self, accepted: pa.RecordBatch) -> None:
        """Add these parsed messages."""
        for row in accepted.drop_columns(["payload", "message"]).to_pylist():
            if row["kind"] == EcqKind.WRITE:
                self.messages[row["seq"]] = (row["client_id"], row["key"])
                continue
            key = (row["client_id"], row["acked_seq"], row["epoch"], row["kind"])
            self.states[key] = BroughtState(row["seq"], datetime.fromtimestamp(row["acked_ms"] / 1000, UTC))


@dataclass(slots=True)
class FoundInQueues:
    """Rows in the tables, by key, and the newest message of each key that lacks a message."""

    payloads: Counter[int] = field(default_factory=Counter)
    messages: Counter[int] = field(default_factory=Counter)
    states: Counter[StateKey] = field(default_factory=Counter)
    newest: dict[Key, int] = field(default_factory=dict)

    def add(self, other: "FoundInQueues") -> None:
        """Merge the rows found for other segments; a key in both counts the same rows."""
        self.payloads |= other.payloads
        self.messages |= other.messages
        self.states |= other.states
        self.newest |= other.newest


class Expected(NamedTuple):
    """Rows of one table: how many are expected of each key, and how many there are."""

    table: str
    expected: Mapping[Any, int]
    found: Counter[Any]


def expected(
    of: BroughtToQueues, found: FoundInQueues, accounted: Iterable[int], *, messages_since: datetime, states_since: datetime
) -> Iterator[Expected]:
    """Yield the rows of the segment that each table should have. Messages in `accounted` are in quarantine."""
    known = set(accounted)
    for table, rows in ((ECQ_PAYLOAD, found.payloads), (ECQ_INDEX, found.messages)):
        wanted = {
            seq: 1
            for seq, key in of.messages.items()
            if rows[seq] or (seq not in known and datetime_of(seq) >= messages_since and found.newest.get(key, -1) <= seq)
        }
        yield Expected(table.name, wanted, rows)
    states = {key: 1 for key, state in of.states.items() if state.seq not in known and state.at >= states_since}
    there = Counter({key: int(any(found.states[stored] for stored in stored_keys(key))) for key in states})
    yield Expected(ECQ_STATE.name, states, there)
