"""Device ids and correlation id that a refused message states. They are not authenticated. Pure.

Erasure of a device finds refused messages by their stated device ids. The correlation id appears in logs and error reports.
"""

import itertools
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from manifold.contracts.signals.messages import DEVICE_ID, UUID_4
from manifold.signals._received import DEVICE, Received

MAX_DEVICES = 8  # device ids indexed per message
MAX_SEARCHED_BYTES = 1 << 20  # bytes of an inflated body that are searched
_DEVICE_ID_FIELD = re.compile(rb'"deviceId"\s*:\s*"([A-Za-z0-9_-]{1,100})"')


class StatedIdentity(NamedTuple):
    """Device ids and correlation id named by a message."""

    devices: tuple[str, ...] = ()
    correlation_id: str | None = None


def stated_identity_of(received: Received) -> StatedIdentity:
    """Return the ids that the headers and the first MiB of the body state. The body may be malformed.

    A valid correlation id in the body takes precedence over that of the headers.
    """
    body = readable(received)
    fields = _json_object(body)
    valid_ids = (device_id for device_id in _device_ids(received, body, fields) if DEVICE_ID.fullmatch(device_id))
    distinct_ids = tuple(dict.fromkeys(valid_ids))  # in their order
    correlation_id = fields.get("correlationId")
    if not isinstance(correlation_id, str) or not UUID_4.fullmatch(correlation_id):
        correlation_id = received.correlation_id
    return StatedIdentity(distinct_ids[:MAX_DEVICES], correlation_id)


def _device_ids(received: Received, body: bytes, fields: dict[str, Any]) -> Iterator[str]:
    """Yield the device ids in the parsed body, the header, and up to `MAX_DEVICES` matches anywhere in the body."""
    parsed = fields.get("deviceId")
    if isinstance(parsed, str):  # the search below would not find a value with JSON escapes
        yield parsed
    header = received.header(DEVICE)
    if header is not None:
        yield header
    for match in itertools.islice(_DEVICE_ID_FIELD.finditer(body), MAX_DEVICES):
        yield match[1].decode()


def readable(received: Received) -> bytes:
    """Return the first MiB of the body, inflated if it is valid gzip."""
    if (received.content_encoding or "").lower() != "gzip":
        return received.body[:MAX_SEARCHED_BYTES]
    try:
        return zlib.decompressobj(wbits=31).decompress(received.body, MAX_SEARCHED_BYTES)
    except zlib.error:
        return received.body[:MAX_SEARCHED_BYTES]


def _json_object(body: bytes) -> dict[str, Any]:
    """Return the body's JSON object; an empty one if the body is not a JSON object."""
    try:
        parsed = msgspec.json.decode(body.removeprefix(BOM_UTF8))
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
