"""Writes segments as the recorder does, and rows of the lake as ingest does."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog

from manifold.contracts import keys
from manifold.contracts.envelope import Envelope, Stream, segment_path, to_arrow
from manifold.contracts.messages import sha1_hex
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import datetime_of, unix_ms_of
from manifold.contracts.tables import DATA, META
from manifold.contracts.topics import TRIGGER, data_topic
from manifold.contracts.vins import CHECK_DIGITS, LETTERS, VALUES, WEIGHTS

MAKER = "WMANF0LD"  # the first eight characters of every VIN


def vin_of(number: int) -> str:
    """Return the VIN with this number."""
    return f"{MAKER}{number:09d}"


def valid_vins(first: int, count: int) -> list[str]:
    """Return VINs with valid check digits.

    With invalid ones, the audit would need another pass over the rows that break its rule.
    """
    numbers = np.arange(first, first + count) * 7919 % 10**8
    digits = numbers[:, None] // 10 ** np.arange(7, -1, -1) % 10
    maker_sum = sum(VALUES[LETTERS.index(letter)] * weight for letter, weight in zip(MAKER.encode(), WEIGHTS, strict=False))
    check_digits = CHECK_DIGITS[(maker_sum + digits @ WEIGHTS[9:]).astype(int) % len(CHECK_DIGITS)]
    return [f"{MAKER}{check_digit:c}{number:08d}" for check_digit, number in zip(check_digits, numbers, strict=True)]


def trigger(seq: int, vins: Sequence[str], request_id: str, data_id: str) -> Envelope:
    """Return a trigger for these vehicles."""
    payload = json.dumps({"ids": vins, "request_id": request_id, "data_id": data_id}).encode()
    return Envelope(seq, datetime_of(seq), Stream.TRIGGER, TRIGGER, payload, applied=True)


def data(seq: int, data_id: str, payload: bytes) -> Envelope:
    """Return the payload of a data id."""
    return Envelope(seq, datetime_of(seq), Stream.DATA, data_topic(data_id), payload, applied=True)


def outcome(seq: int, vin: str, trigger_seq: int) -> Envelope:
    """Return the delivery of a trigger's entry to one vehicle."""
    ended_ms = unix_ms_of(seq)
    record = OutcomeRecord(vin, trigger_seq, Outcome.DELIVERED, ended_ms, dispatched_ms=ended_ms - 5, attempts=1)
    return Envelope(seq, datetime_of(seq), Stream.OUTCOME, f"{keys.OUTCOMES}/{vin}", record.to_wire(), applied=True)


def write_segment(archive: Path, envelopes: Sequence[Envelope], node: int = 0) -> str:
    """Write one segment of one stream; return its path in the archive."""
    path = segment_path(envelopes[0].stream, envelopes[0].seq, node)
    file = archive / path
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(to_arrow(list(envelopes)), file, compression="zstd")
    return path


def append_payloads(catalog: Catalog, payloads: Mapping[str, bytes], *, at: datetime) -> None:
    """Append payloads, given by data id, to the lake's main branch; each counts as seen once."""
    seen = {"first_seen_at": at, "last_seen_at": at, "stored_at": at, "times_seen": 1}
    rows = [
        {"data_id": data_id, "payload": payload, "sha1": sha1_hex(payload), "size_bytes": len(payload), "seq": seq, **seen}
        for seq, (data_id, payload) in enumerate(payloads.items(), 1)
    ]
    for table in (DATA, META):
        complete = [{column.name: row.get(column.name) for column in table.columns} for row in rows]
        catalog.load_table(table.identifier).append(pa.Table.from_pylist(complete, schema=table.arrow_schema))
