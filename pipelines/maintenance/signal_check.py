"""Compares segments of signals with the rows that ingest makes of them. Pure.

A signal is matched by its key, not by the seq of its message: the broker may deliver a signal twice, and ingest stores only the
first message. For the same reason, statuses are matched by key, and refused messages by digest.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from manifold.contracts.envelope import Stream
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import INSTANT, XRAY_PROCESSED, XRAY_RAW, XRAY_STATUS
from pipelines.maintenance.ecq_check import TableComparison

SignalKey = tuple[str, datetime, str]  # device id, instant, content digest: the key of the table xray_raw_signals


@dataclass(slots=True)
class ExpectedSignals:
    """The signals, statuses and refused messages that ingest should have stored for a segment, by seq."""

    signals: dict[int, SignalKey] = field(default_factory=dict)  # the instant of the key is that of the capture
    statuses: dict[int, SignalKey] = field(default_factory=dict)  # the instant of the key is that at which the device was seen
    refused: dict[int, str] = field(default_factory=dict)  # digests of refused messages, if they have one

    def seqs(self) -> set[int]:
        """The seqs of the signals and statuses."""
        return {*self.signals, *self.statuses}

    def add_messages(self, stream: Stream, accepted: pa.RecordBatch) -> None:
        """Add the keys of these parsed messages."""
        if stream is Stream.XRAY_STATUS:
            key_by_seq, instants = self.statuses, accepted["seen_us"]
        else:
            key_by_seq, instants = self.signals, accepted["captured_us"]
        columns = (accepted["seq"], accepted["device_id"], instants.cast(INSTANT), accepted["content_digest"])
        for seq, device_id, instant, digest in zip(*(column.to_pylist() for column in columns), strict=True):
            key_by_seq[seq] = (device_id, instant, digest)

    def add_refused(self, refused: pa.RecordBatch) -> None:
        """Add the digests of these refused messages."""
        digests = zip(refused["seq"].to_pylist(), refused["digest"].to_pylist(), strict=True)
        self.refused.update({seq: digest for seq, digest in digests if digest is not None})


@dataclass(slots=True)
class FoundSignals:
    """The number of rows in the tables for each expected key."""

    raw: Counter[SignalKey] = field(default_factory=Counter)
    processed: Counter[SignalKey] = field(default_factory=Counter)
    statuses: Counter[SignalKey] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)  # digests

    def add(self, other: "FoundSignals") -> None:
        """Merge the counts of other segments. If both have a key, both have counted the same rows, so nothing is summed."""
        self.raw |= other.raw
        self.processed |= other.processed
        self.statuses |= other.statuses
        self.refused |= other.refused


def compare_signal_rows(
    expected: ExpectedSignals, found: FoundSignals, quarantined: Collection[int], *, since: datetime
) -> Iterator[TableComparison]:
    """Yield a comparison for each signal table. Messages before `since`, or whose seq is in `quarantined`, need no rows."""
    signals = {key: 1 for seq, key in expected.signals.items() if seq not in quarantined and datetime_of(seq) >= since}
    yield TableComparison(XRAY_RAW.name, signals, found.raw)
    yield TableComparison(XRAY_PROCESSED.name, signals, found.processed)
    statuses = {key: 1 for seq, key in expected.statuses.items() if seq not in quarantined and datetime_of(seq) >= since}
    yield TableComparison(XRAY_STATUS.name, statuses, found.statuses)
