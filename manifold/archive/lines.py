"""JSON Lines in the archive, as written by other programs and by EMQX's object storage sink."""

import base64
from codecs import BOM_UTF8
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa

from manifold.archive.content import DecodedFile, Unreadable, derived_seqs, one_line, own_seq
from manifold.contracts.envelope import SEGMENT_SCHEMA, Stream
from manifold.contracts.names import SERVICE_PREFIX
from manifold.contracts.seq import EPOCH_MS, MAX_SEQ, TIME_SHIFT, datetime_of

COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
LOST = "\ufffd"  # EMQX's replacement for bytes that are not UTF-8

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


class Line(msgspec.Struct):
    """The fields of a line of JSON Lines; others are ignored. The last three have the names of EMQX's rules."""

    topic: str
    payload: str | None = None
    payload_base64: str | None = None
    seq: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)] | None = None
    received_at: str | int | float | None = None  # ISO 8601, or milliseconds since 1970
    qos: Annotated[int, msgspec.Meta(ge=0, le=2)] | None = None
    headers: dict[str, str] | None = None
    applied: bool | None = None
    refused_because: str | None = None
    publish_received_at: Any = None  # as received_at; used only if that is missing, like timestamp
    timestamp: Any = None
    pub_props: dict[str, Any] | None = None


_decoder, _array = msgspec.json.Decoder(Line), msgspec.json.Decoder(list[msgspec.Raw])


def from_lines(path: str, content: bytes) -> DecodedFile:
    """Decode a file of JSON Lines; an invalid line is refused without affecting the others.

    Raises:
        Unreadable: no line is a message, or only some have a seq.
    """
    rows: list[Row] = []
    bad: list[Row] = []
    for number, line in enumerate(lines_of(plain(path, content)), start=1):
        if not line.strip():
            continue
        try:
            rows.append(_row(path, line))
        except (ValueError, OverflowError, RecursionError) as exc:  # msgspec's errors are ValueErrors
            bad.append(_refused_line(path, number, line, one_line(exc)))
    if bad and not rows:
        raise Unreadable(f"no line of it is a message (line 1: {bad[0]['refused_because']})")
    derived = all(row["seq"] is None for row in rows)
    if derived and rows:
        received = np.array([(row["received_at"] - _UNIX_EPOCH) // timedelta(milliseconds=1) for row in rows], np.int64)
        for row, seq in zip(rows, derived_seqs(path, received).tolist(), strict=True):
            row["seq"] = seq
    elif lacking := [row for row in rows if row["seq"] is None]:
        raise Unreadable(f"{len(lacking)} of its lines have no seq although others have; give all of them one, or none")
    for row in bad:
        row["received_at"] = min((r["received_at"] for r in rows), default=_UNIX_EPOCH)
    arrays = [pa.array([row.get(field.name) for row in (*rows, *bad)], field.type) for field in SEGMENT_SCHEMA]
    return DecodedFile(pa.table(arrays, names=SEGMENT_SCHEMA.names), derived)


def lines_of(text: bytes) -> list[bytes]:
    """Split the text into lines; a JSON array, which some programs write one element a line, into elements."""
    text = text.removeprefix(BOM_UTF8)
    if text.lstrip().startswith(b"["):
        try:
            return [bytes(element) for element in _array.decode(text)]
        except (ValueError, RecursionError):  # not a whole array: each line is parsed by itself
            pass
    return [line.removeprefix(BOM_UTF8) for line in text.splitlines()]  # files with marks may have been joined


def plain(path: str, content: bytes) -> bytes:
    """Decompress a file of lines, if its name says that it is compressed.

    Raises:
        Unreadable: it is compressed but incomplete.
    """
    codec = next((codec for suffix, codec in COMPRESSED.items() if path.lower().endswith(suffix)), None)
    if codec is None:
        return content
    try:
        return bytes(pa.CompressedInputStream(pa.BufferReader(content), codec).read())
    except (pa.ArrowException, OSError) as exc:
        raise Unreadable(f"not a whole {codec} file ({one_line(exc)})") from exc


def _row(path: str, line: bytes) -> Row:
    """Decode one line of a JSON segment into a row of the envelope; raises ValueError if a field is wrong or missing."""
    fields = _decoder.decode(line)
    refused = fields.refused_because
    if fields.payload_base64 is not None:
        payload = base64.b64decode(fields.payload_base64, validate=True)
    elif fields.payload is not None:
        payload = fields.payload.encode("utf-8", "surrogatepass")
        if LOST in fields.payload and path.startswith(f"{Stream.DATA}/") and refused is None:
            refused = "payload holds U+FFFD, which stands for bytes that were lost; archive it as payload_base64"
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
        "refused_because": refused,
    }


def _received_at(fields: Line) -> datetime:
    """The instant of a message, from the first of its three fields that is there, or else from its seq."""
    given = next((at for at in (fields.received_at, fields.publish_received_at, fields.timestamp) if at is not None), None)
    if given is None:
        if fields.seq is None:
            raise ValueError("received_at and seq are missing; one of them must be there")
        return datetime_of(fields.seq)
    if isinstance(given, str):
        instant = datetime.fromisoformat(given.upper())  # RFC 3339 allows lower-case t and z
        instant = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    elif isinstance(given, int | float) and not isinstance(given, bool):
        instant = _UNIX_EPOCH + timedelta(milliseconds=given)
    else:
        raise ValueError(f"{given!r} is not an instant; write ISO 8601, or milliseconds since 1970")
    if fields.seq is None and not EPOCH_MS <= instant.timestamp() * 1000 < (MAX_SEQ >> TIME_SHIFT) + EPOCH_MS:
        raise ValueError(f"received_at {given!r} lies outside 2020 to 2089, and no seq can be made of it")
    return instant.astimezone(UTC)


def _headers(fields: Line) -> dict[str, str]:
    if fields.headers is not None:
        return fields.headers
    properties = (fields.pub_props or {}).get("User-Property")
    if not isinstance(properties, dict):
        return {}
    # As in the recorder: drop headers with Manifold's own prefix, which a publisher must not forge.
    return {name: str(value) for name, value in properties.items() if not name.startswith(SERVICE_PREFIX)}


def _refused_line(path: str, number: int, line: bytes, reason: str) -> Row:
    name = f"{path}:{number}"
    refused = f"line {number} is not a message ({reason})"
    return {"seq": own_seq(name), "stream": path.split("/")[0], "topic": name, "payload": line, "refused_because": refused}
