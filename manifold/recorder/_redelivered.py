"""Recognizes messages that the broker redelivers: one publish is recorded once, even if its PUBACK was lost.

When a session is resumed, the broker redelivers unacknowledged messages with the DUP flag and the same packet id. DUP alone
proves nothing, because the message may not have been recorded. Equal content proves nothing either, because publishing the same
message twice makes two messages. Mosquitto and EMQX count packet ids up over the life of a session, so about 65,535 messages lie
between two messages with the same packet id. A message counts as forgotten after half as many messages.
"""

import hashlib
from array import array
from collections.abc import Iterable

from manifold.contracts.envelope import Envelope, Stream
from manifold.messaging.mqtt import Message
from manifold.recorder._parser import PACKET_ID, Incoming
from manifold.recorder._rate_limit import recorded_parts
from manifold.recorder._recorded import Recorded

MAX_REMEMBERED = 1 << 15  # messages
_PACKET_IDS = 1 << 16
_DIGEST_BYTES = 16


class RedeliveredMessages:
    """The seq and digest of each recorded message of the stream `ecq`, and whether it was refused, by packet id.

    The tables always take 1.6 MiB of memory.
    """

    def __init__(self) -> None:
        self._first_connection = 0  # number of the first connection of the session
        self._forget()

    def session_began(self, connection: int) -> None:
        """Forget all messages: in a new session, the broker redelivers none of them and assigns packet ids anew."""
        self._first_connection = connection
        self._forget()

    def find(self, message: Message) -> Recorded | None:
        """Return the earlier record of this publish; None if it was not recorded, or belongs to another stream."""
        if not message.dup or not message.mid:
            return None
        seq, refused = self._seqs[message.mid], bool(self._refused[message.mid])
        if not seq:
            return None
        payload, _ = recorded_parts(message)  # of a rewind, only the beginning of the payload is recorded
        if self._digests[_digest_slice(message.mid)] != _digest(message.topic, payload):
            return None
        return Recorded(seq, refused)

    def remember(self, incoming: Incoming) -> None:
        """Remember a message that is being recorded. Call it for messages of all streams, which share the packet ids."""
        message = incoming.message
        # A message of an earlier session that is recorded late must not replace one of this session.
        if message is not None and message.qos and message.connection >= self._first_connection:
            self._remember(message.mid, None if incoming.is_dropped else incoming.envelope)

    def restore(self, envelopes: Iterable[Envelope]) -> None:
        """Remember the messages that an earlier process recorded; call it in seq order."""
        for envelope in envelopes:
            header = envelope.headers.get(PACKET_ID, "")
            packet_id = int(header) if header.isascii() and header.isdigit() else 0
            if envelope.stream is Stream.ECQ and 0 < packet_id < _PACKET_IDS:
                self._remember(packet_id, envelope)

    def _remember(self, packet_id: int, envelope: Envelope | None) -> None:
        """Remember the message with this packet id, and forget the message half a cycle of packet ids ago.

        `envelope` is None for a message that was not recorded. Such a message, like one of another stream, is not remembered, but
        its packet id no longer identifies the earlier message.
        """
        self._seqs[packet_id] = 0
        self._seqs[(packet_id + MAX_REMEMBERED) % _PACKET_IDS] = 0
        if envelope is not None and envelope.stream is Stream.ECQ:
            self._seqs[packet_id] = envelope.seq
            self._refused[packet_id] = envelope.refused_because is not None
            self._digests[_digest_slice(packet_id)] = _digest(envelope.topic, envelope.payload)

    def _forget(self) -> None:
        self._seqs = array("q", bytes(8 * _PACKET_IDS))  # 0: no message with this packet id is remembered
        self._refused = bytearray(_PACKET_IDS)  # 1 if the message was refused
        self._digests = bytearray(_DIGEST_BYTES * _PACKET_IDS)


def _digest_slice(packet_id: int) -> slice:
    """The position of this packet id's digest in the table of digests."""
    return slice(packet_id * _DIGEST_BYTES, (packet_id + 1) * _DIGEST_BYTES)


def _digest(topic: str, payload: bytes) -> bytes:
    digest = hashlib.blake2b(topic.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES)
    digest.update(b"\0")
    digest.update(payload)
    return digest.digest()
