"""Compares archive, ledger and tables, segment by segment: `python -m pipelines check`. No Spark.

The archive is read again with the parsers of ingest, some segments at a time, and the rows that it should have brought are
counted in the tables as of one moment. A committed run that is not in every main yet is finished first.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual

from manifold.archive import parsing
from manifold.archive.content import Unreadable
from manifold.archive.formats import decode
from manifold.archive.segment import Interval, Segment
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
    SEGMENTS,
    XRAY_PROCESSED,
    XRAY_RAW,
    XRAY_STATUS,
    Table,
)
from manifold.lake.catalog import ensure_tables, where
from manifold.lake.grouping import grouped
from manifold.settings import Settings
from pipelines.ingest.ledger import Ledger, missing_segments
from pipelines.ingest.publish import main_snapshots
from pipelines.maintenance.campaign_check import found_of_campaigns
from pipelines.maintenance.check_plan import Disagreement, ExpectedKeys, Finding, Found, expected_keys_of, judge
from pipelines.maintenance.ecq_check import FoundInQueues, stored_keys
from pipelines.maintenance.garbage_history import history_cut
from pipelines.maintenance.garbage_signals import signals_cut
from pipelines.maintenance.signal_check import FoundSignals, SignalKey

MESSAGE_BATCH_SIZE = 200_000
MAX_INGEST_DELAY = timedelta(days=1)  # no scheduled run ingests segments that have been in the archive for longer
COMPACTION_DELAY = timedelta(days=1)  # younger states of compacted queues are not compacted
MAX_FINDINGS = 1000  # findings listed in the result

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check: what was compared, and where archive, ledger and tables disagree."""

    segments: int
    messages: int
    troubles: dict[str, int]  # by kind, the number of segments and tables
    findings: list[Finding] = field(default_factory=list)  # the first MAX_FINDINGS
    repaired: int = 0  # segments that were ingested again

    @property
    def agree(self) -> bool:
        """Whether nothing is wrong, or everything was repaired."""
        return not self.troubles

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


def check(catalog: Catalog, settings: Settings, *, now: datetime, interval: Interval | None = None) -> Checked:
    """Compare the archive (segments that began in `interval`) with the ledger, and the ledger with the tables."""
    findings, segments, messages = disagreements(catalog, settings, now=now, interval=interval)
    result = Checked(segments, messages, dict(Counter(str(f.trouble) for f in findings)), findings[:MAX_FINDINGS])
    log.info("archive, ledger and tables compared", agree=result.agree, segments=segments, troubles=result.troubles)
    return result


def disagreements(
    catalog: Catalog, settings: Settings, *, now: datetime, interval: Interval | None = None
) -> tuple[list[Finding], int, int]:
    """Return every disagreement, and how many segments and messages were compared."""
    ensure_tables(catalog)
    loaded = catalog.load_table(SEGMENTS.identifier)
    ledger, comparison = Ledger(loaded), Comparison(catalog, settings, main_snapshots(catalog, loaded), now)
    findings: list[Finding] = []
    segments = messages = 0
    late = now - MAX_INGEST_DELAY
    for walked in comparison.archive.walk(interval):
        listed = ledger.rows((segment.path for segment in walked), "messages", "refused_because").to_pylist()
        rows = {row["path"]: row for row in listed}
        counted = Counter(row["path"] for row in listed)
        findings += [Finding(path, Disagreement.LISTED_TWICE, "", 1, n) for path, n in counted.items() if n > 1]
        findings += [Finding(s.path, Disagreement.WAITING, "") for s in walked if s.path not in rows and s.modified_at < late]
        known = sorted(segment for segment in walked if segment.path in rows)
        for group in _groups(known, rows):
            findings += comparison.of(group, rows)
        segments += len(known)
        messages += sum(rows[segment.path]["messages"] for segment in known)
    if interval is None:
        since = (now - timedelta(days=settings.archive_retention_days)).date() + timedelta(days=1)
        findings += [Finding(path, Disagreement.GONE, "") for path in missing_segments(ledger, comparison.archive, since)]
    return sorted(findings), segments, messages


def _groups(segments: Sequence[Segment], rows: dict[str, dict[str, Any]]) -> Iterator[list[Segment]]:
    for _, of_stream in groupby(segments, lambda segment: segment.stream):
        yield from grouped(of_stream, lambda segment: int(rows[segment.path]["messages"]), MESSAGE_BATCH_SIZE)


def _of_refused_file(segment: Segment) -> ExpectedKeys:
    own = segment.own_seq
    return ExpectedKeys(segment, refused={own}, instants={own: segment.began_at or segment.modified_at})


class Comparison:
    """Compares the tables, as of one moment, with what segments should have brought."""

    def __init__(self, catalog: Catalog, settings: Settings, base: dict[str, int], now: datetime) -> None:
        self.archive = Archive(settings.archive, settings.s3)
        self._catalog, self._base = catalog, base
        self._limits = parsing.Limits(settings.max_ids, settings.max_data_bytes, settings.inline_encoding)
        kept = timedelta(days=settings.ecq_retention_days)
        self._since = {
            "data_since": now - timedelta(days=settings.retention_days),
            "refused_since": now - timedelta(days=settings.quarantine_retention_days),
            "history_since": history_cut(settings, now) or EPOCH,
            "messages_since": now - min(kept, settings.ecq_pending_retention or kept),
            "states_since": now - COMPACTION_DELAY,
            "signals_since": signals_cut(settings, now) or EPOCH,
        }

    def of(self, segments: Sequence[Segment], rows: dict[str, dict[str, Any]]) -> list[Finding]:
        """Findings about these segments, which are in the ledger."""
        group = [self.expected_keys(segment, refused=rows[segment.path]["refused_because"] is not None) for segment in segments]
        found = self.found(group)
        return [finding for one in group for finding in judge(one, found, **self._since)]

    def expected_keys(self, segment: Segment, *, refused: bool = False) -> ExpectedKeys:
        """The keys that a segment should have brought; for a file refused as a whole, one row in quarantine."""
        if refused:
            return _of_refused_file(segment)
        try:
            return expected_keys_of(segment, decode(segment.path, self.archive.read(segment.path)).messages, self._limits)
        except Unreadable:
            return _of_refused_file(segment)

    def found(self, group: Sequence[ExpectedKeys]) -> Found:
        """The rows in the tables that these segments should have brought."""
        entries = {seq for one in group for seq in one.entries}
        data_ids = {data_id for one in group for data_id in one.data.values()}
        ended = {key for one in group for key in one.outcomes}
        seqs = {seq for one in group for seq in one.seqs()}
        outcomes = Counter[tuple[Any, ...]]()  # a withdrawn entry may have a second row, which says that it was delivered
        for key, n in self.counted(OUTCOMES, OUTCOMES.key, "seq", {seq for _, seq in ended}, "accepted_at").items():
            outcomes[key[:2]] = max(n, outcomes[key[:2]])
        return Found(
            entries=Counter({key[0]: n for key, n in self.counted(IDS, ("seq",), "seq", entries, "ts").items()}),
            data=Counter({key[0]: n for key, n in self.counted(DATA, ("data_id",), "data_id", data_ids).items()}),
            meta=Counter(key[0] for key in self.counted(META, ("data_id",), "data_id", data_ids)),  # 1 for each data_id
            outcomes=Counter({key: n for key, n in outcomes.items() if key in ended}),
            quarantine=Counter({key[0]: n for key, n in self.counted(QUARANTINE, ("seq",), "seq", seqs).items()}),
            queues=self._in_queues(group),
            signals=self._signals(group),
            campaigns=found_of_campaigns([one.campaigns for one in group], self.counted),
        )

    def _signals(self, group: Sequence[ExpectedKeys]) -> FoundSignals:
        keys = {key for one in group for key in one.signals.signals.values()}
        captured = {key[1] for key in keys}
        raw, processed = (self.counted(t, XRAY_RAW.key, "captured_at", captured) for t in (XRAY_RAW, XRAY_PROCESSED))
        digests = {digest for one in group for digest in one.signals.refused.values()}
        return FoundSignals(
            refused=Counter({key[0]: n for key, n in self.counted(QUARANTINE, ("digest",), "digest", digests).items()}),
            raw=Counter({(key[0], key[1], key[2]): n for key, n in raw.items() if key in keys}),
            processed=Counter({(key[0], key[1], key[2]): n for key, n in processed.items() if key in keys}),
            statuses=self._statuses({seq: key for one in group for seq, key in one.signals.statuses.items()}),
        )

    def _statuses(self, brought: dict[int, SignalKey]) -> Counter[SignalKey]:
        """Rows by key; rows of an earlier release have no digest, and are matched by seq."""
        found = Counter[SignalKey]()
        columns = ("device_id", "seen_at", "content_digest", "seq")
        for row, n in self.counted(XRAY_STATUS, columns, "seen_at", {key[1] for key in brought.values()}).items():
            key = (row[0], row[1], row[2]) if row[2] is not None else brought.get(row[3])
            if key is not None:
                found[key] += n
        return found

    def _in_queues(self, group: Sequence[ExpectedKeys]) -> FoundInQueues:
        messages = {seq: key for one in group for seq, key in one.queues.messages.items()}
        states = {stored for one in group for key in one.queues.states for stored in stored_keys(key)}
        rows = self.counted(ECQ_STATE, ECQ_STATE.key, "acked_seq", {key[1] for key in states})
        found = FoundInQueues(
            payloads=Counter({key[0]: n for key, n in self.counted(ECQ_PAYLOAD, ("seq",), "seq", set(messages), "ts").items()}),
            messages=Counter({key[0]: n for key, n in self.counted(ECQ_INDEX, ("seq",), "seq", set(messages), "ts").items()}),
            states=Counter({(key[0], key[1], key[2], key[3]): n for key, n in rows.items() if key in states}),
        )
        lacking = {key for seq, key in messages.items() if not (found.messages[seq] and found.payloads[seq])}
        found.newest = self._newest(lacking, min(messages, default=0))
        return found

    def _newest(self, wanted: set[tuple[str, str]], after: int) -> dict[tuple[str, str], int]:
        """By client and key, the highest seq from `after` on."""
        newest: dict[tuple[str, str], int] = {}
        if not wanted:
            return newest
        clients = pa.array({client_id for client_id, _ in wanted})
        later = where(GreaterThanOrEqual, "seq", after)
        scan = self._catalog.load_table(ECQ_INDEX.identifier).scan(
            later, ("client_id", "key", "seq"), snapshot_id=self._base[ECQ_INDEX.name]
        )
        for batch in scan.to_arrow_batch_reader():
            mine = batch.filter(pc.is_in(batch["client_id"], value_set=clients.cast(batch["client_id"].type))).to_pylist()
            for row in mine:
                key = (row["client_id"], row["key"])
                newest[key] = max(newest.get(key, -1), row["seq"])
        return newest

    def counted(
        self, table: Table, columns: tuple[str, ...], by: str, wanted: set[Any], day_of: str | None = None
    ) -> Counter[tuple[Any, ...]]:
        """Count the rows with a wanted value in `by`, grouped by `columns`. `day_of` is a column with the instant of that seq."""
        counts = Counter[tuple[Any, ...]]()
        if not wanted:
            return counts
        low, high = min(wanted), max(wanted)
        within: BooleanExpression = And(where(GreaterThanOrEqual, by, low), where(LessThanOrEqual, by, high))
        if day_of is not None:
            days = And(where(GreaterThanOrEqual, day_of, datetime_of(low)), where(LessThanOrEqual, day_of, datetime_of(high)))
            within = And(within, days)
        scan = self._catalog.load_table(table.identifier).scan(within, columns, snapshot_id=self._base[table.name])
        values = pa.array(wanted)
        for batch in scan.to_arrow_batch_reader():
            rows = pa.Table.from_batches([batch.filter(pc.is_in(batch[by], value_set=values.cast(batch[by].type)))])
            grouped = rows.group_by(list(columns), use_threads=False).aggregate([([], "count_all")]).to_pydict()
            counts.update(dict(zip(zip(*(grouped[c] for c in columns), strict=True), grouped["count_all"], strict=True)))
        return counts
