"""Device ids and correlation id that a refused message states. Pure; what it states is not authenticated.

Erasing a device finds refused messages by the stated device ids. The correlation id appears in logs and error reports.
"""

import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from manifold.contracts.signals.messages import DEVICE_ID, UUID_4
from manifold.signals._received import DEVICE, Received

MAX_DEVICES = 8  # indexed per message
LOOKED_AT = 1 << 20  # bytes of an inflated body that are searched
_NAMES = re.compile(rb'"deviceId"\s*:\s*"([A-Za-z0-9_-]{1,100})"')


class StatedIdentity(NamedTuple):
    """Device ids and correlation id named by a message."""

    devices: tuple[str, ...] = ()
    correlation_id: str | None = None


def stated_identity_of(received: Received) -> StatedIdentity:
    """Return what the headers and the body state, even if the body is malformed; only its first MiB is searched."""
    body = readable(received)
    said = _json(body)
    devices = dict.fromkeys(name for name in _devices(received, body, said) if DEVICE_ID.fullmatch(name))
    own = said.get("correlationId")
    if isinstance(own, str) and UUID_4.fullmatch(own):
        return StatedIdentity(tuple(devices)[:MAX_DEVICES], own)
    return StatedIdentity(tuple(devices)[:MAX_DEVICES], received.correlation_id)


def _devices(received: Received, body: bytes, said: dict[str, Any]) -> Iterator[str]:
    named = said.get("deviceId")
    if isinstance(named, str):  # the parsed value, because the regex does not decode JSON escapes
        yield named
    if (header := received.header(DEVICE)) is not None:
        yield header
    for place, found in enumerate(_NAMES.finditer(body)):
        if place >= MAX_DEVICES:
            return
        yield found[1].decode()


def readable(received: Received) -> bytes:
    """Return the first MiB of the body, inflated if it is valid gzip."""
    if (received.content_encoding or "").lower() != "gzip":
        return received.body[:LOOKED_AT]
    try:
        return zlib.decompressobj(wbits=31).decompress(received.body, LOOKED_AT)
    except zlib.error:
        return received.body[:LOOKED_AT]


def _json(body: bytes) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(body.removeprefix(BOM_UTF8))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
