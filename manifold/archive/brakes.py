"""Finds the brakes of campaigns (orders to pause, cancel or complete) among recorded messages."""

from collections.abc import Iterable, Iterator

from manifold.contracts.brakes import Braking, braking_of
from manifold.contracts.campaigns import decode
from manifold.contracts.envelope import Envelope
from manifold.contracts.messages import Refused

# A payload without any of these is no brake. The backslash is included because JSON can write any word with escapes.
_BRAKE_MARKS = (b'"pause"', b'"cancel"', b'"complete"', b"\\")


def brakings_of(orders: Iterable[Envelope]) -> Iterator[Braking]:
    """Yield the brakes among these messages of the stream `campaign`.

    Only payloads that may be a brake are parsed, because other orders can contain long lists of targets.
    """
    for envelope in orders:
        if envelope.refused_because is not None or not any(mark in envelope.payload for mark in _BRAKE_MARKS):
            continue
        command = decode(envelope.payload)
        braking = None if isinstance(command, Refused) else braking_of(envelope.seq, command)
        if braking is not None:
            yield braking
