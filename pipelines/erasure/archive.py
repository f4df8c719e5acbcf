"""Erases a vehicle from the archive: rewrites each segment that names it, whole or not at all."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from manifold.archive.content import Unreadable
from manifold.archive.formats import decode
from manifold.archive.lines import COMPRESSED, from_lines, lines_of, plain
from manifold.archive.segment import Segment
from manifold.archive.store import Archive
from manifold.contracts.archive_files import is_parquet
from manifold.contracts.envelope import SEGMENT_SCHEMA, Stream
from pipelines.erasure.names import Named
from pipelines.erasure.sealed import STREAMS

Row = dict[str, Any]


@dataclass(slots=True)
class Rewritten:
    """Counts and paths of the segments that were searched and rewritten."""

    files: int = 0  # that were searched
    segments: list[str] = field(default_factory=list)  # that were rewritten
    messages: int = 0  # that were changed or removed
    unreadable: list[str] = field(default_factory=list)  # files that are not valid segments but name it, to be removed whole


def erase_from_archive(archive: Archive, named: Named, *, dry: bool = False) -> Rewritten:
    """Rewrite the segments that name the vehicle; `dry`: only find them. A repeated call resumes after an interruption.

    The file keeps its path, so the ledger knows it; messages keep their seqs. Concurrent readers get either the old or the new
    file, whole.
    """
    done = Rewritten()
    for segment in chain.from_iterable(archive.walk()):
        done.files += 1
        try:
            content = archive.read(segment.path)
        except FileNotFoundError:  # past its retention
            continue
        try:
            again, changed = without(segment, content, named)
        except Unreadable:
            if named.is_in(segment.path) or named.is_in(content):
                done.unreadable.append(segment.path)
            continue
        if changed:
            if not dry:
                archive.replace(segment.path, again)
            done.segments.append(segment.path)
            done.messages += changed
    return done


def without(segment: Segment, content: bytes, named: Named) -> tuple[pa.Table | bytes, int]:
    """Return the segment without the vehicle (a table, or the bytes of a text file), and how many of its messages named it.

    Raises:
        Unreadable: these bytes are not a valid segment.
    """
    if is_parquet(segment.path):
        messages = decode(segment.path, content).messages
        changes = dict(_changes(segment, messages, named))
        if not changes:
            return messages, 0
        kept = messages.filter(pa.array([place not in changes for place in range(messages.num_rows)]))
        changed = [row for row in changes.values() if row is not None]
        table = pa.concat_tables([kept.cast(SEGMENT_SCHEMA), pa.Table.from_pylist(changed, schema=SEGMENT_SCHEMA)])
        return table.sort_by("seq"), len(changes)
    messages = from_lines(segment.path, content).messages  # in line order; bad lines come last
    changes = dict(_changes(segment, messages, named))
    return (_lines(segment.path, content, messages, changes), len(changes)) if changes else (content, 0)


def _changes(segment: Segment, messages: pa.Table, named: Named) -> Iterator[tuple[int, Row | None]]:
    """Yield (index, replacement) of each message that names the vehicle; None removes it."""
    perhaps = pc.or_(
        named.may_be_in(messages["payload"], escaped=segment.stream is not Stream.DATA), named.may_be_in(messages["topic"])
    )
    if segment.stream in STREAMS and named.opaque:
        perhaps = pc.or_(perhaps, pc.is_valid(messages["refused_because"]))
    headers = messages["headers"].combine_chunks()
    items = headers.items if not isinstance(headers, pa.ChunkedArray) else pa.array([], pa.string())
    if len(items) and pc.any(named.may_be_in(items)).as_py():
        perhaps = pa.array([True] * messages.num_rows)
    places = pc.indices_nonzero(perhaps)
    for place, row in zip(places.to_pylist(), messages.take(places).to_pylist(), strict=True):
        again = named.without(segment.stream, row)
        if again is not row:
            yield place, again


def _lines(path: str, content: bytes, messages: pa.Table, changes: dict[int, Row | None]) -> bytes:
    """Keep every message on its line, with its seq; a removed one leaves an empty line, because bad lines go by their number."""
    rows = messages.to_pylist()
    bad = {int(row["topic"].rpartition(":")[2]): place for place, row in enumerate(rows) if row["seq"] < 0}
    good = iter(place for place, row in enumerate(rows) if row["seq"] >= 0)
    again: list[bytes] = []
    for number, line in enumerate(lines_of(plain(path, content)), start=1):
        if number not in bad and not line.strip():
            again.append(b"")
            continue
        place = bad[number] if number in bad else next(good)
        if place in changes:
            row = changes[place]
            again.append(b"" if row is None else _line(row))
        else:
            again.append(line if number in bad else _line(rows[place]))
    codec = next((codec for suffix, codec in COMPRESSED.items() if path.lower().endswith(suffix)), None)
    text = b"\n".join(again) + b"\n"
    if codec is None:
        return text
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(text)
    return bytes(sink.getvalue())


def _line(row: Row) -> bytes:
    line = {name: row[name] for name in ("seq", "topic", "qos", "applied", "refused_because") if row[name] is not None}
    line |= {"received_at": row["received_at"].isoformat(), "headers": dict(row["headers"] or ())}
    return json.dumps(line | {"payload_base64": base64.b64encode(row["payload"]).decode()}).encode()
