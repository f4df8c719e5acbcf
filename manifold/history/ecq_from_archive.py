"""Reads records of a compacted queue that are not in the lake yet: writes, rewinds and acknowledgements."""

import contextlib
from collections.abc import Set
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from manifold.contracts.ecq import ACKNOWLEDGEMENTS, Append, EcqAck, Rewind, parse_ecq
from manifold.contracts.ecq_rows import StateRow
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.messages import Refused
from manifold.contracts.tables import StateKind
from manifold.contracts.topics import ecq_rewind_topic, ecq_write_topic
from manifold.history.entry import instant_of
from manifold.history.from_archive import uningested_messages
from manifold.settings import Settings


class RecordedWrite(NamedTuple):
    """A message of a compacted queue in the archive, without its payload."""

    key: str
    size_bytes: int  # of the payload


@dataclass(slots=True)
class RecordedQueue:
    """The records of one client's compacted queue."""

    writes: dict[int, RecordedWrite] = field(default_factory=dict)  # by seq
    rows: set[StateRow] = field(default_factory=set)  # acknowledgements, expiries and rewinds, as lake rows

    def add(self, envelope: Envelope, max_data_bytes: int) -> None:
        """Add the record in an archived message. An invalid one is skipped, because ingest quarantines it."""
        if envelope.topic.startswith(ACKNOWLEDGEMENTS):
            with contextlib.suppress(ValueError):
                self._add_acknowledgement(EcqAck.from_wire(envelope.payload))
            return
        match parse_ecq(envelope.topic, envelope.payload, max_data_bytes=max_data_bytes):
            case Append(key=key, payload=payload):
                self.writes[envelope.seq] = RecordedWrite(key, len(payload))
            case Rewind(first_seq=first_seq):
                acked_seq = first_seq - 1  # a rewind to a message makes its predecessor the last acknowledged one
                self.rows.add(StateRow(acked_seq, envelope.received_at, envelope.seq, StateKind.REWOUND.value))
            case Refused():
                pass

    def _add_acknowledgement(self, record: EcqAck) -> None:
        """Add an acknowledgement, or the expiry of a message, which is recorded in the same form."""
        acked_at = instant_of(record.acked_ms)
        assert acked_at is not None  # acked_ms is not None
        kind = StateKind.EXPIRED if record.is_expired else StateKind.ACKNOWLEDGED
        self.rows.add(StateRow(record.seq, acked_at, record.epoch, kind.value))


def read_recorded_queue(settings: Settings, ingested: Set[str], client_id: str) -> RecordedQueue:
    """Read a client's records from the archive, without the segments whose paths are in `ingested`."""
    queue = RecordedQueue()
    write_prefix = ecq_write_topic(client_id, "")
    other_topics = pa.array([ecq_rewind_topic(client_id), f"{ACKNOWLEDGEMENTS}{client_id}"])

    def is_of_client(messages: pa.Table) -> pa.ChunkedArray:
        topics = messages["topic"]
        return pc.or_(pc.starts_with(topics, write_prefix), pc.is_in(topics, value_set=other_topics))

    for envelope in uningested_messages(settings, ingested, Stream.ECQ, is_of_client):
        queue.add(envelope, settings.max_data_bytes)
    return queue
