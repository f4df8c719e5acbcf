"""Compares segments of the stream `ecq` with the rows that ingest makes of them. Pure.

Compaction removes superseded messages and settled states; garbage collection removes messages past their retention. So a message
may be missing if the table has a newer message of the same key, and only states of the last day are compared.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa

from manifold.archive.parsing import EcqKind
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import ECQ_INDEX, ECQ_PAYLOAD, ECQ_STATE

QueueKey = tuple[str, str]  # client id, key of the message
StateKey = tuple[str, int, int, str]  # client id, acknowledged seq, epoch, kind: the key of the table ecq_state


class StateMessage(NamedTuple):
    """The message from which ingest makes a state: its seq, and the instant of the acknowledgement or rewind."""

    seq: int
    at: datetime


def stored_keys(key: StateKey) -> tuple[StateKey, ...]:
    """The keys that a state may have in the table. An expiry has two: earlier releases stored it as an acknowledgement."""
    client_id, acked_seq, epoch, kind = key
    if kind == EcqKind.EXPIRED:
        return (key, (client_id, acked_seq, epoch, EcqKind.ACKNOWLEDGED.value))
    return (key,)


@dataclass(slots=True)
class ExpectedInQueues:
    """The messages and states of compacted queues that ingest should have stored for a segment."""

    messages: dict[int, QueueKey] = field(default_factory=dict)  # by seq
    states: dict[StateKey, StateMessage] = field(default_factory=dict)

    def seqs(self) -> set[int]:
        """The seqs of all messages in the segment."""
        return {*self.messages, *(state.seq for state in self.states.values())}

    def add_messages(self, accepted: pa.RecordBatch) -> None:
        """Add the rows that ingest makes of these parsed messages."""
        for row in accepted.drop_columns(["payload", "message"]).to_pylist():
            if row["kind"] == EcqKind.WRITE:
                self.messages[row["seq"]] = (row["client_id"], row["key"])
                continue
            # Every other kind (acknowledgement, expiry, rewind) becomes a state.
            key = (row["client_id"], row["acked_seq"], row["epoch"], row["kind"])
            acked_at = datetime.fromtimestamp(row["acked_ms"] / 1000, UTC)
            self.states[key] = StateMessage(row["seq"], acked_at)


@dataclass(slots=True)
class FoundInQueues:
    """The number of rows in the tables for each expected message and state."""

    payloads: Counter[int] = field(default_factory=Counter)  # rows of ecq_payload, by seq
    messages: Counter[int] = field(default_factory=Counter)  # rows of ecq_index, by seq
    states: Counter[StateKey] = field(default_factory=Counter)
    newest: dict[QueueKey, int] = field(default_factory=dict)  # the newest seq of keys that lack an expected message

    def add(self, other: "FoundInQueues") -> None:
        """Merge the counts of other segments. If both have a key, both have counted the same rows, so nothing is summed."""
        self.payloads |= other.payloads
        self.messages |= other.messages
        self.states |= other.states
        self.newest |= other.newest


class TableComparison(NamedTuple):
    """The rows of a segment in one table: the number expected, and the number found, for each key."""

    table: str
    expected: Mapping[Any, int]
    found: Counter[Any]


def compare_queue_rows(
    expected: ExpectedInQueues,
    found: FoundInQueues,
    quarantined: Collection[int],
    *,
    messages_since: datetime,
    states_since: datetime,
) -> Iterator[TableComparison]:
    """Yield a comparison for each table of compacted queues.

    No rows are needed for what has its seq in `quarantined`, for messages before `messages_since`, for messages that a newer one
    of their key has superseded, and for states before `states_since`.
    """
    for table, counts in ((ECQ_PAYLOAD, found.payloads), (ECQ_INDEX, found.messages)):
        required = {}
        for seq, key in expected.messages.items():
            newest_seq = found.newest.get(key)
            is_superseded = newest_seq is not None and newest_seq > seq
            is_required = seq not in quarantined and datetime_of(seq) >= messages_since and not is_superseded
            if is_required or counts[seq]:  # a row that need not exist must still not exist twice
                required[seq] = 1
        yield TableComparison(table.name, required, counts)
    states = {key: 1 for key, message in expected.states.items() if message.seq not in quarantined and message.at >= states_since}
    found_states = Counter[StateKey]()  # 1 for each key that has any row: a repeated state changes no result
    for state_key in states:
        if any(found.states[stored_key] for stored_key in stored_keys(state_key)):
            found_states[state_key] = 1
    yield TableComparison(ECQ_STATE.name, states, found_states)
