"""Verbs that fill a fanout queue, and the verb that erases it."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from manifold.contracts import keys
from manifold.queues._policy import Policy
from manifold.queues._scripts import Args, Script
from manifold.queues.verbs.verb import Verb


class EnqueueReply(NamedTuple):
    """`word` is `ready` (wake a dispatcher), `queued` (nothing can be claimed now) or `known` (no entry is new)."""

    word: str
    queued: int  # number of new entries
    superseded: tuple[int, ...]  # seqs of the entries that they superseded


def flatten(policy: Policy, entries: Iterable[tuple[int, str]]) -> list[Any]:
    """Flatten (seq, request_id) entries for `Offer`: [seq, …], or [seq, request_id, seq, …] with compaction."""
    if policy.compaction:
        return list(chain.from_iterable(entries))
    return [seq for seq, _ in entries]


class _Fill(Verb, frozen=True):
    @staticmethod
    def read(raw: Any) -> EnqueueReply:
        word, queued, *superseded = raw  # only some scripts return the last list
        return EnqueueReply(word.decode(), int(queued), tuple(map(int, superseded[0])) if superseded else ())


class Offer(_Fill, frozen=True):
    """Queue entries, oldest first, flattened by `flatten`. Idempotent; an ended entry never comes back."""

    parts: Sequence[Any]
    script = Script("enqueue", needs_memory=True, before="_fresh")

    def command(self, policy: Policy, owner: str, now_ms: int) -> Args:
        return self._call(policy, owner, now_ms, "1" if policy.compaction else "0", *self.parts)


class Enqueue(_Fill, frozen=True):
    """Queue entries, given as (seq, request_id), oldest first. Idempotent; an ended entry never comes back."""

    entries: Sequence[tuple[int, str]]

    def command(self, policy: Policy, owner: str, now_ms: int) -> Args:
        return Offer(flatten(policy, self.entries)).command(policy, owner, now_ms)


class DirectEnqueue(_Fill, frozen=True):
    """Queue the single entry of a trigger and wake a dispatcher. Not for a cluster.

    `load_id` identifies the load of the queues that the recorder knows. The reply's `word` may also be `unloaded`, if the queues
    are not of that load, or `duplicate`, if another trigger has the same digest. In both cases, nothing has changed.
    """

    seq: int
    request_id: str
    data_id: str
    digest: str
    load_id: bytes
    script = Script("direct_enqueue", needs_memory=True, calls="enqueue")

    def command(self, policy: Policy, owner: str, now_ms: int) -> Args:
        others = (keys.LOADED, keys.dedupe(self.digest), keys.wake(keys.shard_of(owner, policy.wake_shards)))
        args = ("1" if policy.compaction else "0", self.seq, self.request_id, owner, self.data_id, self.load_id)
        return self._call(policy, owner, now_ms, *args, others=others)


class Unpark(_Fill, frozen=True):
    """Put parked entries back to pending, in seq order; without `seqs`, all of them."""

    seqs: Sequence[str | int] = ()
    script = Script("unpark")

    def command(self, policy: Policy, owner: str, now_ms: int) -> Args:
        return self._call(policy, owner, now_ms, *self.seqs)


class Erase(Verb, frozen=True):
    """Remove everything with a seq less than `before`, without outcomes. The reply is the number of removed entries."""

    before: int
    script = Script("erase")

    @staticmethod
    def read(raw: Any) -> int:
        return int(raw)
