"""Verbs of compacted queues, besides `Claim` and `Release`; docs/guides/compacted-queues.md says what they guarantee."""

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


class FillReply(NamedTuple):
    """`word` is `ready` (wake a dispatcher), `queued` or `known`; `queued` counts the messages that became pending.

    `superseded` counts the older messages that an append replaced.
    """

    word: str
    queued: int
    superseded: int = 0


class _Fill(Verb, frozen=True):
    @staticmethod
    def read(raw: Any) -> FillReply:
        return FillReply(raw[0].decode(), int(raw[1]), int(raw[2]) if len(raw) > 2 else 0)


class Append(_Fill, frozen=True):
    """Make a message the live one of its key, unless a newer one is. Idempotent."""

    seq: int
    key: str
    payload: bytes
    ecq_script = Script("ecq_append", prepends=ECQ_SHARED_CODE, needs_memory=True)


class DirectAppend(_Fill, frozen=True):
    """Append, and wake a dispatcher. Not for a cluster.

    The reply's `word` may also be `unloaded`, if the queues are not of the load `load_id`; then nothing has changed.
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
    """Make live messages pending again from `first_seq` on. A rewind older than the last one changes nothing."""

    seq: int  # of the rewind itself
    first_seq: int
    ecq_script = Script("ecq_rewind", prepends=ECQ_SHARED_CODE)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        return self._call(policy, queue, now_ms, self.seq, self.first_seq, max(0, self.first_seq - 1))


class LiveMessage(NamedTuple):
    """A live message in the lake."""

    seq: int
    key: str
    is_delivered: bool


class Load(_Fill, frozen=True):
    """Load a queue from the lake's state, without payloads. State that Redis already has, or has newer, stays."""

    epoch: int  # seq of the last rewind in the lake; 0: none
    acked_seq: int | None
    acked_at_ms: int | None
    messages: Sequence[LiveMessage]
    is_last: bool = True  # a queue with very many messages needs several calls
    ecq_script = Script("ecq_load", prepends=ECQ_SHARED_CODE, needs_memory=True)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        position = ("" if self.acked_seq is None else self.acked_seq, "" if self.acked_at_ms is None else self.acked_at_ms)
        parts = (part for m in self.messages for part in (m.seq, m.key, "1" if m.is_delivered else "0"))
        return self._call(policy, queue, now_ms, self.epoch, *position, "1" if self.is_last else "0", *parts)


class AckReply(NamedTuple):
    """`word` is `ended`, `known` (acknowledged before), `undone` (rewound since), `unknown` (superseded) or `sent`.

    `sent`: a publish of it may still be under way, so it cannot be passed over yet.
    """

    word: str
    published_ms: int | None
    attempts: int | None
    epoch: int
    next: ClaimReply


class Acknowledge(Verb, frozen=True):
    """Acknowledge a message, advance the position and claim the next message. The message stays readable while it is live.

    Without `sends_outcome`, the recorder already has the record, with its epoch, and nothing is sent.
    """

    record: EcqAck
    claim: bool = True
    sends_outcome: bool = True
    ecq_script = Script("ecq_ack", prepends=ECQ_SHARED_CODE)

    def record_first(self) -> Sequence[Recorded]:
        """The record with the current epoch, unless the message was acknowledged before."""
        if not self.sends_outcome:
            return ()

        def complete(found: _AckStateReply) -> tuple[EcqAck | None, Verb]:
            record = replace(self.record, epoch=found.epoch)
            stays = found.is_known or (found.sent and record.passed_over) or (record.is_expired and not found.is_pending)
            return None if stays else record, replace(self, record=record, sends_outcome=False)

        return (Recorded(_ReadAckState(self.record.seq), complete),)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        record = self.record
        claim, passed_over = "1" if self.claim else "0", "1" if record.passed_over else "0"
        if record.is_expired:
            passed_over = "2"
        epoch = "" if self.sends_outcome else record.epoch
        args = (record.seq, claim, record.acked_ms, epoch, policy.ecq_retention_ms, passed_over)
        if not self.sends_outcome:
            return self._call(policy, queue, now_ms, *args)
        return self._call(policy, queue, now_ms, *args, record.to_wire_prefix(), others=(keys.OUTCOMES,))

    @staticmethod
    def read(raw: Any) -> AckReply:
        return AckReply(raw[0].decode(), number(raw[1]), number(raw[2]), int(raw[3]), Claim.read(raw[4:]))


class _AckStateReply(NamedTuple):
    """What the queue knows of one message."""

    epoch: int
    is_known: bool  # it was acknowledged before
    sent: bool  # an earlier publish may still be under way: it cannot be passed over yet
    is_pending: bool


class _ReadAckState(Verb, frozen=True):
    seq: int
    ecq_script = Script("ecq_read_ack_state", prepends=ECQ_SHARED_CODE)

    @staticmethod
    def read(raw: Any) -> _AckStateReply:
        return _AckStateReply(int(raw[0]), raw[1] == b"1", raw[2] == b"1", raw[3] == b"1")


class Subscription(Verb, frozen=True):
    """Record that the client subscribed with this QoS, or unsubscribed (None); with `claim`, also claim.

    A message published to a new session before its first subscription goes back to pending.
    """

    qos: int | None
    claim: bool
    at_ms: int | None = None  # when the broker granted it, Unix ms; None: now
    ecq_script = Script("ecq_subscribe", prepends=ECQ_SHARED_CODE)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        said = "no" if self.qos is None else "yes" if self.qos else "qos0"
        fanout = keys.owner_keys(owner_of_queue(queue))
        args = ("1" if self.claim else "0", said, now_ms if self.at_ms is None else self.at_ms)
        return self._call(policy, queue, now_ms, *args, others=tuple(fanout[place] for place in (0, 1, 5)))

    @staticmethod
    def read(raw: Any) -> ClaimReply:
        return Claim.read(raw)


class _Count(Verb, frozen=True):
    @staticmethod
    def read(raw: Any) -> int:
        return int(raw)


class Erase(_Count, frozen=True):
    """Remove everything accepted before this seq. The reply is the number of messages."""

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
    """Remove acknowledged messages written before `before_ms` (Unix ms). The reply is the number of messages."""

    before_ms: int
    ecq_script = Script("ecq_prune", prepends=ECQ_SHARED_CODE)
