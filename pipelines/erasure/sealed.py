"""Opens refused messages of signals, which are sealed. No parser has accepted them, so they may name a device anywhere."""

import zlib
from collections.abc import Callable

import structlog

from manifold.contracts.envelope import Stream
from manifold.contracts.errors import SettingsError
from manifold.lake.day_keys import DayKeys
from manifold.lake.key_ring import KeyIsGone, require_ring
from manifold.lake.sealing import Broken
from manifold.settings import Settings

# The streams of signals, whose messages are sealed.
SEALED_STREAMS = (Stream.XRAY_RAW, Stream.XRAY_STATUS)
MAX_INFLATED_BYTES = 64 << 20  # of one message

Opener = Callable[[int, bytes], bytes]  # (seq, sealed bytes) of a refused message → its plaintext

log = structlog.get_logger(__name__)


def opener_of(settings: Settings) -> Opener:
    """Make a function that opens payloads with the settings' key ring.

    The function returns the plaintext and, if the plaintext is gzip, its inflated content after it. For a payload that cannot be
    opened, it returns empty bytes, which name no device. It raises OSError if the key storage fails. If the settings have no key
    ring, the function opens no payload, and logs a warning.
    """
    try:
        require_ring(settings)
        keys = DayKeys.of(settings)
    except SettingsError as exc:
        return _warn_and_open_nothing(str(exc))

    def open_payload(seq: int, sealed: bytes) -> bytes:
        try:
            plaintext = keys.open(sealed, seq=seq)
        except (KeyIsGone, Broken):  # nobody can open this payload
            return b""
        return plaintext + b"\n" + _inflated(plaintext)

    return open_payload


def _warn_and_open_nothing(reason: str) -> Opener:
    """Make a function that opens nothing, and logs a warning at its first call."""
    has_warned = False

    def warn(_: int, __: bytes) -> bytes:
        nonlocal has_warned
        if not has_warned:
            log.warning("refused signal messages cannot be opened; searching their topics only", reason=reason)
            has_warned = True
        return b""

    return warn


def open_nothing(_: int, __: bytes) -> bytes:
    """Return empty bytes for any payload, where messages are not sealed or need not be opened."""
    return b""


def _inflated(body: bytes) -> bytes:
    """Inflate a gzip body, up to `MAX_INFLATED_BYTES`, even if it is incomplete. Empty if the body is not gzip."""
    try:
        return zlib.decompressobj(wbits=31).decompress(body, MAX_INFLATED_BYTES)
    except zlib.error:
        return b""
