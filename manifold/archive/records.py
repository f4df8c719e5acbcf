"""Journal records, each with its length and a checksum: messages, and annotations with the results of enqueueing messages."""

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from manifold.contracts.envelope import DUPLICATE_OF, Envelope, Stream

_FRAME = struct.Struct("<II")  # length and CRC-32 of the record
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class JournalRecord(msgspec.Struct, tag="m", array_like=True, frozen=True):
    """A message as it was received."""

    seq: int
    received_us: int  # microseconds since 1970-01-01 UTC
    stream: str
    topic: str
    payload: bytes
    qos: int
    headers: dict[str, str]
    refused_because: str | None


class Annotation(msgspec.Struct, tag="n", array_like=True, frozen=True):
    """The result of enqueueing a message. A later annotation of the same message replaces an earlier one."""

    seq: int
    applied: bool  # whether the message has changed the queues
    duplicate_of: int | None = None  # seq of the message of which this message is a duplicate
    refused_because: str | None = None


@dataclass(slots=True)
class JournalContent:
    """The readable content of a journal file."""

    messages: list[JournalRecord] = field(default_factory=list)
    annotations: dict[int, Annotation] = field(default_factory=dict)  # seq → newest annotation
    length: int = 0  # total length of the complete records in bytes; messages after them were never acknowledged

    def envelopes(self, annotations: dict[int, Annotation] | None = None) -> list[Envelope]:
        """Return each message once, in seq order, with its annotation applied.

        Annotations in `annotations` take precedence over those in the file.
        """
        all_annotations = self.annotations | (annotations or {})
        by_seq = {message.seq: message for message in self.messages}
        return [to_envelope(by_seq[seq], all_annotations.get(seq)) for seq in sorted(by_seq)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(JournalRecord | Annotation)


def frame(record: JournalRecord | Annotation) -> bytes:
    """Encode a record for the file: its length, its checksum and its content."""
    body = _encoder.encode(record)
    return _FRAME.pack(len(body), zlib.crc32(body)) + body


def frames(envelopes: Iterable[Envelope]) -> bytes:
    """Encode the envelopes as a sequence of records."""
    return b"".join(frame(to_record(envelope)) for envelope in envelopes)


def scan(raw: bytes) -> JournalContent:
    """Decode the records from the start of `raw` up to the first incomplete or damaged record."""
    content = JournalContent()
    view = memoryview(raw)
    while content.length + _FRAME.size <= len(raw):
        length, checksum = _FRAME.unpack_from(raw, content.length)
        start = content.length + _FRAME.size
        body = view[start : start + length]
        # After a crash, a file may end in zeros, which look like records of length 0 with a valid checksum. So 0 is invalid.
        if length == 0 or len(body) < length or zlib.crc32(body) != checksum:
            break
        try:
            record = _decoder.decode(body)
        except msgspec.DecodeError:
            break
        if isinstance(record, JournalRecord):
            content.messages.append(record)
        else:
            content.annotations[record.seq] = record
        content.length = start + length
    return content


def read_journal(path: Path) -> JournalContent:
    """Read the complete records of the journal file at `path`."""
    return scan(path.read_bytes())


def to_record(envelope: Envelope) -> JournalRecord:
    """Convert an envelope to a record. A record lacks `applied`, which is in the annotation."""
    return JournalRecord(
        envelope.seq,
        (envelope.received_at - _UNIX_EPOCH) // _MICROSECOND,
        envelope.stream.value,
        envelope.topic,
        envelope.payload,
        envelope.qos,
        dict(envelope.headers),
        envelope.refused_because,
    )


def to_envelope(message: JournalRecord, annotation: Annotation | None = None) -> Envelope:
    """Convert a record to an envelope and apply `annotation`."""
    headers = message.headers
    refused_because = message.refused_because
    applied = False
    if annotation is not None:
        refused_because = refused_because or annotation.refused_because
        applied = annotation.applied
        if annotation.duplicate_of is not None:
            headers = headers | {DUPLICATE_OF: str(annotation.duplicate_of)}
    return Envelope(
        message.seq,
        _UNIX_EPOCH + message.received_us * _MICROSECOND,
        Stream(message.stream),
        message.topic,
        message.payload,
        message.qos,
        headers,
        applied,
        refused_because,
    )
