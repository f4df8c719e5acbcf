"""Reads the signals of a device from the lake, and from segments that are not in the lake yet."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import And, EqualTo, LessThan

from manifold.archive.flush import close_signal_segments
from manifold.archive.parsing import Limits, Processing
from manifold.contracts.envelope import Stream, to_arrow
from manifold.contracts.seq import datetime_of
from manifold.contracts.signals.records import topic_of
from manifold.contracts.tables import XRAY_PROCESSED
from manifold.history.from_archive import not_ingested
from manifold.lake.catalog import where
from manifold.lake.reads import read_segments
from manifold.settings import Settings

_COLUMNS = ("captured_at", "seq", "correlation_id", "content_digest", "readings", "anomalies", "rules", "problem")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RECENT = timedelta(days=2)


@dataclass(frozen=True, slots=True)
class DeviceSignal:
    """One signal and its processing results."""

    captured_at: datetime
    seq: int
    correlation_id: str | None
    content_digest: str
    readings: list[dict[str, Any]] = field(default_factory=list)
    anomalies: list[dict[str, Any]] = field(default_factory=list)
    rules: int | None = None
    problem: str | None = None  # why the payload could not be read

    @property
    def received_at(self) -> datetime:
        """When it was accepted (UTC), from its seq."""
        return datetime_of(self.seq)

    def to_json(self) -> dict[str, Any]:
        """Return the fields for `manifold signals show --json`."""
        said = {
            "captured_at": self.captured_at.isoformat(),
            "received_at": self.received_at.isoformat(),
            "seq": self.seq,
            "correlation_id": self.correlation_id,
            "readings": self.readings,
            "anomalies": self.anomalies,
        }
        return said if self.problem is None else said | {"problem": self.problem}


@dataclass(frozen=True, slots=True)
class DeviceSignals:
    """The newest signals of a device, or a page of older ones, oldest first."""

    device_id: str
    signals: list[DeviceSignal]
    before: int | None = None  # `before` of the next page; None: no older signals

    def to_json(self) -> dict[str, Any]:
        """Return the fields for `manifold signals show --json`."""
        return {"device_id": self.device_id, "signals": [signal.to_json() for signal in self.signals]}


def device_signals(settings: Settings, catalog: Catalog, device_id: str, *, limit: int, before: int) -> DeviceSignals:
    """Return the newest `limit` signals accepted before the seq `before`. A signal received twice is listed once.

    Raises:
        OSError: the archive, the lake, or the key storage failed.
    """
    close_signal_segments(settings)  # flush the door's journal
    ingested = read_segments(catalog, datetime.now(UTC) - RECENT)
    known: dict[tuple[datetime, str], DeviceSignal] = {}
    for signal in sorted(
        [*_from_lake(catalog, device_id, limit, before), *_from_archive(settings, ingested, device_id)], key=_seq
    ):
        if signal.seq < before:
            known.setdefault((signal.captured_at, signal.content_digest), signal)
    newest = sorted(known.values(), key=_seq)
    page = newest[-limit:]
    return DeviceSignals(device_id, page, page[0].seq if len(newest) > limit else None)


def _seq(signal: DeviceSignal) -> int:
    return signal.seq


def _from_lake(catalog: Catalog, device_id: str, limit: int, before: int) -> list[DeviceSignal]:
    """Return the newest signals, one more than a page; memory is bounded by one record batch."""
    try:
        loaded = catalog.load_table(XRAY_PROCESSED.identifier)
    except NoSuchTableError:
        return []
    mine = And(where(EqualTo, "device_id", device_id), where(LessThan, "seq", before))
    newest: list[DeviceSignal] = []
    for batch in loaded.scan(mine, _COLUMNS).to_arrow_batch_reader():
        rows = batch.select(list(_COLUMNS)).sort_by([("seq", "descending")]).slice(0, limit + 1).to_pylist()
        newest = nlargest(limit + 1, [*newest, *(_signal(row) for row in rows)], key=_seq)
    return newest


def _from_archive(settings: Settings, ingested: set[str], device_id: str) -> Iterator[DeviceSignal]:
    topic, processing = topic_of(Stream.XRAY_RAW, device_id), Processing.of(settings)
    limits = Limits(settings.max_ids, settings.max_data_bytes)

    def mine(rows: pa.Table) -> pa.ChunkedArray:
        return pc.equal(rows["topic"], topic)

    for envelope in not_ingested(settings, ingested, Stream.XRAY_RAW, mine):
        for batch in processing(to_arrow([envelope]), limits):
            for row in batch.filter(batch["reason"].is_null()).to_pylist():  # the ingest says what is wrong with the others
                yield _signal(row | {"captured_at": _EPOCH + timedelta(microseconds=row["captured_us"])})


def _signal(row: dict[str, Any]) -> DeviceSignal:
    found = {name: row[name] for name in _COLUMNS}
    return DeviceSignal(**found | {"readings": _plain(row["readings"]), "anomalies": _plain(row["anomalies"])})


def _plain(values: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Drop fields that are None."""
    return [{name: value for name, value in one.items() if value is not None} for one in values or ()]
