"""Erases a vehicle from the archive: rewrites each segment that names the vehicle, in one atomic replacement of its file."""

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifold.archive.content import Unreadable
from manifold.archive.formats import decode
from manifold.archive.lines import COMPRESSED, decompressed, from_lines, lines_of
from manifold.archive.segment import Segment
from manifold.archive.store import Archive
from manifold.contracts.archive_files import is_parquet
from manifold.contracts.envelope import SEGMENT_SCHEMA
from pipelines.erasure.names import ErasedVehicle
from pipelines.erasure.sealed import SEALED_STREAMS

Row = dict[str, Any]

_LINE_FIELDS = (*SEGMENT_SCHEMA.names, "payload_base64")


@dataclass(slots=True)
class Rewritten:
    """The result of erasing a vehicle from the archive."""

    files: int = 0  # number of files that were searched
    segments: list[str] = field(default_factory=list)  # paths of segments that were rewritten
    messages: int = 0  # number of messages that were changed or removed
    unreadable: list[str] = field(default_factory=list)  # paths of invalid segments that name the vehicle; to be removed


def erase_from_archive(archive: Archive, vehicle: ErasedVehicle, *, dry: bool = False) -> Rewritten:
    """Rewrite the segments that name the vehicle. With `dry`, only find them. A repeated call resumes after an interruption.

    A segment keeps its path, so the ledger still knows it, and its messages keep their seqs. Concurrent readers get either the
    old file or the new file.
    """
    result = Rewritten()
    for segment in chain.from_iterable(archive.walk()):
        result.files += 1
        try:
            content = archive.read(segment.path)
        except FileNotFoundError:  # garbage collection has removed it since the archive was listed
            continue
        try:
            new_content, changed_messages = segment_without(segment, content, vehicle)
        except Unreadable:
            if vehicle.is_named_in(segment.path) or vehicle.is_named_in(content):
                result.unreadable.append(segment.path)
            continue
        if changed_messages:
            if not dry:
                archive.replace(segment.path, new_content)
            result.segments.append(segment.path)
            result.messages += changed_messages
    return result


def segment_without(segment: Segment, content: bytes, vehicle: ErasedVehicle) -> tuple[pa.Table | bytes, int]:
    """Return the segment without the vehicle, and the number of its messages that named the vehicle.

    The segment is a table if it is a Parquet file, else the bytes of a text file. If it changes, it loses the fields that ingest
    ignores; it also changes if only such a field names the vehicle.

    Raises:
        Unreadable: the bytes are not a valid segment.
    """
    if is_parquet(segment.path):
        messages = decode(segment.path, content).messages
        changes = dict(_changes(segment, messages, vehicle))
        changed_messages = len(changes) or _count_ignored(_ignored_columns(content), messages, vehicle)
        if not changed_messages:
            return messages, 0
        is_unchanged = pa.array([index not in changes for index in range(messages.num_rows)])
        unchanged = messages.filter(is_unchanged).cast(SEGMENT_SCHEMA)
        replacements = [row for row in changes.values() if row is not None]
        table = pa.concat_tables([unchanged, pa.Table.from_pylist(replacements, schema=SEGMENT_SCHEMA)])
        return table.sort_by("seq"), changed_messages
    messages = from_lines(segment.path, content).messages
    changes = dict(_changes(segment, messages, vehicle))
    changed_messages = len(changes) or _count_ignored(_ignored_fields(segment.path, content, messages), messages, vehicle)
    if not changed_messages:
        return content, 0
    return _text_file(segment.path, content, messages, changes), changed_messages


def _changes(segment: Segment, messages: pa.Table, vehicle: ErasedVehicle) -> Iterator[tuple[int, Row | None]]:
    """Yield (index, replacement) for each message that names the vehicle. If the replacement is None, the message is removed."""
    # A quick test of whole columns selects the messages that are searched one by one.
    is_candidate = pc.or_(vehicle.may_be_named_in(messages["payload"]), vehicle.may_be_named_in(messages["topic"]))
    is_candidate = pc.or_(is_candidate, vehicle.may_be_named_in(messages["refused_because"]))
    # The quick test cannot see into sealed (encrypted) payloads, so every refused signal message is opened and searched. A short
    # name is not searched for in payloads.
    if segment.stream in SEALED_STREAMS and vehicle.is_searched_in_opaque:
        is_candidate = pc.or_(is_candidate, pc.is_valid(messages["refused_because"]))
    header_texts = [texts for chunk in messages["headers"].chunks for texts in (chunk.keys, chunk.items)]
    if any(pc.any(vehicle.may_be_named_in(texts)).as_py() for texts in header_texts):
        is_candidate = pa.array([True] * messages.num_rows)  # `header_texts` does not tell which message has the header
    indices = pc.indices_nonzero(is_candidate)
    for index, message in zip(indices.to_pylist(), messages.take(indices).to_pylist(), strict=True):
        replacement = vehicle.remove_from(segment.stream, message)
        if replacement is not message:
            yield index, replacement


def _count_ignored(rows: Iterable[Row], messages: pa.Table, vehicle: ErasedVehicle) -> int:
    """Count the rows, which have only the fields of a file that ingest ignores, that name the vehicle.

    0 if all messages of the file were accepted at `before_seq` or later.
    """
    if not messages.num_rows or pc.min(messages["seq"]).as_py() >= vehicle.before_seq:
        return 0
    return sum(vehicle.is_named_in(json.dumps(row, default=str, ensure_ascii=False)) for row in rows)


def _ignored_columns(content: bytes) -> Iterable[Row]:
    """The rows of a Parquet file, with only the text of columns that the envelope does not have."""
    file = pq.ParquetFile(pa.BufferReader(content))
    leaves = [file.schema.column(index) for index in range(len(file.schema))]
    texts = [leaf.path for leaf in leaves if leaf.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")]
    ignored = [path for path in texts if path.split(".")[0] not in SEGMENT_SCHEMA.names]
    rows: list[Row] = file.read(ignored, use_threads=False).to_pylist() if ignored else []
    return rows


def _ignored_fields(path: str, content: bytes, messages: pa.Table) -> Iterable[Row]:
    """Yield the objects on the valid lines of a text file, without the fields that `_line` writes."""
    invalid_lines = messages.filter(pc.less(messages["seq"], 0)).select(["topic"]).to_pylist()
    invalid_numbers = set(map(_line_number, invalid_lines))
    for number, line in enumerate(lines_of(decompressed(path, content)), start=1):
        if number in invalid_numbers or not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):  # Python reads no number of more than 4,300 digits; the whole line is searched then
            fields = {"line": line.decode(errors="replace")}
        yield {name: value for name, value in fields.items() if name not in _LINE_FIELDS}


def _text_file(path: str, content: bytes, messages: pa.Table, changes: dict[int, Row | None]) -> bytes:
    """Write the lines of a text file again, with the changes (index in `messages` → replacement).

    Every message stays on its line, and a removed message leaves an empty line, because an invalid line is identified by its
    number. The seq of a valid message is written into its line. `messages` has the valid lines in order, then the invalid lines,
    which have negative seqs.
    """
    rows = messages.to_pylist()
    index_of_invalid = {_line_number(row): index for index, row in enumerate(rows) if row["seq"] < 0}
    valid_indices = iter(index for index, row in enumerate(rows) if row["seq"] >= 0)
    new_lines: list[bytes] = []
    for number, line in enumerate(lines_of(decompressed(path, content)), start=1):
        is_invalid = number in index_of_invalid
        if not is_invalid and not line.strip():
            new_lines.append(b"")
            continue
        index = index_of_invalid[number] if is_invalid else next(valid_indices)
        if index in changes:
            replacement = changes[index]
            new_lines.append(b"" if replacement is None else _line(replacement))
        else:
            new_lines.append(line if is_invalid else _line(rows[index]))
    return _compressed_as(path, b"\n".join(new_lines) + b"\n")


def _compressed_as(path: str, text: bytes) -> bytes:
    """Compress the text as the suffix of the path says; without such a suffix, return the text itself."""
    for suffix, codec in COMPRESSED.items():
        if path.lower().endswith(suffix):
            sink = pa.BufferOutputStream()
            with pa.CompressedOutputStream(sink, codec) as stream:
                stream.write(text)
            return bytes(sink.getvalue())
    return text


def _line_number(row: Row) -> int:
    """The number of an invalid line, which `from_lines` appends to its topic."""
    return int(row["topic"].rpartition(":")[2])


def _line(row: Row) -> bytes:
    """Encode a message as a line of JSON."""
    fields = {name: row[name] for name in ("seq", "topic", "qos", "applied", "refused_because") if row[name] is not None}
    fields["received_at"] = row["received_at"].isoformat()
    fields["headers"] = dict(row["headers"] or ())
    fields["payload_base64"] = base64.b64encode(row["payload"]).decode()
    return json.dumps(fields).encode()
