"""Recognizes messages that the broker redelivers: one publish is recorded once, even if its PUBACK was lost.

When a session is resumed, the broker redelivers unacknowledged messages with DUP and the same packet id. DUP alone proves
nothing, because the message may not have been recorded. Neither does the content, because publishing the same message twice makes
two messages. Mosquitto and EMQX count packet ids up over the life of a session, so two messages with one packet id have some
65,535 others between them. A message that was recorded more than half as many messages ago counts as forgotten.
"""

import hashlib
from array import array
from collections.abc import Iterable

from manifold.contracts.envelope import Envelope, Stream
from manifold.messaging.mqtt import Message
from manifold.recorder._parser import PACKET_ID, Incoming
from manifold.recorder._rate_limit import bounded
from manifold.recorder._recorded import Recorded

MAX_REMEMBERED = 1 << 15  # messages
_IDS = 1 << 16
_DIGEST_BYTES = 16


class RedeliveredMessages:
    """Digest and seq (negative: refused) of recorded messages of the stream `ecq`, by packet id.

    Always 1.5 MiB in memory.
    """

    def __init__(self) -> None:
        self._connection = 0  # the first connection of the session
        self._forget()

    def session_began(self, connection: int) -> None:
        """Forget everything: the broker has no older session, so it redelivers nothing and assigns packet ids anew."""
        self._connection = connection
        self._forget()

    def find(self, message: Message) -> Recorded | None:
        """The earlier record of this very publish; None if it was not recorded, or belongs to another stream."""
        if not message.dup or not message.mid or not (seq := self._seqs[message.mid]):
            return None
        at = message.mid * _DIGEST_BYTES
        payload, _ = bounded(message)  # as in journal and archive
        same = self._digests[at : at + _DIGEST_BYTES] == _digest(message.topic, payload)
        return Recorded(abs(seq), refused=seq < 0) if same else None

    def note(self, incoming: Incoming) -> None:
        """Note a message that is being recorded. Call it for messages of all streams, which share the packet ids."""
        message = incoming.message
        if message is not None and message.qos and message.connection >= self._connection:
            self._note(message.mid, None if incoming.is_dropped else incoming.envelope)

    def restore(self, envelopes: Iterable[Envelope]) -> None:
        """Note what an earlier process recorded, in seq order."""
        for envelope in envelopes:
            packet_id = envelope.headers.get(PACKET_ID, "")
            if envelope.stream is Stream.ECQ and packet_id.isascii() and packet_id.isdigit() and 0 < int(packet_id) < _IDS:
                self._note(int(packet_id), envelope)

    def _note(self, mid: int, envelope: Envelope | None) -> None:
        self._seqs[mid] = self._seqs[(mid + MAX_REMEMBERED) % _IDS] = 0
        if envelope is not None and envelope.stream is Stream.ECQ:
            self._seqs[mid] = envelope.seq if envelope.refused_because is None else -envelope.seq
            self._digests[mid * _DIGEST_BYTES : (mid + 1) * _DIGEST_BYTES] = _digest(envelope.topic, envelope.payload)

    def _forget(self) -> None:
        self._seqs, self._digests = array("q", bytes(8 * _IDS)), bytearray(_DIGEST_BYTES * _IDS)


def _digest(topic: str, payload: bytes) -> bytes:
    digest = hashlib.blake2b(topic.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES)
    digest.update(b"\0")
    digest.update(payload)
    return digest.digest()
