"""The verbs of compacted queues alone, beside `Claim` and `Release`; docs/ecq.md says what they keep true."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from contracts import keys
from contracts.ecq import EcqAck
from contracts.queue_names import owner_of_queue
from queues._policy import Policy
from queues._scripts import OF_ECQ, Args, Script
from queues.verbs.claims import Claim, ClaimReply
from queues.verbs.verb import Recorded, Verb, number


class FillReply(NamedTuple):
    """`word` is `ready` (wake a dispatcher), `queued`, or `known`; how many messages are pending by it that were not before."""

    word: str
    queued: int


class _Fill(Verb, frozen=True):
    @staticmethod
    def read(raw: Any) -> FillReply:
        return FillReply(raw[0].decode(), int(raw[1]))


class Append(_Fill, frozen=True):
    """A message becomes the live one of its key, unless a newer one is. Offered again, nothing changes."""

    seq: int
    key: str
    payload: bytes
    ecq_script = Script("ecq_append", shares=OF_ECQ, adds=True)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        return self._call(policy, queue, now_ms, self.seq, self.key, self.payload)


class DirectAppend(_Fill, frozen=True):
    """The same, and wake a dispatcher. Not for a cluster.

    Its reply's word is also `unloaded`, where the queues are not those of `loading`: then nothing was changed.
    """

    seq: int
    key: str
    payload: bytes
    loading: bytes
    ecq_script = Script("ecq_direct_append", shares=OF_ECQ, adds=True, calls="ecq_append")

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        others = (keys.LOADED, keys.wake(keys.shard_of(queue, policy.wake_shards)))
        return self._call(policy, queue, now_ms, self.seq, self.key, self.payload, queue, self.loading, others=others)


class Rewind(_Fill, frozen=True):
    """Make what is live pending again from the message `first_seq` on. One older than the last changes nothing."""

    seq: int  # the rewind's own
    first_seq: int
    ecq_script = Script("ecq_rewind", shares=OF_ECQ)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        return self._call(policy, queue, now_ms, self.seq, self.first_seq, max(0, self.first_seq - 1))


class LiveMessage(NamedTuple):
    """A live message as the lake knows it."""

    seq: int
    key: str
    is_delivered: bool


class Load(_Fill, frozen=True):
    """Bring in what the lake knows of a queue, without payloads. What Redis knows better, or knows already, stays."""

    epoch: int  # seq of the last rewind that the lake knows; 0: of none
    acked_seq: int | None
    acked_at_ms: int | None
    messages: Sequence[LiveMessage]
    is_last: bool = True  # of the calls that a queue with very many messages needs
    ecq_script = Script("ecq_load", shares=OF_ECQ, adds=True)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        position = ("" if self.acked_seq is None else self.acked_seq, "" if self.acked_at_ms is None else self.acked_at_ms)
        parts = (part for m in self.messages for part in (m.seq, m.key, "1" if m.is_delivered else "0"))
        return self._call(policy, queue, now_ms, self.epoch, *position, "1" if self.is_last else "0", *parts)


class AckReply(NamedTuple):
    """`word` is `ended`, `known` (acknowledged before), `undone` (by a rewind since), `unknown` (superseded), `sent`: not yet."""

    word: str
    published_ms: int | None
    attempts: int | None
    epoch: int
    next: ClaimReply


class Acknowledge(Verb, frozen=True):
    """A message was acknowledged: it stays readable while it is live, the position moves on, and the next one is claimed.

    `recorded`: the recorder has the record already, with its epoch; the queue does not hand it on.
    """

    record: EcqAck
    claim: bool = True
    recorded: bool = False
    ecq_script = Script("ecq_ack", shares=OF_ECQ)

    def record_first(self) -> Sequence[Recorded]:
        """Its record, with the epoch of now, unless that is known."""
        if self.recorded:
            return ()

        def complete(found: _AckStateReply) -> tuple[EcqAck | None, Verb]:
            record = replace(self.record, epoch=found.epoch)
            stays = found.is_known or (found.sent and record.passed_over)
            return None if stays else record, replace(self, record=record, recorded=True)

        return (Recorded(_ReadAckState(self.record.seq), complete),)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        record = self.record
        claim, passed_over = ("1" if said else "0" for said in (self.claim, record.passed_over))
        epoch = record.epoch if self.recorded else ""
        args = (record.seq, claim, record.acked_ms, epoch, policy.ecq_retention_ms, passed_over)
        if self.recorded:
            return self._call(policy, queue, now_ms, *args)
        return self._call(policy, queue, now_ms, *args, record.to_be_completed(), others=(keys.OUTCOMES,))

    @staticmethod
    def read(raw: Any) -> AckReply:
        return AckReply(raw[0].decode(), number(raw[1]), number(raw[2]), int(raw[3]), Claim.read(raw[4:]))


class _AckStateReply(NamedTuple):
    epoch: int
    is_known: bool  # it was acknowledged before
    sent: bool  # an earlier publish of it may be under way: it cannot be passed over yet


class _ReadAckState(Verb, frozen=True):
    seq: int
    ecq_script = Script("ecq_read_ack_state", shares=OF_ECQ)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        return self._call(policy, queue, now_ms, self.seq)

    @staticmethod
    def read(raw: Any) -> _AckStateReply:
        return _AckStateReply(int(raw[0]), raw[1] == b"1", raw[2] == b"1")


class Subscription(Verb, frozen=True):
    """Note that the client subscribed with this QoS, or gave that up (None); with `claim`, claim in the same breath."""

    qos: int | None
    claim: bool
    ecq_script = Script("ecq_subscribe", shares=OF_ECQ)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        said = "no" if self.qos is None else "yes" if self.qos else "qos0"
        fanout = keys.owner_keys(owner_of_queue(queue))
        return self._call(
            policy, queue, now_ms, "1" if self.claim else "0", said, others=tuple(fanout[place] for place in (0, 1, 5))
        )

    @staticmethod
    def read(raw: Any) -> ClaimReply:
        return Claim.read(raw)


class _Count(Verb, frozen=True):
    @staticmethod
    def read(raw: Any) -> int:
        return int(raw)


class Erase(_Count, frozen=True):
    """Let everything go that was accepted before this seq. The reply is how many messages that were."""

    before: int
    ecq_script = Script("ecq_erase", shares=OF_ECQ)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        return self._call(policy, queue, now_ms, self.before)


class Prune(_Count, frozen=True):
    """Let acknowledged messages go that were written before an instant (Unix ms). The reply is how many that were."""

    before_ms: int
    ecq_script = Script("ecq_prune", shares=OF_ECQ)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        return self._call(policy, queue, now_ms, self.before_ms)


class QueuedMessage(NamedTuple):
    """A live message as Redis has it; `size_bytes` is that of its payload, None where Redis has it not."""

    key: str
    seq: int
    size_bytes: int | None
    is_delivered: bool


class ReadReply(NamedTuple):
    """Some of what is live, oldest first, and how it stands; 0 or None where nothing is known."""

    acked_seq: int | None
    acked_at_ms: int | None
    epoch: int
    in_flight: int | None
    messages: tuple[QueuedMessage, ...]
    cursor: int = 0  # with which the next call goes on; 0: this was the last


class Read(Verb, frozen=True):
    """Some of what is live, in the order in which Redis has its keys, and how it stands. Changes nothing."""

    cursor: int = 0
    count: int = 1000  # keys to look at: some milliseconds
    ecq_script = Script("ecq_read", shares=OF_ECQ)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        return self._call(policy, queue, now_ms, self.cursor, self.count)

    @staticmethod
    def read(raw: Any) -> ReadReply:
        messages = sorted(_messages(raw[5]), key=lambda message: message.seq)
        return ReadReply(number(raw[0]), number(raw[1]), int(raw[2]), number(raw[3]), tuple(messages), int(raw[4]))


class PageReply(NamedTuple):
    """A page of a queue, oldest first; 0 or None where nothing is known."""

    acked_seq: int | None
    acked_at_ms: int | None
    epoch: int
    in_flight: int | None
    last_seq: int | None  # the greatest of all
    has_more: bool
    messages: tuple[QueuedMessage, ...]  # with a size of None: its key is not known, nor whether it is live


class ReadPage(Verb, frozen=True):
    """What is live after a seq, in seq order, and how it stands. Changes nothing."""

    after: int
    limit: int
    ecq_script = Script("ecq_page", shares=OF_ECQ)

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        return self._call(policy, queue, now_ms, self.after, self.limit)

    @staticmethod
    def read(raw: Any) -> PageReply:
        state = number(raw[0]), number(raw[1]), int(raw[2]), number(raw[3])
        return PageReply(*state, number(raw[4]), raw[5] == b"1", tuple(_messages(raw[6])))


def _messages(flat: Sequence[Any]) -> Iterable[QueuedMessage]:
    parts: Iterable[tuple[bytes, bytes, Any, bytes]] = zip(*(flat[place::4] for place in range(4)), strict=True)
    return (QueuedMessage(key.decode(), int(seq), number(size), how == b"delivered") for key, seq, size, how in parts)
