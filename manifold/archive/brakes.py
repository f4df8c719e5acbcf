"""Finds the orders that brake campaigns among recorded messages."""

from collections.abc import Iterable, Iterator

from manifold.contracts.brakes import Braking, braking_of
from manifold.contracts.campaigns import decode
from manifold.contracts.envelope import Envelope
from manifold.contracts.messages import Refused

_MARKS = (b'"pause"', b'"cancel"', b'"complete"', b"\\")  # JSON can escape any word with a backslash


def brakings_of(orders: Iterable[Envelope]) -> Iterator[Braking]:
    """Yield the brakes that these messages of the stream `campaign` put on. Long lists of targets are not parsed."""
    for envelope in orders:
        if envelope.refused_because is not None or not any(mark in envelope.payload for mark in _MARKS):
            continue
        command = decode(envelope.payload)
        braking = None if isinstance(command, Refused) else braking_of(envelope.seq, command)
        if braking is not None:
            yield braking
