"""Settles refused messages: replays them after a fix, or drops them. No Spark. `manifold.archive.refusals` reads them.

A replay is a new segment of the archive with the message's own seq, so ingest and populate do the rest: the message takes the
place in each vehicle's order that it would have had. The refused row stays; the action is recorded in `quarantine_actions`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
from pyiceberg.catalog import Catalog

from manifold.archive import parsing
from manifold.archive.refusals import DROPPED, REPLAYED, open_among, refusal
from manifold.archive.segment import replay_path
from manifold.archive.store import Archive
from manifold.contracts.envelope import Envelope, Stream, to_arrow
from manifold.contracts.errors import Permanent
from manifold.contracts.messages import sha1_hex
from manifold.contracts.seq import datetime_of, node_of
from manifold.contracts.tables import ACTIONS, INSTANT
from manifold.contracts.topics import data_id_of
from manifold.lake.catalog import ensure_tables
from manifold.lake.commits import append_rows
from manifold.lake.payloads import read_payload
from manifold.settings import Settings


@dataclass(frozen=True, slots=True)
class Replayed:
    """A message that was replayed."""

    seq: int
    segment: str
    will_be_sent: bool  # false: a trigger past its retention, which is recorded but never sent


def drop(catalog: Catalog, seqs: Sequence[int], *, note: str, now: datetime) -> list[int]:
    """Drop refused messages; returns the seqs, without those settled before. Their rows stay.

    Raises:
        Permanent: one of them was never refused; then nothing is dropped.
    """
    open_ones = open_among(catalog, seqs)
    if open_ones:
        said = {"action": pa.scalar(DROPPED), "at": pa.scalar(now, INSTANT), "note": pa.scalar(note or None, pa.string())}
        columns = {name: pa.repeat(value, len(open_ones)) for name, value in said.items()}
        segments = pa.nulls(len(open_ones), pa.string())
        _note(catalog, pa.table({"seq": pa.array(open_ones, pa.int64()), **columns, "segment": segments}))
    return open_ones


def replay(
    catalog: Catalog, settings: Settings, seq: int, *, payload: bytes | None = None, note: str = "", now: datetime
) -> Replayed:
    """Write the message into the archive again with its own seq, and with `payload` if given.

    Raises:
        Permanent: it would be refused again, it is a file or a line, or it was replayed before.
    """
    refused = refusal(catalog, seq)
    if refused.state == REPLAYED:
        raise Permanent(f"seq {seq} was replayed at {refused.settled_at:%Y-%m-%dT%H:%M:%SZ}; publish the message anew instead")
    if seq < 0:
        raise Permanent(f"{refused.topic} is a file or a line of one, not a message; put the corrected file under another path")
    stream = Stream(refused.stream)
    again = Envelope(seq, refused.received_at, stream, refused.topic, refused.payload if payload is None else payload)
    if reason := _judge(catalog, settings, again):
        raise Permanent(f"seq {seq} would be refused again: {reason}; correct the payload and pass it with --payload FILE")
    archive, path = Archive(settings.archive, settings.s3), replay_path(stream, seq, node_of(seq), now)
    if archive.exists(path):
        raise Permanent(f"{path} is there already: seq {seq} is being replayed; see `manifold quarantine show {seq}`")
    archive.put(path, to_arrow([again]))
    said = {"seq": seq, "action": REPLAYED, "at": now, "note": note or None, "segment": path}
    _note(catalog, pa.Table.from_pylist([said], schema=ACTIONS.arrow_schema))
    old = stream is Stream.TRIGGER and datetime_of(seq) < now - timedelta(days=settings.retention_days)
    return Replayed(seq, path, not old)


def _judge(catalog: Catalog, settings: Settings, envelope: Envelope) -> str | None:
    """Why ingest would refuse the message; None if it would not."""
    limits = parsing.Limits(settings.max_ids, settings.max_data_bytes, settings.inline_encoding)
    rows = (row for batch in parsing.PARSERS[envelope.stream](to_arrow([envelope]), limits) for row in batch.to_pylist())
    reason: str | None = next((row["reason"] for row in rows if row["reason"] is not None), None)
    data_id = data_id_of(envelope.topic)
    if reason is None and envelope.stream is Stream.DATA and data_id is not None:
        stored = read_payload(catalog, data_id)
        if stored is not None and stored != envelope.payload:
            return parsing.OTHER_BYTES % (data_id, sha1_hex(stored))
    return reason


def _note(catalog: Catalog, rows: pa.Table) -> None:
    ensure_tables(catalog)
    append_rows(catalog, ACTIONS, rows.select(ACTIONS.arrow_schema.names).cast(ACTIONS.arrow_schema), {})


def readable(payload: bytes) -> str:
    """Format a payload for people: indented JSON, text, or its length."""
    try:
        return json.dumps(json.loads(payload), indent=1, ensure_ascii=False)
    except (ValueError, RecursionError):
        pass
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return f"{len(payload)} bytes that are not text; --payload-to FILE writes them"
