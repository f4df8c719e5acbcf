"""Watermarks in Redis: whether the queues are loaded, and up to which seq of each recorder they are complete.

`Loader.mark_loaded` sets the mark; this module only reads and clears it.
"""

from dataclasses import dataclass
from typing import Any

from manifold.contracts import keys
from manifold.contracts.errors import Retryable
from manifold.queues import _commands
from manifold.queues._cluster import is_cluster
from manifold.queues._streams import Streams

NOT_LOADED = "the queues are not loaded: run `manifold rebuild`"
LOADED_AGAIN = "the queues were loaded again meanwhile; catching up"
CHANGED = "the queues changed since the last watermark: Redis rolled back, or the queues were reloaded"


def why_not_loaded(found: bytes | str | None) -> str:
    """Say why nothing can be added to the load that a recorder knows, if Redis has the load `found` now."""
    return LOADED_AGAIN if found else NOT_LOADED


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The watermarks of one recorder as stored in Redis: one of each kind, or in a cluster one per part of the slots."""

    loaded: tuple[bytes, ...]  # when the queues were loaded; empty: missing
    enqueued_marks: tuple[bytes, ...]  # `<load_id> <seq>`; empty: missing
    loaded_seq: int | None  # seq up to which the last rebuild loaded this recorder's triggers from the lake
    loaded_ecq_seq: int | None = None  # the same for this recorder's stream `ecq`; either may be greater

    @property
    def load_id(self) -> bytes | None:
        """What identifies the last load of the queues; None if they do not hold everything pending."""
        return self.loaded[0] if all(self.loaded) else None

    @property
    def enqueued_seq(self) -> int | None:
        """The seq up to which this recorder has handed everything over since the queues were loaded; None if it has not."""
        parts = [mark.split(b" ") for mark in self.enqueued_marks]
        if any(len(part) != 2 or part[0] != self.load_id for part in parts):
            return None
        return min(int(seq) for _, seq in parts)

    @property
    def complete_seq(self) -> int | None:
        """The seq up to which the queues hold everything that this recorder has recorded; None if unknown."""
        return self.loaded_seq if self.enqueued_seq is None else self.enqueued_seq

    @property
    def complete_ecq_seq(self) -> int | None:
        """As `complete_seq`, for compacted queues."""
        return self.loaded_ecq_seq if self.enqueued_seq is None else self.enqueued_seq

    @property
    def is_rebuilt(self) -> bool:
        """Whether the queues were filled from the lake and this recorder has handed over nothing since."""
        return self.enqueued_seq is None and not (self.loaded_seq is None and self.loaded_ecq_seq is None)


class WatermarkedQueues(Streams):
    """Reads and moves watermarks. A watermark is written after the entries it covers, so losing entries loses it too.

    Raises:
        redis.RedisError: from every method, if Redis is unavailable or rejects a command.
    """

    async def marks(self, node: int) -> Watermarks:
        """Read the watermarks of the recorder `node`."""
        loaded, handed = self._keys(node)
        batch = self.batch()
        for key in (*loaded, *handed):
            batch.call(("GET", key), _or_empty)
        for field in (keys.taken_field(node), keys.taken_field(node, of_ecq=True)):
            batch.call(("HGET", keys.REBUILT_UP_TO, field), _or_empty)
        *found, taken, taken_ecq = await batch.run()
        of_lake = (int(seq) if seq else None for seq in (taken, taken_ecq))
        return Watermarks(tuple(found[: len(loaded)]), tuple(found[len(loaded) :]), *of_lake)

    async def advance_watermark(self, node: int, marks: Watermarks, seq: int) -> Watermarks:
        """Advance this recorder's watermark: the queues hold everything up to `seq`. Returns the new watermarks.

        Raises:
            Retryable: the watermarks in Redis are no longer `marks`.
        """
        loaded, handed = self._keys(node)
        new = b"%s %d" % (marks.load_id, seq)
        batch = self.batch()
        for key in loaded:
            batch.call(("GET", key), _or_empty)
        for key, before in zip(handed, marks.enqueued_marks, strict=True):
            batch.call(_commands.swap(key, before, new), int)
        found = await batch.run()
        if tuple(found[: len(loaded)]) != marks.loaded or not all(found[len(loaded) :]):
            raise Retryable(CHANGED)
        return Watermarks(marks.loaded, (new,) * len(handed), marks.loaded_seq, marks.loaded_ecq_seq)

    async def mark_incomplete(self, marks: Watermarks) -> None:
        """Mark the queues as incomplete, so that they need a rebuild, unless they were loaded since `marks`."""
        batch = self.batch()
        for key, value in zip(keys.loaded_marks(of_cluster=is_cluster(self.redis)), marks.loaded, strict=True):
            batch.call(_commands.swap(key, value, b""), int)
        await batch.run()

    async def drop_watermark(self, node: int) -> None:
        """Delete the watermark of this recorder, because it hands nothing over."""
        batch = self.batch()
        for key in keys.watermark_keys(node, of_cluster=is_cluster(self.redis)):
            batch.call(("DEL", key), int)
        await batch.run()

    async def require_full_populate(self) -> None:
        """Make the next populate compare the whole lake, because a Redis that rolled back may lack what earlier ones loaded."""
        batch = self.batch()
        for key in (keys.POPULATED, keys.DONE_PRUNED):
            batch.call(("DEL", key), int)
        await batch.run()

    def _keys(self, node: int) -> tuple[list[str], list[str]]:
        of_cluster = is_cluster(self.redis)
        return keys.loaded_marks(of_cluster=of_cluster), keys.watermark_keys(node, of_cluster=of_cluster)


def _or_empty(reply: Any) -> bytes:
    return bytes(reply or b"")
