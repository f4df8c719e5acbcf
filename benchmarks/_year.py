"""Writes a lake that has grown for many days, without Spark. Each table has one file for each day, as after compaction."""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from benchmarks._archive import vin_of
from manifold.contracts.envelope import Stream, segment_path
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT
from manifold.contracts.tables import DATA, IDS, META, OUTCOMES, SEGMENTS, Table
from manifold.lake.catalog import open_catalog
from manifold.settings import Settings

NOON_MS = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)  # when the first measured run begins
DAY_MS, FIVE_MINUTES_MS = 86_400_000, 300_000
VINS_PER_TRIGGER, VINS = 5000, 100_000
DAYS_PER_APPEND = 31
PAYLOAD = 4096  # bytes

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Growth:
    """The number of days for which the lake has grown, and the rows that each day has added."""

    days: int = 365
    entries: int = 20_000
    segments: int = 8640
    payloads: int = 20


def grow(settings: Settings, growth: Growth) -> None:
    """Fill the days before the first measured run, oldest first."""
    for first in range(growth.days, 0, -DAYS_PER_APPEND):
        days = np.arange(first, max(0, first - DAYS_PER_APPEND), -1)
        _append(settings, IDS, _entries(days, growth, ended=False))
        _append(settings, OUTCOMES, _entries(days, growth, ended=True))
        _append(settings, DATA, _payloads(days, growth, DATA))
        _append(settings, META, _payloads(days, growth, META))
        _append(settings, SEGMENTS, _segments(days, growth))


def _append(settings: Settings, table: Table, columns: dict[str, object]) -> None:
    """Append rows, given by column, to the main branch; columns that are not given are null."""
    row_count = len(next(iter(columns.values())))  # type: ignore[arg-type]  # all values are arrays
    nulls = pa.nulls(row_count)
    rows = pa.table({column.name: pa.array(columns.get(column.name, nulls)) for column in table.columns})
    open_catalog(settings).load_table(table.identifier).append(rows.cast(table.arrow_schema))


def _times(days: Numbers, times_a_day: int) -> Numbers:
    """Return times in milliseconds since 1970: `times_a_day` times of each day, evenly spread over the half day from noon on.

    `days` are numbers of days before `NOON_MS`.
    """
    since_noon = np.arange(times_a_day) * (DAY_MS // (2 * times_a_day))
    return np.asarray((NOON_MS - days[:, None] * DAY_MS + since_noon[None, :]).ravel())


def _instants(ms: Numbers) -> pa.Array:
    return pa.array(ms * 1000).cast(pa.timestamp("us", tz="UTC"))


def _seqs(ms: Numbers) -> Numbers:
    return (ms - EPOCH_MS) << TIME_SHIFT


def _entries(days: Numbers, growth: Growth, *, ended: bool) -> dict[str, object]:
    """Return the columns of the ids table, or with `ended` those of the outcomes table, for the same entries."""
    triggers = _times(days, max(1, growth.entries // VINS_PER_TRIGGER))
    ms = np.repeat(triggers, min(VINS_PER_TRIGGER, growth.entries))
    vins = [vin_of(number % VINS) for number in range(len(ms))]
    key = {"vin": vins, "seq": _seqs(ms)}
    if ended:
        times = {name: _instants(ms + 1000) for name in ("dispatched_at", "acknowledged_at", "ended_at")}
        outcome = {"outcome": ["delivered"] * len(ms), "attempts": np.ones(len(ms), np.int32)}
        return {**key, **outcome, "accepted_at": _instants(ms), **times}
    names = {"request_id": [f"task_{time_ms}" for time_ms in ms], "data_id": [f"old-{time_ms}" for time_ms in ms]}
    return {**key, **names, "ts": _instants(ms), "applied": np.ones(len(ms), np.bool_)}


def _payloads(days: Numbers, growth: Growth, table: Table) -> dict[str, object]:
    ms = _times(days, growth.payloads)
    data_ids, digests = [f"old-{time_ms}" for time_ms in ms], [f"{time_ms:040x}" for time_ms in ms]
    common = {"data_id": data_ids, "sha1": digests, "first_seen_at": _instants(ms)}
    if table is META:
        return {**common, "last_seen_at": _instants(ms), "times_seen": np.ones(len(ms), np.int64), "stored_at": _instants(ms)}
    return {**common, "payload": [b"y" * PAYLOAD] * len(ms), "size_bytes": np.full(len(ms), PAYLOAD), "seq": _seqs(ms)}


def _segments(days: Numbers, growth: Growth) -> dict[str, object]:
    ms = _times(days, growth.segments)
    streams = [list(Stream)[index % 3] for index in range(len(ms))]
    seqs = _seqs(ms)
    paths = [segment_path(stream, int(seq), 0) for stream, seq in zip(streams, seqs, strict=True)]
    run = {"run_id": [f"scheduled__{number}" for number in ms // FIVE_MINUTES_MS], "ingested_at": _instants(ms + FIVE_MINUTES_MS)}
    span = {"first_seq": seqs, "last_seq": seqs, "messages": np.ones(len(ms), np.int64), "began_at": _instants(ms)}
    return {"path": paths, "stream": [stream.value for stream in streams], **run, **span}
