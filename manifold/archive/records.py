"""Journal records, framed and checksummed: messages, and annotations with the result of enqueueing them."""

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
    """An envelope as it arrived."""

    seq: int
    received_us: int  # since 1970-01-01 UTC
    stream: str
    topic: str
    payload: bytes
    qos: int
    headers: dict[str, str]
    refused_because: str | None


class Annotation(msgspec.Struct, tag="n", array_like=True, frozen=True):
    """The result of enqueueing a message; a later annotation replaces an earlier one."""

    seq: int
    applied: bool
    duplicate_of: int | None = None
    refused_because: str | None = None


@dataclass(slots=True)
class JournalContent:
    """The readable content of a journal file."""

    messages: list[JournalRecord] = field(default_factory=list)
    annotations: dict[int, Annotation] = field(default_factory=dict)
    length: int = 0  # bytes of complete records; bytes after them were never acknowledged

    def envelopes(self, annotations: dict[int, Annotation] | None = None) -> list[Envelope]:
        """Return each message once, in seq order, with annotations applied; `annotations` adds to those in the file."""
        known = self.annotations | (annotations or {})
        once = {message.seq: message for message in self.messages}
        return [to_envelope(once[seq], known.get(seq)) for seq in sorted(once)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(JournalRecord | Annotation)


def frame(record: JournalRecord | Annotation) -> bytes:
    """Encode one record as its bytes on disk."""
    body = _encoder.encode(record)
    return _FRAME.pack(len(body), zlib.crc32(body)) + body


def frames(envelopes: Iterable[Envelope]) -> bytes:
    """Encode the messages of these envelopes, one record after the other."""
    return b"".join(frame(to_record(envelope)) for envelope in envelopes)


def scan(raw: bytes) -> JournalContent:
    """Decode every complete record from the start of `raw` up to the first torn or damaged one."""
    content = JournalContent()
    view = memoryview(raw)
    while content.length + _FRAME.size <= len(raw):
        length, checksum = _FRAME.unpack_from(raw, content.length)
        start = content.length + _FRAME.size
        body = view[start : start + length]
        # A zero length has a zero checksum: a file that a crash left full of zeros must not look like records.
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
    """Convert an envelope to a record; `applied` is in the annotation."""
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
    headers, refused, applied = message.headers, message.refused_because, False
    if annotation is not None:
        refused, applied = refused or annotation.refused_because, annotation.applied
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
        refused,
    )
