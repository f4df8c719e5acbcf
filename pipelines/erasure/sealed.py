"""Opens refused messages of signals, whose payloads may name a device where no parser looks."""

import zlib
from collections.abc import Callable

import structlog

from manifold.contracts.envelope import Stream
from manifold.contracts.errors import SettingsError
from manifold.lake.day_keys import DayKeys
from manifold.lake.key_ring import KeyIsGone, require_ring
from manifold.lake.sealing import Broken
from manifold.settings import Settings

STREAMS = (Stream.XRAY_RAW, Stream.XRAY_STATUS)
MAX_BYTES = 64 << 20  # of one inflated body

Opened = Callable[[int, bytes], bytes]  # (seq, sealed bytes) of a refused message → its plaintext

log = structlog.get_logger(__name__)


def opened_by(settings: Settings) -> Opened:
    """Make a function that opens payloads with the settings' key ring. Payloads that it cannot open count as naming no device.

    The function raises OSError if the key storage fails.
    """
    try:
        require_ring(settings)
        keys = DayKeys.of(settings)
    except SettingsError as exc:
        return _not_opened(str(exc))

    def opened(seq: int, sealed: bytes) -> bytes:
        try:
            plain = keys.open(sealed, seq=seq)
        except (KeyIsGone, Broken):
            return b""
        return plain + b"\n" + _inflated(plain)

    return opened


def _not_opened(why: str) -> Opened:
    said = set[str]()

    def opened(_: int, __: bytes) -> bytes:
        if why not in said:
            log.warning("refused signal messages cannot be opened; searching their topics only", reason=why)
            said.add(why)
        return b""

    return opened


def closed(_: int, __: bytes) -> bytes:
    """Open nothing."""
    return b""


def _inflated(body: bytes) -> bytes:
    """Inflate a gzip body as far as it goes; empty if it is not gzip."""
    try:
        return zlib.decompressobj(wbits=31).decompress(body, MAX_BYTES)
    except zlib.error:
        return b""
