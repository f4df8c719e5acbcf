"""Compares segments of the archive with the tables: which rows ingest should have made of them, and which rows there are."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual

from manifold.archive import parsing
from manifold.archive.content import Unreadable
from manifold.archive.formats import decode
from manifold.archive.segment import Segment
from manifold.archive.store import Archive
from manifold.contracts.seq import EPOCH, datetime_of
from manifold.contracts.tables import (
    DATA,
    ECQ_INDEX,
    ECQ_PAYLOAD,
    ECQ_STATE,
    IDS,
    META,
    OUTCOMES,
    QUARANTINE,
    XRAY_PROCESSED,
    XRAY_RAW,
    XRAY_STATUS,
    Table,
)
from manifold.lake.catalog import where
from manifold.settings import Settings
from pipelines.maintenance.campaign_check import find_campaign_rows
from pipelines.maintenance.check_plan import (
    EntryKey,
    ExpectedKeys,
    Finding,
    FoundRows,
    RequiredSince,
    expected_keys_of,
    findings_of,
)
from pipelines.maintenance.ecq_check import FoundInQueues, QueueKey, stored_keys
from pipelines.maintenance.garbage_history import history_cutoff
from pipelines.maintenance.garbage_signals import signals_cutoff
from pipelines.maintenance.signal_check import FoundSignals, SignalKey

COMPACTION_DELAY = timedelta(days=1)  # younger states of compacted queues are not compacted


def _keys_of_refused_file(segment: Segment) -> ExpectedKeys:
    """The expected keys of a file that was refused as a whole: one row in quarantine, with a seq made for the file."""
    file_seq = segment.quarantine_seq
    return ExpectedKeys(segment, refused={file_seq}, instants={file_seq: segment.began_at or segment.modified_at})


class Comparison:
    """Compares the rows that ingest should have made of segments with the tables at the snapshots `base`."""

    def __init__(self, catalog: Catalog, settings: Settings, base: dict[str, int], now: datetime) -> None:
        self.archive = Archive(settings.archive, settings.s3)
        self._catalog, self._base = catalog, base
        self._limits = parsing.Limits.of(settings)
        queue_retention = timedelta(days=settings.ecq_retention_days)
        pending_retention = settings.ecq_pending_retention or queue_retention
        self._since = RequiredSince(  # rows that are kept forever are required since the epoch
            data=now - timedelta(days=settings.retention_days),
            refused=now - timedelta(days=settings.quarantine_retention_days),
            history=history_cutoff(settings, now) or EPOCH,
            queue_messages=now - min(queue_retention, pending_retention),
            queue_states=now - COMPACTION_DELAY,
            signals=signals_cutoff(settings, now) or EPOCH,
        )

    def compare(self, segments: Sequence[Segment], row_by_path: dict[str, dict[str, Any]]) -> list[Finding]:
        """Return the findings about these segments. `row_by_path` has their ledger rows."""
        group = []
        for segment in segments:
            is_refused = row_by_path[segment.path]["refused_because"] is not None
            group.append(self.expected_keys(segment, refused=is_refused))
        found = self.find_rows(group)
        return [finding for expected in group for finding in findings_of(expected, found, self._since)]

    def expected_keys(self, segment: Segment, *, refused: bool = False) -> ExpectedKeys:
        """The keys of the rows that ingest should have made of a segment; with `refused`, of a file refused as a whole."""
        if refused:
            return _keys_of_refused_file(segment)
        try:
            messages = decode(segment.path, self.archive.read(segment.path)).messages
            return expected_keys_of(segment, messages, self._limits)
        except Unreadable:
            return _keys_of_refused_file(segment)

    def find_rows(self, group: Sequence[ExpectedKeys]) -> FoundRows:
        """Count the rows in the tables that have one of the expected keys."""
        seqs = {seq for expected in group for seq in expected.seqs()}
        entry_seqs = {seq for expected in group for seq in expected.entries}
        data_ids = {data_id for expected in group for data_id in expected.data.values()}
        data_rows = self._count_by(DATA, "data_id", data_ids)
        indexed_data_ids = self._count_by(META, "data_id", data_ids)
        return FoundRows(
            entries=self._count_by(IDS, "seq", entry_seqs, "ts"),
            data=data_rows,
            meta=Counter(dict.fromkeys(indexed_data_ids, 1)),  # several rows of a data_id are no disagreement
            outcomes=self._find_outcomes(group),
            quarantine=self._count_by(QUARANTINE, "seq", seqs),
            queues=self._find_queue_rows(group),
            signals=self._find_signals(group),
            campaigns=find_campaign_rows([expected.campaigns for expected in group], self.count_rows),
        )

    def _find_outcomes(self, group: Sequence[ExpectedKeys]) -> Counter[EntryKey]:
        """Count the outcomes of the expected entries.

        An entry that was withdrawn, but delivered nevertheless, rightly has one row of each outcome. So rows are counted per
        outcome, and the largest count is that of the entry.
        """
        expected_keys = {key for expected in group for key in expected.outcomes}
        entry_seqs = {seq for _, seq in expected_keys}
        largest_counts = Counter[EntryKey]()
        for (vin, seq, *_), count in self.count_rows(OUTCOMES, OUTCOMES.key, "seq", entry_seqs, "accepted_at").items():
            if (vin, seq) in expected_keys:
                largest_counts[vin, seq] = max(count, largest_counts[vin, seq])
        return largest_counts

    def _find_signals(self, group: Sequence[ExpectedKeys]) -> FoundSignals:
        """Count the rows of the expected signals, statuses and refused signal messages."""
        keys = {key for expected in group for key in expected.signals.signals.values()}  # (device id, instant, digest)
        capture_times = {captured_at for _, captured_at, _ in keys}
        raw = self.count_rows(XRAY_RAW, XRAY_RAW.key, "captured_at", capture_times)
        # Rows of both tables are matched by the key of the raw signal.
        processed = self.count_rows(XRAY_PROCESSED, XRAY_RAW.key, "captured_at", capture_times)
        digests = {digest for expected in group for digest in expected.signals.refused.values()}
        return FoundSignals(
            refused=self._count_by(QUARANTINE, "digest", digests),
            raw=Counter({(key[0], key[1], key[2]): count for key, count in raw.items() if key in keys}),
            processed=Counter({(key[0], key[1], key[2]): count for key, count in processed.items() if key in keys}),
            statuses=self._find_statuses({seq: key for expected in group for seq, key in expected.signals.statuses.items()}),
        )

    def _find_statuses(self, keys_by_seq: dict[int, SignalKey]) -> Counter[SignalKey]:
        """Count the rows of the expected statuses. Rows of an earlier release have no digest; they are found by their seq."""
        found = Counter[SignalKey]()
        columns = ("device_id", "seen_at", "content_digest", "seq")
        seen_times = {seen_at for _, seen_at, _ in keys_by_seq.values()}
        for (device_id, seen_at, digest, seq), count in self.count_rows(XRAY_STATUS, columns, "seen_at", seen_times).items():
            key = (device_id, seen_at, digest) if digest is not None else keys_by_seq.get(seq)
            if key is not None:  # otherwise the row is of another status of the same instant
                found[key] += count
        return found

    def _find_queue_rows(self, group: Sequence[ExpectedKeys]) -> FoundInQueues:
        """Count the rows of the expected messages and states; find the newest message of keys that lack an expected message."""
        messages = {seq: key for expected in group for seq, key in expected.queues.messages.items()}
        state_keys = {stored for expected in group for key in expected.queues.states for stored in stored_keys(key)}
        acked_seqs = {acked_seq for _, acked_seq, _, _ in state_keys}
        states = self.count_rows(ECQ_STATE, ECQ_STATE.key, "acked_seq", acked_seqs)
        found = FoundInQueues(
            payloads=self._count_by(ECQ_PAYLOAD, "seq", set(messages), "ts"),
            messages=self._count_by(ECQ_INDEX, "seq", set(messages), "ts"),
            states=Counter({(key[0], key[1], key[2], key[3]): count for key, count in states.items() if key in state_keys}),
        )
        keys_with_missing_rows = {key for seq, key in messages.items() if not found.messages[seq] or not found.payloads[seq]}
        found.newest = self._newest_seqs(keys_with_missing_rows, min(messages, default=0))
        return found

    def _newest_seqs(self, keys: set[QueueKey], min_seq: int) -> dict[QueueKey, int]:
        """The highest seq of each key, as (client id, key) → seq. Messages before `min_seq` are not read.

        Other keys of the same clients are in the result, too.
        """
        newest: dict[QueueKey, int] = {}
        if not keys:
            return newest
        client_ids = pa.array({client_id for client_id, _ in keys})
        scan = self._catalog.load_table(ECQ_INDEX.identifier).scan(
            where(GreaterThanOrEqual, "seq", min_seq), ("client_id", "key", "seq"), snapshot_id=self._base[ECQ_INDEX.name]
        )
        for batch in scan.to_arrow_batch_reader():
            is_of_clients = pc.is_in(batch["client_id"], value_set=client_ids.cast(batch["client_id"].type))
            for row in batch.filter(is_of_clients).to_pylist():
                key = (row["client_id"], row["key"])
                newest[key] = max(newest.get(key, -1), row["seq"])
        return newest

    def _count_by(self, table: Table, column: str, values: set[Any], instant_of: str | None = None) -> Counter[Any]:
        """Count the rows per value of one column. The arguments are those of `count_rows`."""
        counts = self.count_rows(table, (column,), column, values, instant_of)
        return Counter({value: count for (value,), count in counts.items()})

    def count_rows(
        self, table: Table, columns: tuple[str, ...], by: str, values: set[Any], instant_of: str | None = None
    ) -> Counter[tuple[Any, ...]]:
        """Count the rows that have one of `values` in the column `by`, grouped by `columns`.

        If the values are seqs, `instant_of` may name the column that holds the instant of the same seq: it is a partition column,
        so the scan reads fewer files.
        """
        counts = Counter[tuple[Any, ...]]()
        if not values:
            return counts
        low, high = min(values), max(values)
        in_range: BooleanExpression = And(where(GreaterThanOrEqual, by, low), where(LessThanOrEqual, by, high))
        if instant_of is not None:
            since, until = datetime_of(low), datetime_of(high)
            in_time = And(where(GreaterThanOrEqual, instant_of, since), where(LessThanOrEqual, instant_of, until))
            in_range = And(in_range, in_time)
        scan = self._catalog.load_table(table.identifier).scan(in_range, columns, snapshot_id=self._base[table.name])
        value_set = pa.array(values)
        for batch in scan.to_arrow_batch_reader():
            has_value = pc.is_in(batch[by], value_set=value_set.cast(batch[by].type))
            rows = pa.Table.from_batches([batch.filter(has_value)])
            groups = rows.group_by(list(columns), use_threads=False).aggregate([([], "count_all")]).to_pydict()
            keys = zip(*(groups[column] for column in columns), strict=True)
            counts.update(dict(zip(keys, groups["count_all"], strict=True)))
        return counts
