"""From the bytes of an archive file to messages with the envelope's columns. `docs/archives.md` says the shapes.

No Spark: the workers read with this too, and so does whoever looks into a file.
"""

import base64
import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from contracts.envelope import SEGMENT_SCHEMA, Stream
from contracts.names import SERVICE_PREFIX
from contracts.seq import EPOCH_MS, MAX_SEQ, SKIPPED_MS, TIME_SHIFT, datetime_of

PARQUET = ".parquet"
JSON_LINES = (".jsonl", ".json")
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}  # of JSON Lines; Parquet compresses inside
SUFFIXES = (PARQUET, *JSON_LINES, *(line + zipped for line in JSON_LINES for zipped in COMPRESSED))
REQUIRED = ("topic", "payload")
# A derived seq has this bit, and no recorder with a node number below 512 gives such a one.
DERIVED = 1 << (TIME_SHIFT - 1)
MOST_IN_A_MS = 1 << 16
LOST = "\ufffd"  # what EMQX writes where bytes are no UTF-8

Integers = npt.NDArray[np.int64]
Row = dict[str, Any]


class Unreadable(Exception):
    """A file in the archive is no segment; the message says why. It will not become one: segments never change."""


@dataclass(frozen=True, slots=True)
class Content:
    """The messages of one file. A line that is no message is a refused row with a negative seq."""

    messages: pa.Table
    derived: bool  # the file gives no seq: they follow from its path and from when the messages came

    @property
    def seqs(self) -> Integers:
        """The seqs of its messages, in its order."""
        seqs: Integers = self.messages["seq"].to_numpy()
        return seqs[seqs >= 0]


class Line(msgspec.Struct):
    """What a line of JSON Lines may say; other fields are let be. The last three are as EMQX's rules name them."""

    topic: str
    payload: str | None = None
    payload_base64: str | None = None
    seq: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)] | None = None
    received_at: str | int | float | None = None  # ISO 8601, or milliseconds since 1970
    qos: Annotated[int, msgspec.Meta(ge=0, le=2)] | None = None
    headers: dict[str, str] | None = None
    applied: bool | None = None
    refused_because: str | None = None
    publish_received_at: int | float | None = None  # milliseconds since 1970
    timestamp: int | float | None = None
    pub_props: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(Line)


def own_seq(name: str) -> int:
    """The quarantine key of a file, or of a line, that is no message: negative, so no message has it, and the same each time."""
    return -int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest()) - 1


def decode(path: str, content: bytes) -> Content:
    """The messages of the file at `path` (below the archive's root), each seq once.

    Raises:
        Unreadable: these bytes are no segment.
    """
    found = _from_parquet(path, content) if path.endswith(PARQUET) else _from_lines(path, content)
    seqs = found.messages["seq"].to_numpy()
    if len(seqs) < 2 or bool((np.diff(seqs) > 0).all()):
        return found
    _, firsts = np.unique(seqs, return_index=True)
    return Content(found.messages.take(pa.array(np.sort(firsts))), found.derived) if len(firsts) < len(seqs) else found


def check_columns(schema: pa.Schema) -> None:
    """Whether a Parquet file has what nothing else can stand in for.

    Raises:
        Unreadable: it has not.
    """
    missing = [name for name in REQUIRED if name not in schema.names]
    if missing:
        raise Unreadable(f"columns {', '.join(missing)} are missing")
    if "seq" not in schema.names and "received_at" not in schema.names:
        raise Unreadable("columns seq and received_at are missing; one of them must be there")


def derived_seqs(path: str, received_ms: Integers) -> Integers:
    """The seqs of a file that gives none: in the order of time, and within a millisecond in the order of the rows.

    The time's part is when the message came; the rest is a number that follows from the path, plus the place within the
    millisecond. Two files that share a millisecond have a chance of one in a million to meet; `pipelines.planning` looks.

    Raises:
        Unreadable: a time that no seq can hold, or too many messages of one millisecond.
    """
    ms = np.where(received_ms == SKIPPED_MS, SKIPPED_MS + 1, received_ms)
    if len(ms) and not (ms.min() >= EPOCH_MS and ms.max() <= (MAX_SEQ >> TIME_SHIFT) + EPOCH_MS):
        raise Unreadable("received_at lies outside 2020 to 2089, and no seq can be made of it")
    order = np.argsort(ms, kind="stable")
    in_order = ms[order]
    place = np.empty_like(ms)
    place[order] = np.arange(len(ms)) - np.searchsorted(in_order, in_order, "left")
    if len(ms) and place.max() >= MOST_IN_A_MS:
        raise Unreadable(f"more than {MOST_IN_A_MS} messages of one millisecond; give them a seq")
    of_file = int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest()) % (DERIVED - MOST_IN_A_MS)
    seqs: Integers = ((ms - EPOCH_MS) << TIME_SHIFT) + (DERIVED + of_file) + place
    return seqs


def _from_parquet(path: str, content: bytes) -> Content:
    try:
        table = pq.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError) as exc:
        raise Unreadable(f"not a whole Parquet file ({one_line(exc)})") from exc
    check_columns(table.schema)
    try:
        columns = {field.name: _column(table, field) for field in SEGMENT_SCHEMA}
    except (pa.ArrowException, ValueError) as exc:
        raise Unreadable(f"columns are not of the envelope's types ({one_line(exc)})") from exc
    derived = "seq" not in table.schema.names
    given = "received_at" if derived else "seq"
    if holes := [name for name in (*REQUIRED, given) if columns[name].null_count]:
        raise Unreadable(f"rows without {', '.join(holes)}")
    if derived:
        columns["seq"] = pa.array(derived_seqs(path, _milliseconds(columns["received_at"])))
    elif table.num_rows and pc.min(columns["seq"]).as_py() < 0:
        raise Unreadable("a seq is negative")
    if columns["received_at"].null_count:
        columns["received_at"] = _given_at(columns)
    return Content(pa.table(columns), derived)


def _column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if field.name not in table.schema.names:
        return pa.nulls(table.num_rows, field.type)
    column = table[field.name]
    if pa.types.is_timestamp(field.type) and pa.types.is_integer(column.type):
        column = column.cast(pa.timestamp("ms", tz="UTC"))  # milliseconds since 1970, as everywhere else
    return column.cast(field.type)


def _given_at(columns: dict[str, Any]) -> pa.Array:
    """`received_at`, or, where it is null, the instant in the seq."""
    seqs = columns["seq"].to_numpy()
    instants = pa.array((seqs >> TIME_SHIFT) + EPOCH_MS).cast(pa.timestamp("ms", tz="UTC"))
    return pc.coalesce(columns["received_at"], instants.cast(SEGMENT_SCHEMA.field("received_at").type))


def _milliseconds(instants: pa.ChunkedArray | pa.Array) -> Integers:
    found: Integers = pc.floor_temporal(instants, unit="millisecond").cast(pa.int64()).to_numpy() // 1000
    return found


def _from_lines(path: str, content: bytes) -> Content:
    rows: list[Row] = []
    bad: list[Row] = []
    for number, line in enumerate(_plain(path, content).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            rows.append(_row(path, line))
        except (ValueError, OverflowError) as exc:  # msgspec's own are ValueErrors
            bad.append(_bad(path, number, line, one_line(exc)))
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
    return Content(pa.table(arrays, names=SEGMENT_SCHEMA.names), derived)


_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _plain(path: str, content: bytes) -> bytes:
    codec = next((codec for suffix, codec in COMPRESSED.items() if path.endswith(suffix)), None)
    if codec is None:
        return content
    try:
        return bytes(pa.CompressedInputStream(pa.BufferReader(content), codec).read())
    except (pa.ArrowException, OSError) as exc:
        raise Unreadable(f"not a whole {codec} file ({one_line(exc)})") from exc


def _row(path: str, line: bytes) -> Row:
    said = _decoder.decode(line)
    refused = said.refused_because
    if said.payload_base64 is not None:
        payload = base64.b64decode(said.payload_base64, validate=True)
    elif said.payload is not None:
        payload = said.payload.encode("utf-8", "surrogatepass")
        if LOST in said.payload and path.startswith(f"{Stream.DATA}/") and refused is None:
            refused = "payload holds U+FFFD, which stands for bytes that were lost; archive it as payload_base64"
    else:
        raise ValueError("payload and payload_base64 are missing; one of them must be there")
    return {
        "seq": said.seq,
        "received_at": _received_at(said),
        "stream": path.split("/")[0],
        "topic": said.topic,
        "payload": payload,
        "qos": said.qos,
        "headers": list(_headers(said).items()),
        "applied": said.applied,
        "refused_because": refused,
    }


def _received_at(said: Line) -> datetime:
    given = next((at for at in (said.received_at, said.publish_received_at, said.timestamp) if at is not None), None)
    if given is None:
        if said.seq is None:
            raise ValueError("received_at and seq are missing; one of them must be there")
        return datetime_of(said.seq)
    if isinstance(given, str):
        instant = datetime.fromisoformat(given)
        instant = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    else:
        instant = _UNIX_EPOCH + timedelta(milliseconds=given)
    if said.seq is None and not EPOCH_MS <= instant.timestamp() * 1000 < (MAX_SEQ >> TIME_SHIFT) + EPOCH_MS:
        raise ValueError(f"received_at {given!r} lies outside 2020 to 2089, and no seq can be made of it")
    return instant.astimezone(UTC)


def _headers(said: Line) -> dict[str, str]:
    if said.headers is not None:
        return said.headers
    properties = (said.pub_props or {}).get("User-Property")
    if not isinstance(properties, dict):
        return {}
    # As at the door: a publisher's header that begins like Manifold's own would say something that Manifold has not said.
    return {name: str(value) for name, value in properties.items() if not name.startswith(SERVICE_PREFIX)}


def _bad(path: str, number: int, line: bytes, reason: str) -> Row:
    name = f"{path}:{number}"
    said = f"line {number} is no message ({reason})"
    return {"seq": own_seq(name), "stream": path.split("/")[0], "topic": name, "payload": line, "refused_because": said}


def one_line(exc: Exception) -> str:
    """What an exception says, short."""
    return " ".join(str(exc).split())[:200]
