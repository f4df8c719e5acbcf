"""Decides which rows ingest should have made of a segment, and how the rows in the tables differ. No Spark."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from manifold.archive import parsing
from manifold.archive.segment import Segment
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import first_seq_at
from manifold.contracts.tables import DATA, IDS, META, OUTCOMES, QUARANTINE
from pipelines.maintenance.campaign_check import CampaignRows, compare_campaign_rows
from pipelines.maintenance.ecq_check import ExpectedInQueues, FoundInQueues, TableComparison, compare_queue_rows
from pipelines.maintenance.signal_check import ExpectedSignals, FoundSignals, compare_signal_rows

EntryKey = tuple[str, int]  # VIN, seq


class Disagreement(StrEnum):
    """How archive, ledger and tables can disagree about one segment."""

    MISSING = "missing"
    DOUBLED = "doubled"
    LISTED_TWICE = "listed twice"
    WAITING = "waiting"
    GONE = "gone"


REMEDIES = {
    Disagreement.MISSING: "rows that it brought are not in the table; --repair ingests it again",
    Disagreement.DOUBLED: "rows that it brought are in the table more than once; --repair removes them and ingests it again",
    Disagreement.LISTED_TWICE: "ingested_segments has it more than once; --repair ingests it again",
    Disagreement.WAITING: "it has lain in the archive for more than a day, and no run has ingested it; --repair does",
    Disagreement.GONE: "it is in the lake but not in the archive; restore it from a copy: without it the lake cannot be restored",
}
REPAIRABLE = (Disagreement.MISSING, Disagreement.DOUBLED, Disagreement.LISTED_TWICE)


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One disagreement about a segment."""

    path: str
    trouble: str  # its kind, as in `Disagreement`
    table: str = ""  # empty if the disagreement is about the segment as a whole
    expected: int = 0  # number of rows
    found: int = 0  # number of rows


@dataclass(slots=True)
class ExpectedKeys:
    """The keys of the rows that ingest should have made of one segment."""

    segment: Segment
    entries: Counter[int] = field(default_factory=Counter)  # seq of a trigger → number of its vehicles
    data: dict[int, str] = field(default_factory=dict)  # seq of a message → data_id of its payload
    outcomes: dict[EntryKey, int] = field(default_factory=dict)  # key of an entry → seq of the first message about its outcome
    refused: set[int] = field(default_factory=set)  # seqs of refused messages
    instants: dict[int, datetime] = field(default_factory=dict)  # seq of a data or refused message → time of receipt
    queues: ExpectedInQueues = field(default_factory=ExpectedInQueues)
    signals: ExpectedSignals = field(default_factory=ExpectedSignals)
    campaigns: CampaignRows = field(default_factory=CampaignRows)

    def seqs(self) -> set[int]:
        """The seqs of all messages in the segment."""
        fanout_seqs = {*self.entries, *self.data, *self.outcomes.values(), *self.refused}
        return {*fanout_seqs, *self.queues.seqs(), *self.signals.seqs(), *self.campaigns.seqs()}


def expected_keys_of(segment: Segment, messages: pa.Table, limits: parsing.Limits) -> ExpectedKeys:
    """Parse the messages of a segment as ingest does; return the keys of the rows that ingest makes of them."""
    expected = ExpectedKeys(segment)
    for batch in parsing.PARSERS[segment.stream](messages, limits):
        _add_refused(expected, batch)
        accepted = batch.filter(pc.is_null(batch["reason"]))
        if segment.stream is Stream.TRIGGER:
            vehicle_counts = pc.list_value_length(accepted["vins"]).to_pylist()
            for seq, vehicle_count in zip(accepted["seq"].to_pylist(), vehicle_counts, strict=True):
                expected.entries[seq] += vehicle_count
        elif segment.stream is Stream.DATA:
            _add_data(expected, accepted)
        elif segment.stream is Stream.OUTCOME:
            columns = (accepted[name].to_pylist() for name in ("vin", "entry_seq", "seq"))
            for vin, entry_seq, seq in zip(*columns, strict=True):
                first_seq = expected.outcomes.get((vin, entry_seq), seq)
                expected.outcomes[vin, entry_seq] = min(seq, first_seq)
        elif segment.stream is Stream.ECQ:
            expected.queues.add_messages(accepted)
        elif segment.stream in (Stream.CAMPAIGN, Stream.ANSWER):
            expected.campaigns.add_messages(segment.stream, accepted)
        else:  # a stream of signals or device statuses
            expected.signals.add_messages(segment.stream, accepted)
    if segment.stream is Stream.TRIGGER:  # a trigger may bring its data along
        for batch in parsing.inline_data(messages, limits):
            _add_data(expected, batch)
    return expected


def _add_refused(expected: ExpectedKeys, batch: pa.RecordBatch) -> None:
    """Add the refused messages among these parsed messages, which ingest puts into quarantine."""
    refused = batch.filter(pc.is_valid(batch["reason"]))
    expected.refused.update(refused["seq"].to_pylist())
    expected.instants.update(zip(refused["seq"].to_pylist(), refused["received_at"].to_pylist(), strict=True))
    if "digest" in refused.schema.names:  # true of signals; other refused messages are identified by their seq alone
        expected.signals.add_refused(refused)


def _add_data(expected: ExpectedKeys, batch: pa.RecordBatch) -> None:
    expected.data.update(zip(batch["seq"].to_pylist(), batch["data_id"].to_pylist(), strict=True))
    expected.instants.update(zip(batch["seq"].to_pylist(), batch["received_at"].to_pylist(), strict=True))


@dataclass(slots=True)
class FoundRows:
    """The number of rows in the tables for each key that was expected from a group of segments."""

    entries: Counter[int] = field(default_factory=Counter)
    data: Counter[str] = field(default_factory=Counter)
    meta: Counter[str] = field(default_factory=Counter)  # 1 for each data_id, whatever its number of rows
    outcomes: Counter[EntryKey] = field(default_factory=Counter)
    quarantine: Counter[int] = field(default_factory=Counter)
    queues: FoundInQueues = field(default_factory=FoundInQueues)
    signals: FoundSignals = field(default_factory=FoundSignals)
    campaigns: CampaignRows = field(default_factory=CampaignRows)

    def add(self, other: "FoundRows") -> None:
        """Merge the counts of other segments. If both have a key, both have counted the same rows, so nothing is summed."""
        self.entries |= other.entries
        self.data |= other.data
        self.meta |= other.meta
        self.outcomes |= other.outcomes
        self.quarantine |= other.quarantine
        self.queues.add(other.queues)
        self.signals.add(other.signals)
        self.campaigns.add(other.campaigns)


@dataclass(frozen=True, slots=True)
class RequiredSince:
    """The instants from which on the tables must have all rows. Garbage collection or compaction may have removed older rows."""

    data: datetime
    refused: datetime
    history: datetime
    queue_messages: datetime
    queue_states: datetime
    signals: datetime


def findings_of(expected: ExpectedKeys, found: FoundRows, since: RequiredSince) -> Iterable[Finding]:
    """Yield a finding for each table that lacks expected rows of the segment, or has some of them more than once."""
    for comparison in _comparisons(expected, found, since):
        trouble = _disagreement_in(comparison)
        if trouble is not None:
            expected_rows = sum(comparison.expected.values())
            found_rows = sum(comparison.found[key] for key in comparison.expected)
            yield Finding(expected.segment.path, trouble, comparison.table, expected_rows, found_rows)


def _disagreement_in(comparison: TableComparison) -> Disagreement | None:
    """How the found rows differ from the expected rows, `DOUBLED` before `MISSING`; None if they are the same."""
    counts = comparison.expected.items()
    if any(comparison.found[key] > count for key, count in counts):
        return Disagreement.DOUBLED
    if any(comparison.found[key] < count for key, count in counts):
        return Disagreement.MISSING
    return None


def _comparisons(expected: ExpectedKeys, found: FoundRows, since: RequiredSince) -> Iterator[TableComparison]:
    """Yield the required and the found rows of the segment in each table.

    A message is either in quarantine, or its rows are in the other tables, so a message in quarantine requires no other rows.
    Only a message that was replayed from quarantine may be in both, so messages of a replay require their rows in any case.
    """
    history_seq = first_seq_at(since.history)  # entries with a lower seq may have been removed
    quarantined = set() if expected.segment.is_replay else set(found.quarantine)
    entries = {seq: count for seq, count in expected.entries.items() if seq not in quarantined and seq >= history_seq}
    yield TableComparison(IDS.name, entries, found.entries)
    data = {
        data_id: 1 for seq, data_id in expected.data.items() if seq not in quarantined and expected.instants[seq] >= since.data
    }
    yield TableComparison(DATA.name, data, found.data)
    yield TableComparison(META.name, data, found.meta)
    outcomes = {
        (vin, entry_seq): 1
        for (vin, entry_seq), seq in expected.outcomes.items()
        if seq not in quarantined and entry_seq >= history_seq
    }
    yield TableComparison(OUTCOMES.name, outcomes, found.outcomes)
    yield from compare_queue_rows(
        expected.queues,
        found.queues,
        quarantined,
        messages_since=since.queue_messages,
        states_since=since.queue_states,
    )
    yield from compare_signal_rows(expected.signals, found.signals, quarantined, since=since.signals)
    yield from compare_campaign_rows(expected.campaigns, found.campaigns, quarantined, since=history_seq)
    yield _compare_quarantine(expected, found, since.refused)


def _compare_quarantine(expected: ExpectedKeys, found: FoundRows, since: datetime) -> TableComparison:
    """Compare the refused messages since `since`. Messages that have a digest are compared by digest, the others by seq."""
    seqs = {seq for seq in expected.refused if expected.instants[seq] >= since}
    digest_by_seq = expected.signals.refused
    required: dict[int | str, int] = {digest_by_seq.get(seq, seq): 1 for seq in seqs}
    # If a replayed message was refused again, it rightly has two rows, which are counted as one.
    found_counts = Counter[int | str]({seq: min(found.quarantine[seq], 1) for seq in seqs})
    found_counts.update(found.signals.refused)
    return TableComparison(QUARANTINE.name, required, found_counts)
