"""Verbs of compacted queues, in addition to `Claim` and `Release`; docs/guides/compacted-queues.md has their guarantees.

A message is live while it is the newest of its key. The position of a queue is the seq up to which its messages are acknowledged.
A rewind moves the position back; the seq of the last rewind is the epoch of the queue.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.queue_names import owner_of_queue
from manifold.queues._policy import Policy
from manifold.queues._scripts import ECQ_SHARED_CODE, Args, Script
from manifold.queues.verbs.claims import Claim, ClaimReply
from manifold.queues.verbs.verb import Recorded, Verb, number

# Indices in `owner_keys` of the keys that ecq_subscribe.lua takes: pending, inflight and parked.
_FANOUT_KEY_INDICES = (0, 1, 5)


class FillReply(NamedTuple):
    """`word` is `ready` (wake a dispatcher), `queued` (nothing can be claimed now) or `known` (nothing became pending).

    `queued` counts the messages that became pending, and `superseded` the older messages that an append replaced.
    """

    word: str
    queued: int
    superseded: int = 0


class _Fill(Verb, frozen=True):
    @staticmethod
    def read(raw: Any) -> FillReply:
        word, queued, *superseded = raw  # only some scripts return the last number
        return FillReply(word.decode(), int(queued), int(superseded[0]) if superseded else 0)


class Append(_Fill, frozen=True):
    """Make a message the live one of its key, unless the key has a newer message. Idempotent."""

    seq: int
    key: str
    payload: bytes
    ecq_script = Script("ecq_append", prepends=ECQ_SHARED_CODE, needs_memory=True)


class DirectAppend(_Fill, frozen=True):
    """Append, and wake a dispatcher. Not for a cluster.

    `load_id` identifies the load of the queues that the recorder knows. The reply's `word` may also be `unloaded`, if the queues
    are not of that load; then nothing has changed.
    """

    seq: int
    key: str
    payload: bytes
    load_id: bytes
    ecq_script = Script("ecq_direct_append", prepends=ECQ_SHARED_CODE, needs_memory=True, calls="ecq_append")

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        others = (keys.LOADED, keys.wake(keys.shard_of(queue, policy.wake_shards)))
        return self._call(policy, queue, now_ms, self.seq, self.key, self.payload, queue, self.load_id, others=others)


class Rewind(_Fill, frozen=True):
    """Make the live messages from `first_seq` on pending again. A rewind older than the last one changes nothing."""

    seq: int  # seq of the rewind itself
    first_seq: int
    ecq_script = Script("ecq_rewind", prepends=ECQ_SHARED_CODE)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        new_position = max(0, self.first_seq - 1)
        return self._call(policy, queue, now_ms, self.seq, self.first_seq, new_position)


class LiveMessage(NamedTuple):
    """A live message in the lake."""

    seq: int
    key: str
    is_delivered: bool


class Load(_Fill, frozen=True):
    """Load a queue from its state in the lake, without payloads. State that is the same or newer in Redis stays."""

    epoch: int  # seq of the last rewind in the lake; 0: none
    acked_seq: int | None
    acked_at_ms: int | None
    messages: Sequence[LiveMessage]
    is_last: bool = True  # False if further calls follow, because the queue has very many messages
    ecq_script = Script("ecq_load", prepends=ECQ_SHARED_CODE, needs_memory=True)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        acked_seq = "" if self.acked_seq is None else self.acked_seq
        acked_at_ms = "" if self.acked_at_ms is None else self.acked_at_ms
        is_last = "1" if self.is_last else "0"
        messages: list[Any] = []
        for message in self.messages:
            messages += (message.seq, message.key, "1" if message.is_delivered else "0")
        return self._call(policy, queue, now_ms, self.epoch, acked_seq, acked_at_ms, is_last, *messages)


class AckReply(NamedTuple):
    """`word` is `ended`, `known` (acknowledged before), `undone` (rewound since), `unknown` (superseded) or `sent`.

    `sent` says that a publish of the message may still be under way, so that the message cannot be passed over yet.
    """

    word: str
    published_ms: int | None
    attempts: int | None
    epoch: int
    next: ClaimReply


class Acknowledge(Verb, frozen=True):
    """Acknowledge a message, advance the position and claim the next message. The message stays readable while it is live.

    Without `sends_outcome`, nothing is sent to the recorder, which already has the record with its epoch.
    """

    record: EcqAck
    claim: bool = True
    sends_outcome: bool = True
    ecq_script = Script("ecq_ack", prepends=ECQ_SHARED_CODE)

    def record_first(self) -> Sequence[Recorded]:
        """The record with the queue's epoch, unless the message was acknowledged before or cannot end yet.

        The expiry of a message is only recorded while the message is pending.
        """
        if not self.sends_outcome:
            return ()

        def complete(state: _AckStateReply) -> tuple[EcqAck | None, Verb]:
            record = replace(self.record, epoch=state.epoch)
            cannot_be_passed_over = state.sent and record.passed_over
            cannot_expire = record.is_expired and not state.is_pending
            has_record = not (state.is_known or cannot_be_passed_over or cannot_expire)
            return record if has_record else None, replace(self, record=record, sends_outcome=False)

        return (Recorded(_ReadAckState(self.record.seq), complete),)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        record = self.record
        claim = "1" if self.claim else "0"
        ending = "0"  # acknowledged by the client
        if record.is_expired:
            ending = "2"
        elif record.passed_over:
            ending = "1"
        epoch = "" if self.sends_outcome else record.epoch  # empty: the script takes the queue's epoch
        args = (record.seq, claim, record.acked_ms, epoch, policy.ecq_retention_ms, ending)
        if not self.sends_outcome:
            return self._call(policy, queue, now_ms, *args)
        return self._call(policy, queue, now_ms, *args, record.to_wire_prefix(), others=(keys.OUTCOMES,))

    @staticmethod
    def read(raw: Any) -> AckReply:
        word, published_ms, attempts, epoch, *claim = raw
        return AckReply(word.decode(), number(published_ms), number(attempts), int(epoch), Claim.read(claim))


class _AckStateReply(NamedTuple):
    """The state of one message in the queue, and the epoch of the queue."""

    epoch: int
    is_known: bool  # whether the message was acknowledged before
    sent: bool  # whether an earlier publish may still be under way, so that the message cannot be passed over yet
    is_pending: bool


class _ReadAckState(Verb, frozen=True):
    """Read what the record of an acknowledgement needs. Changes nothing."""

    seq: int
    ecq_script = Script("ecq_read_ack_state", prepends=ECQ_SHARED_CODE)

    @staticmethod
    def read(raw: Any) -> _AckStateReply:
        epoch, is_known, sent, is_pending = raw
        return _AckStateReply(int(epoch), is_known == b"1", sent == b"1", is_pending == b"1")


class Subscription(Verb, frozen=True):
    """Record that the client has subscribed with this QoS, or unsubscribed if it is None; with `claim`, also claim.

    A message published to a new session before its first subscription goes back to pending.
    """

    qos: int | None
    claim: bool
    at_ms: int | None = None  # when the broker granted the subscription, in Unix ms; None: now
    ecq_script = Script("ecq_subscribe", prepends=ECQ_SHARED_CODE)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        claim = "1" if self.claim else "0"
        subscription = "yes"
        if self.qos is None:
            subscription = "no"
        elif self.qos == 0:
            subscription = "qos0"
        at_ms = now_ms if self.at_ms is None else self.at_ms
        fanout_keys = keys.owner_keys(owner_of_queue(queue))
        others = tuple(fanout_keys[index] for index in _FANOUT_KEY_INDICES)
        return self._call(policy, queue, now_ms, claim, subscription, at_ms, others=others)

    @staticmethod
    def read(raw: Any) -> ClaimReply:
        return Claim.read(raw)


class _Count(Verb, frozen=True):
    @staticmethod
    def read(raw: Any) -> int:
        return int(raw)


class Erase(_Count, frozen=True):
    """Remove everything with a seq less than `before`. The reply is the number of removed messages."""

    before: int
    ecq_script = Script("ecq_erase", prepends=ECQ_SHARED_CODE)


class Expire(Verb, frozen=True):
    """End the pending messages with these seqs, which are past their retention. The reply lists the seqs that expired."""

    seqs: Sequence[int]
    ecq_script = Script("ecq_expire", prepends=ECQ_SHARED_CODE)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        return self._call(policy, queue, now_ms, *self.seqs)

    @staticmethod
    def read(raw: Any) -> list[int]:
        return [int(seq) for seq in raw]


class Prune(_Count, frozen=True):
    """Remove acknowledged messages written before `before_ms` (Unix ms). The reply is the number of removed messages."""

    before_ms: int
    ecq_script = Script("ecq_prune", prepends=ECQ_SHARED_CODE)
