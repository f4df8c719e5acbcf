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
from manifold.history.from_archive import uningested_messages
from manifold.lake.catalog import where
from manifold.lake.reads import read_segments
from manifold.settings import Settings

_COLUMNS = ("captured_at", "seq", "correlation_id", "content_digest", "readings", "anomalies", "rules", "problem")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNINGESTED_WINDOW = timedelta(days=2)  # how far back the list of ingested segments is read


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
        """When the signal was accepted (UTC), from its seq."""
        return datetime_of(self.seq)

    def to_json(self) -> dict[str, Any]:
        """Return the fields for `manifold signals show --json`."""
        fields = {
            "captured_at": self.captured_at.isoformat(),
            "received_at": self.received_at.isoformat(),
            "seq": self.seq,
            "correlation_id": self.correlation_id,
            "readings": self.readings,
            "anomalies": self.anomalies,
        }
        return fields if self.problem is None else fields | {"problem": self.problem}


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
    """Return the newest `limit` signals of a device whose seq is below `before`. A signal that was received twice is listed once.

    Raises:
        OSError: the archive, the lake, or the key storage failed.
    """
    close_signal_segments(settings)  # flush the door's journal
    ingested = read_segments(catalog, datetime.now(UTC) - UNINGESTED_WINDOW)
    found = [*_from_lake(catalog, device_id, limit, before), *_from_archive(settings, ingested, device_id)]
    distinct: dict[tuple[datetime, str], DeviceSignal] = {}
    for signal in sorted(found, key=_seq):
        if signal.seq < before:
            distinct.setdefault((signal.captured_at, signal.content_digest), signal)  # keep the first of equal signals
    signals = sorted(distinct.values(), key=_seq)
    page = signals[-limit:]
    next_before = page[0].seq if len(signals) > limit else None
    return DeviceSignals(device_id, page, next_before)


def _seq(signal: DeviceSignal) -> int:
    return signal.seq


def _from_lake(catalog: Catalog, device_id: str, limit: int, before: int) -> list[DeviceSignal]:
    """Return the newest `limit` + 1 signals of a device with a seq below `before`. Only one record batch is in memory at once."""
    try:
        table = catalog.load_table(XRAY_PROCESSED.identifier)
    except NoSuchTableError:
        return []
    is_wanted = And(where(EqualTo, "device_id", device_id), where(LessThan, "seq", before))
    newest: list[DeviceSignal] = []
    for batch in table.scan(is_wanted, _COLUMNS).to_arrow_batch_reader():
        newest_rows = batch.select(list(_COLUMNS)).sort_by([("seq", "descending")]).slice(0, limit + 1).to_pylist()
        newest = nlargest(limit + 1, [*newest, *map(_signal, newest_rows)], key=_seq)
    return newest


def _from_archive(settings: Settings, ingested: set[str], device_id: str) -> Iterator[DeviceSignal]:
    """Yield the valid signals of a device from segments whose paths are not in `ingested`."""
    topic = topic_of(Stream.XRAY_RAW, device_id)
    processing = Processing.of(settings)
    limits = Limits.of(settings)

    def is_of_device(messages: pa.Table) -> pa.ChunkedArray:
        return pc.equal(messages["topic"], topic)

    for envelope in uningested_messages(settings, ingested, Stream.XRAY_RAW, is_of_device):
        for batch in processing(to_arrow([envelope]), limits):
            is_valid = batch["reason"].is_null()  # ingest quarantines the others, with the reason
            for row in batch.filter(is_valid).to_pylist():
                captured_at = _EPOCH + timedelta(microseconds=row["captured_us"])
                yield _signal(row | {"captured_at": captured_at})


def _signal(row: dict[str, Any]) -> DeviceSignal:
    """Build a signal from a row with the columns `_COLUMNS`."""
    fields = {name: row[name] for name in _COLUMNS}
    fields["readings"] = _without_nulls(row["readings"])
    fields["anomalies"] = _without_nulls(row["anomalies"])
    return DeviceSignal(**fields)


def _without_nulls(structs: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Return these structs without the fields that are None; an empty list for None."""
    return [{name: value for name, value in struct.items() if value is not None} for struct in structs or ()]
