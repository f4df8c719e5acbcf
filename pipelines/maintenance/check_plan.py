"""Decides which rows a segment should have brought to the tables, with the parsers of ingest, and what is wrong. No Spark."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from manifold.archive import parsing
from manifold.archive.segment import Segment
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import first_seq_at
from manifold.contracts.tables import DATA, IDS, META, OUTCOMES, QUARANTINE
from pipelines.maintenance.campaign_check import OfCampaigns, expected_of_campaigns
from pipelines.maintenance.ecq_check import BroughtToQueues, FoundInQueues, expected
from pipelines.maintenance.signal_check import BroughtSignals, FoundSignals, expected_signals

Key = tuple[str, int]


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
    """One disagreement."""

    path: str
    trouble: str
    table: str  # "" if it is about the segment as a whole
    expected: int = 0  # rows
    found: int = 0


@dataclass(slots=True)
class ExpectedKeys:
    """The keys of the rows that one segment should have brought."""

    segment: Segment
    entries: Counter[int] = field(default_factory=Counter)  # number of vehicles, by the seq of their trigger
    data: dict[int, str] = field(default_factory=dict)  # data_id, by the seq of the message that brought it
    outcomes: dict[Key, int] = field(default_factory=dict)  # (vin, seq of the entry) → seq of the first message about it
    refused: set[int] = field(default_factory=set)
    instants: dict[int, datetime] = field(default_factory=dict)  # receive time of data and refused messages, by seq
    queues: BroughtToQueues = field(default_factory=BroughtToQueues)
    signals: BroughtSignals = field(default_factory=BroughtSignals)
    campaigns: OfCampaigns = field(default_factory=OfCampaigns)

    def seqs(self) -> set[int]:
        """The seqs of all messages in the segment."""
        of_others = {*self.queues.seqs(), *self.signals.seqs(), *self.campaigns.seqs()}
        return {*self.entries, *self.data, *self.outcomes.values(), *self.refused, *of_others}


def expected_keys_of(segment: Segment, messages: pa.Table, limits: parsing.Limits) -> ExpectedKeys:
    """The keys of the rows that ingest makes of these messages."""
    of = ExpectedKeys(segment)
    for batch in parsing.PARSERS[segment.stream](messages, limits):
        _note_refused(of, batch)
        accepted = batch.filter(pc.is_null(batch["reason"]))
        if segment.stream is Stream.TRIGGER:
            sizes = pc.list_value_length(accepted["vins"]).to_pylist()
            for seq, vehicles in zip(accepted["seq"].to_pylist(), sizes, strict=True):
                of.entries[seq] += vehicles
        elif segment.stream is Stream.DATA:
            _note_data(of, accepted)
        elif segment.stream is Stream.OUTCOME:
            keys = zip(accepted["vin"].to_pylist(), accepted["entry_seq"].to_pylist(), strict=True)
            for key, seq in zip(keys, accepted["seq"].to_pylist(), strict=True):
                of.outcomes[key] = min(seq, of.outcomes.get(key, seq))
        elif segment.stream is Stream.ECQ:
            of.queues.note(accepted)
        elif segment.stream in (Stream.CAMPAIGN, Stream.ANSWER):
            of.campaigns.note(segment.stream, accepted)
        else:
            of.signals.note(segment.stream, accepted)
    if segment.stream is Stream.TRIGGER:
        for batch in parsing.inline_data(messages, limits):
            _note_data(of, batch)
    return of


def _note_refused(of: ExpectedKeys, batch: pa.RecordBatch) -> None:
    refused = batch.filter(pc.is_valid(batch["reason"]))
    of.refused.update(refused["seq"].to_pylist())
    of.instants.update(zip(refused["seq"].to_pylist(), refused["received_at"].to_pylist(), strict=True))
    if "digest" in refused.schema.names:
        of.signals.note_refused(refused)


def _note_data(of: ExpectedKeys, batch: pa.RecordBatch) -> None:
    of.data.update(zip(batch["seq"].to_pylist(), batch["data_id"].to_pylist(), strict=True))
    of.instants.update(zip(batch["seq"].to_pylist(), batch["received_at"].to_pylist(), strict=True))


@dataclass(slots=True)
class Found:
    """Rows in the tables that some segments should have brought, counted by key."""

    entries: Counter[int] = field(default_factory=Counter)
    data: Counter[str] = field(default_factory=Counter)
    meta: Counter[str] = field(default_factory=Counter)  # 1 for each data_id, whatever its number of rows
    outcomes: Counter[Key] = field(default_factory=Counter)
    quarantine: Counter[int] = field(default_factory=Counter)
    queues: FoundInQueues = field(default_factory=FoundInQueues)
    signals: FoundSignals = field(default_factory=FoundSignals)
    campaigns: OfCampaigns = field(default_factory=OfCampaigns)

    def add(self, other: "Found") -> None:
        """Merge the rows found for other segments; a key in both counts the same rows."""
        self.entries |= other.entries
        self.data |= other.data
        self.meta |= other.meta
        self.outcomes |= other.outcomes
        self.quarantine |= other.quarantine
        self.queues.add(other.queues)
        self.signals.add(other.signals)
        self.campaigns.add(other.campaigns)


def judge(
    of: ExpectedKeys,
    found: Found,
    *,
    data_since: datetime,
    refused_since: datetime,
    history_since: datetime,
    messages_since: datetime,
    states_since: datetime,
    signals_since: datetime,
) -> Iterable[Finding]:
    """Yield a finding wherever the tables do not have exactly once what the segment brought.

    A message is in quarantine, or its rows are in the tables; for a replay, both. Older data, older refused messages and
    older history may have been garbage-collected; for compacted queues see `ecq_check`.
    """
    since = first_seq_at(history_since)
    accounted = set(found.quarantine) if not of.segment.is_replay else set()
    entries = {seq: count for seq, count in of.entries.items() if seq not in accounted and seq >= since}
    yield from _compared(of, IDS.name, entries, found.entries)
    kept = {d: 1 for seq, d in of.data.items() if seq not in accounted and of.instants[seq] >= data_since}
    yield from _compared(of, DATA.name, kept, found.data)
    yield from _compared(of, META.name, kept, found.meta)
    ended = {key: 1 for key, seq in of.outcomes.items() if seq not in accounted and key[1] >= since}
    yield from _compared(of, OUTCOMES.name, ended, found.outcomes)
    for rows in expected(of.queues, found.queues, accounted, messages_since=messages_since, states_since=states_since):
        yield from _compared(of, rows.table, dict(rows.expected), rows.found)
    for rows in expected_signals(of.signals, found.signals, accounted, since=signals_since):
        yield from _compared(of, rows.table, dict(rows.expected), rows.found)
    for rows in expected_of_campaigns(of.campaigns, found.campaigns, accounted, since=since):
        yield from _compared(of, rows.table, dict(rows.expected), rows.found)
    kept_seqs = {seq for seq in of.refused if of.instants[seq] >= refused_since}
    refused: dict[int | str, int] = {of.signals.refused.get(seq, seq): 1 for seq in kept_seqs}
    there = Counter[int | str]({seq: min(found.quarantine[seq], 1) for seq in kept_seqs})  # a replay may have two
    there.update(found.signals.refused)
    yield from _compared(of, QUARANTINE.name, refused, there)


def _compared(of: ExpectedKeys, table: str, wanted_of: dict[Any, int], found: Counter[Any]) -> Iterable[Finding]:
    wanted, there = sum(wanted_of.values()), sum(found[key] for key in wanted_of)
    if any(found[key] > count for key, count in wanted_of.items()):
        yield Finding(of.segment.path, Disagreement.DOUBLED, table, wanted, there)
    elif any(found[key] < count for key, count in wanted_of.items()):
        yield Finding(of.segment.path, Disagreement.MISSING, table, wanted, there)
