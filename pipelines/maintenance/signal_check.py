"""Compares what segments of signals should have brought with the tables. Pure.

A signal is matched by its key, not by its message, because another message may have brought the row first. So are statuses and
refused messages, which may have been delivered twice.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from manifold.contracts.envelope import Stream
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import INSTANT, XRAY_PROCESSED, XRAY_RAW, XRAY_STATUS
from pipelines.maintenance.ecq_check import Expected

SignalKey = tuple[str, datetime, str]  # as the key of xray_raw_signals


@dataclass(slots=True)
class BroughtSignals:
    """Signals, statuses and refused messages that a segment brought."""

    signals: dict[int, SignalKey] = field(default_factory=dict)  # by seq
    statuses: dict[int, SignalKey] = field(default_factory=dict)  # by seq: device, instant at which it was seen, digest
    refused: dict[int, str] = field(default_factory=dict)  # by seq: digests of messages that may be delivered twice

    def seqs(self) -> set[int]:
        """The seqs of its signals and statuses."""
        return {*self.signals, *self.statuses}

    def note(self, stream: Stream, accepted: pa.RecordBatch) -> None:
        """Add these parsed messages."""
        into, at = (self.statuses, "seen_us") if stream is Stream.XRAY_STATUS else (self.signals, "captured_us")
        columns = (accepted["seq"], accepted["device_id"], accepted[at].cast(INSTANT), accepted["content_digest"])
        for seq, *key in zip(*(column.to_pylist() for column in columns), strict=True):
            into[seq] = (key[0], key[1], key[2])

    def note_refused(self, refused: pa.RecordBatch) -> None:
        """Add these parsed messages that were refused."""
        digests = zip(refused["seq"].to_pylist(), refused["digest"].to_pylist(), strict=True)
        self.refused.update({seq: digest for seq, digest in digests if digest is not None})


@dataclass(slots=True)
class FoundSignals:
    """Rows in the tables, by key."""

    raw: Counter[SignalKey] = field(default_factory=Counter)
    processed: Counter[SignalKey] = field(default_factory=Counter)
    statuses: Counter[SignalKey] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)  # digests

    def add(self, other: "FoundSignals") -> None:
        """Merge the rows found for other segments; a key in both counts the same rows."""
        self.raw |= other.raw
        self.processed |= other.processed
        self.statuses |= other.statuses
        self.refused |= other.refused


def expected_signals(of: BroughtSignals, found: FoundSignals, accounted: Iterable[int], *, since: datetime) -> Iterator[Expected]:
    """Yield the rows since `since` that each table should have of the segment. Messages in `accounted` are in quarantine."""
    known = set(accounted)
    keys = {key: 1 for seq, key in of.signals.items() if seq not in known and datetime_of(seq) >= since}
    yield Expected(XRAY_RAW.name, keys, found.raw)
    yield Expected(XRAY_PROCESSED.name, keys, found.processed)
    statuses = {key: 1 for seq, key in of.statuses.items() if seq not in known and datetime_of(seq) >= since}
    yield Expected(XRAY_STATUS.name, statuses, found.statuses)
