"""Decodes JSON Lines files in the archive, which other programs and EMQX's object storage sink write."""

import base64
from codecs import BOM_UTF8
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa

from manifold.archive.content import DecodedFile, Unreadable, derived_seqs, one_line, quarantine_seq
from manifold.contracts.envelope import SEGMENT_SCHEMA, Stream
from manifold.contracts.names import SERVICE_PREFIX
from manifold.contracts.seq import EPOCH_MS, MAX_SEQ, NEVER_MS, datetime_of

COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
REPLACEMENT_CHARACTER = "\ufffd"  # EMQX writes it instead of bytes that are not UTF-8

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


class Line(msgspec.Struct):
    """The fields of a line; other fields are ignored. The last three are the names that EMQX's rules use."""

    topic: str
    payload: str | None = None
    payload_base64: str | None = None
    seq: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)] | None = None
    received_at: str | int | float | None = None  # ISO 8601, or milliseconds since 1970
    qos: Annotated[int, msgspec.Meta(ge=0, le=2)] | None = None
    headers: dict[str, str] | None = None
    applied: bool | None = None
    refused_because: str | None = None
    publish_received_at: Any = None  # like received_at; used if received_at is missing
    timestamp: Any = None  # like received_at; used if received_at and publish_received_at are missing
    pub_props: dict[str, Any] | None = None


_line_decoder = msgspec.json.Decoder(Line)
_array_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def from_lines(path: str, content: bytes) -> DecodedFile:
    """Decode a file of JSON Lines. Each line that is not a message becomes a refused row.

    Raises:
        Unreadable: no line is a message, or some messages have a seq and others do not.
    """
    rows: list[Row] = []
    refused_rows: list[Row] = []
    for number, line in enumerate(lines_of(decompressed(path, content)), start=1):
        if not line.strip():
            continue
        try:
            rows.append(_row(path, line))
        except (ValueError, OverflowError, RecursionError) as exc:  # msgspec's errors are ValueErrors
            refused_rows.append(_refused_row(path, number, line, one_line(exc)))
    if refused_rows and not rows:
        raise Unreadable(f"no line of it is a message (line 1: {refused_rows[0]['refused_because']})")
    without_seq = [row for row in rows if row["seq"] is None]
    are_seqs_derived = len(without_seq) == len(rows)
    if without_seq and not are_seqs_derived:
        raise Unreadable(f"{len(without_seq)} of its lines have no seq although others have; give all of them one, or none")
    if without_seq:
        _add_derived_seqs(path, rows)
    # When a refused line was received is unknown, so it gets the earliest time in the file.
    earliest = min((row["received_at"] for row in rows), default=_UNIX_EPOCH)
    for row in refused_rows:
        row["received_at"] = earliest
    arrays = [pa.array([row.get(field.name) for row in (*rows, *refused_rows)], field.type) for field in SEGMENT_SCHEMA]
    return DecodedFile(pa.table(arrays, names=SEGMENT_SCHEMA.names), are_seqs_derived)


def _add_derived_seqs(path: str, rows: list[Row]) -> None:
    """Set the seqs of the file's rows, none of which has one."""
    received_ms = [(row["received_at"] - _UNIX_EPOCH) // timedelta(milliseconds=1) for row in rows]
    seqs = derived_seqs(path, np.array(received_ms, np.int64)).tolist()
    for row, seq in zip(rows, seqs, strict=True):
        row["seq"] = seq


def lines_of(text: bytes) -> list[bytes]:
    """Split the text into lines. If the whole text is a JSON array, split it into the elements of the array instead."""
    text = text.removeprefix(BOM_UTF8)
    if text.lstrip().startswith(b"["):
        try:
            return [bytes(element) for element in _array_decoder.decode(text)]
        except (ValueError, RecursionError):  # the text only begins like an array
            pass
    return [line.removeprefix(BOM_UTF8) for line in text.splitlines()]  # in concatenated files, any line can begin with a BOM


def decompressed(path: str, content: bytes) -> bytes:
    """The content of a file, decompressed if the file's name ends in a suffix of `COMPRESSED`, else unchanged.

    Raises:
        Unreadable: the compressed data is incomplete or invalid.
    """
    codec = next((codec for suffix, codec in COMPRESSED.items() if path.lower().endswith(suffix)), None)
    if codec is None:
        return content
    try:
        return bytes(pa.CompressedInputStream(pa.BufferReader(content), codec).read())
    except (pa.ArrowException, OSError) as exc:
        raise Unreadable(f"not a whole {codec} file ({one_line(exc)})") from exc


def _row(path: str, line: bytes) -> Row:
    """Decode a line into a row with the columns of the envelope; raises `ValueError` if a field is invalid or missing."""
    fields = _line_decoder.decode(line)
    refused_because = fields.refused_because
    if fields.payload_base64 is not None:
        payload = base64.b64decode(fields.payload_base64, validate=True)
    elif fields.payload is not None:
        payload = fields.payload.encode("utf-8", "surrogatepass")
        is_data = path.startswith(f"{Stream.DATA}/")
        if REPLACEMENT_CHARACTER in fields.payload and is_data and refused_because is None:
            refused_because = "payload holds U+FFFD, which stands for bytes that were lost; archive it as payload_base64"
    else:
        raise ValueError("payload and payload_base64 are missing; one of them must be there")
    return {
        "seq": fields.seq,
        "received_at": _received_at(fields),
        "stream": path.split("/")[0],
        "topic": fields.topic,
        "payload": payload,
        "qos": fields.qos,
        "headers": list(_headers(fields).items()),
        "applied": fields.applied,
        "refused_because": refused_because,
    }


def _received_at(fields: Line) -> datetime:
    """The time of receipt: the first of the three fields for it that is present, or else the time in the seq."""
    candidates = (fields.received_at, fields.publish_received_at, fields.timestamp)
    value = next((candidate for candidate in candidates if candidate is not None), None)
    if value is None:
        if fields.seq is None:
            raise ValueError("received_at and seq are missing; one of them must be there")
        return datetime_of(fields.seq)
    if isinstance(value, str):
        instant = datetime.fromisoformat(value.upper())  # RFC 3339 allows lower-case t and z
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=UTC)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        instant = _UNIX_EPOCH + timedelta(milliseconds=value)
    else:
        raise ValueError(f"{value!r} is not an instant; write ISO 8601, or milliseconds since 1970")
    if fields.seq is None and not EPOCH_MS <= instant.timestamp() * 1000 < NEVER_MS:
        raise ValueError(f"received_at {value!r} lies outside 2020 to 2089, and no seq can be made of it")
    return instant.astimezone(UTC)


def _headers(fields: Line) -> dict[str, str]:
    """The headers: the field `headers`, or else the user properties in EMQX's `pub_props`."""
    if fields.headers is not None:
        return fields.headers
    properties = (fields.pub_props or {}).get("User-Property")
    if not isinstance(properties, dict):
        return {}
    # Headers with Manifold's own prefix are dropped, as in the recorder, so that a publisher cannot forge them.
    return {name: str(value) for name, value in properties.items() if not name.startswith(SERVICE_PREFIX)}


def _refused_row(path: str, number: int, line: bytes, reason: str) -> Row:
    """The row of a line that is not a message; `received_at` is added later."""
    name = f"{path}:{number}"
    return {
        "seq": quarantine_seq(name),
        "stream": path.split("/")[0],
        "topic": name,
        "payload": line,
        "refused_because": f"line {number} is not a message ({reason})",
    }
