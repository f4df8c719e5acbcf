"""Avro container files, as far as Iceberg's manifests need them. PyIceberg's reader loads all of PyIceberg: half a second.

Source: the Apache Avro 1.12 specification, "Binary Encoding" and "Object Container Files".
"""

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

MAGIC, SYNC_BYTES = b"Obj\x01", 16
_HEADER = {"type": "map", "values": "bytes"}
_FIXED = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}

Read = Callable[[BytesIO], Any]


def records(raw: bytes) -> Iterator[Any]:
    """The records of a file; a logical type is given as the type below it.

    Raises:
        ValueError: it is no such file, or packed in a way that only Avro's own libraries know.
    """
    file = BytesIO(raw)
    if file.read(len(MAGIC)) != MAGIC:
        raise ValueError("no Avro container file")
    header = reader_of(_HEADER)(file)
    codec, sync = header.get("avro.codec", b"null"), file.read(SYNC_BYTES)
    if codec not in (b"null", b"deflate"):
        raise ValueError(f"codec {codec!r}")
    read = reader_of(json.loads(header["avro.schema"]))
    while file.tell() < len(raw):
        count, block = _long(file), file.read(_long(file))
        if file.read(SYNC_BYTES) != sync:
            raise ValueError("a block that does not end where it should")
        some = BytesIO(zlib.decompress(block, -zlib.MAX_WBITS) if codec == b"deflate" else block)
        for _ in range(count):
            yield read(some)


def reader_of(schema: Any) -> Read:
    """What reads one value of this schema. Named types that are used again by their names are not among Iceberg's."""
    if isinstance(schema, list):
        branches = [reader_of(branch) for branch in schema]
        return lambda file: branches[_long(file)](file)
    kind = schema["type"] if isinstance(schema, dict) else schema
    match kind:
        case "record":
            fields = [(field["name"], reader_of(field["type"])) for field in schema["fields"]]
            return lambda file: {name: read(file) for name, read in fields}
        case "array":
            item = reader_of(schema["items"])
            return lambda file: [item(file) for _ in _items(file)]
        case "map":
            value = reader_of(schema["values"])
            return lambda file: {_bytes(file).decode(): value(file) for _ in _items(file)}
        case "fixed":
            return lambda file: file.read(schema["size"])
        case "null":
            return lambda _: None
        case "boolean":
            return lambda file: file.read(1) != b"\0"
        case "int" | "long":
            return _long
        case "float" | "double":
            return lambda file: _FIXED[kind].unpack(file.read(_FIXED[kind].size))[0]
        case "bytes":
            return _bytes
        case "string":
            return lambda file: _bytes(file).decode()
        case dict() | list():
            return reader_of(kind)
        case _:
            raise ValueError(f"type {kind!r}")


def _items(file: BytesIO) -> Iterator[int]:
    """Once for each item of an array or a map; a negative count is followed by the size of its block."""
    while count := _long(file):
        if count < 0:
            _long(file)
        yield from range(abs(count))


def _bytes(file: BytesIO) -> bytes:
    return file.read(_long(file))


def _long(file: BytesIO) -> int:
    """A number in zig-zag coding, seven bits a byte."""
    number, shift = 0, 0
    while True:
        (byte,) = file.read(1)
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number >> 1 ^ -(number & 1)
        shift += 7
