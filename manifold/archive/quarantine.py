"""Settles refused messages: replays them after a fix, or drops them. No Spark.

A replay writes the message to a new segment of the archive, with its original seq. The next ingest and populate process it like
any other message, so it takes the position in each vehicle's order that it would have had. The message's row in quarantine stays,
and the action is recorded in `quarantine_actions`.
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
    segment: str  # path of the segment with the message
    will_be_sent: bool  # False for a trigger that is older than the retention: ingest records it, but it is not sent to vehicles


def drop(catalog: Catalog, seqs: Sequence[int], *, note: str, now: datetime) -> list[int]:
    """Record that these refused messages are dropped, and return their seqs. The rows in quarantine stay.

    Messages that were replayed or dropped before are left out.

    Raises:
        Permanent: a message with one of these seqs was never refused. Nothing was dropped.
    """
    open_seqs = open_among(catalog, seqs)
    if open_seqs:
        count = len(open_seqs)
        actions = pa.table(
            {
                "seq": pa.array(open_seqs, pa.int64()),
                "action": pa.repeat(pa.scalar(DROPPED), count),
                "at": pa.repeat(pa.scalar(now, INSTANT), count),
                "note": pa.repeat(pa.scalar(note or None, pa.string()), count),
                "segment": pa.nulls(count, pa.string()),
            }
        )
        _record_actions(catalog, actions)
    return open_seqs


def replay(
    catalog: Catalog, settings: Settings, seq: int, *, payload: bytes | None = None, note: str = "", now: datetime
) -> Replayed:
    """Write a refused message to the archive again, with its original seq. `payload` replaces its payload, if it is not None.

    Raises:
        Permanent: the message was replayed before, ingest would refuse the replay too, or the seq is that of a file or line that
            could not be read as messages.
    """
    refused = refusal(catalog, seq)
    if refused.state == REPLAYED:  # a message that was dropped can still be replayed
        raise Permanent(f"seq {seq} was replayed at {refused.settled_at:%Y-%m-%dT%H:%M:%SZ}; publish the message anew instead")
    if seq < 0:
        raise Permanent(f"{refused.topic} is a file or a line of one, not a message; put the corrected file under another path")
    stream = Stream(refused.stream)
    if payload is None:
        payload = refused.payload
    envelope = Envelope(seq, refused.received_at, stream, refused.topic, payload)
    if reason := _refusal_reason(catalog, settings, envelope):
        raise Permanent(f"seq {seq} would be refused again: {reason}; correct the payload and pass it with --payload FILE")
    archive = Archive(settings.archive, settings.s3)
    path = replay_path(stream, seq, node_of(seq), now)
    if archive.exists(path):
        raise Permanent(f"{path} is there already: seq {seq} is being replayed; see `manifold quarantine show {seq}`")
    archive.put(path, to_arrow([envelope]))
    action = {"seq": seq, "action": REPLAYED, "at": now, "note": note or None, "segment": path}
    _record_actions(catalog, pa.Table.from_pylist([action], schema=ACTIONS.arrow_schema))
    is_past_retention = datetime_of(seq) < now - timedelta(days=settings.retention_days)
    return Replayed(seq, path, will_be_sent=stream is not Stream.TRIGGER or not is_past_retention)


def _refusal_reason(catalog: Catalog, settings: Settings, envelope: Envelope) -> str | None:
    """Why ingest would refuse the message; None if ingest would accept it."""
    parse = parsing.PARSERS[envelope.stream]
    for batch in parse(to_arrow([envelope]), parsing.Limits.of(settings)):
        for reason in batch["reason"].to_pylist():
            if reason is not None:
                return str(reason)
    data_id = data_id_of(envelope.topic)
    if envelope.stream is Stream.DATA and data_id is not None:
        stored = read_payload(catalog, data_id)
        if stored is not None and stored != envelope.payload:
            return parsing.OTHER_BYTES % (data_id, sha1_hex(stored))
    return None


def _record_actions(catalog: Catalog, rows: pa.Table) -> None:
    """Append rows to `quarantine_actions`; create the table if it does not exist."""
    ensure_tables(catalog)
    append_rows(catalog, ACTIONS, rows.select(ACTIONS.arrow_schema.names).cast(ACTIONS.arrow_schema), {})


def readable(payload: bytes) -> str:
    """Format a payload for people: indented if it is JSON, unchanged if it is other text; otherwise, only its length."""
    try:
        return json.dumps(json.loads(payload), indent=1, ensure_ascii=False)
    except (ValueError, RecursionError):
        pass
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return f"{len(payload)} bytes that are not text; --payload-to FILE writes them"
