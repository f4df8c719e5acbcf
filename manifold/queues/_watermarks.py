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


def why_not_loaded(current_load: bytes | str | None) -> str:
    """Say why a recorder cannot add entries to the load that it knows.

    `current_load` identifies the load that Redis has now; None if it has none.
    """
    return LOADED_AGAIN if current_load else NOT_LOADED


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The watermarks of one recorder as stored in Redis.

    `loaded` and `enqueued_marks` have one item; in a cluster, one for each part of the slots. A missing key is an empty item.
    """

    loaded: tuple[bytes, ...]  # when the queues were loaded
    enqueued_marks: tuple[bytes, ...]  # `<load_id> <seq>`
    loaded_seq: int | None  # seq up to which the last rebuild loaded this recorder's triggers from the lake
    loaded_ecq_seq: int | None = None  # the same for this recorder's stream `ecq`; may be less or greater than `loaded_seq`

    @property
    def load_id(self) -> bytes | None:
        """Identifies the last load of the queues; None if they do not hold everything that is pending."""
        return self.loaded[0] if all(self.loaded) else None

    @property
    def enqueued_seq(self) -> int | None:
        """The seq up to which this recorder has enqueued everything; None if it has enqueued nothing since the last load."""
        seqs: list[int] = []
        for mark in self.enqueued_marks:
            parts = mark.split(b" ")
            if len(parts) != 2 or parts[0] != self.load_id:  # the mark is missing, or of an earlier load
                return None
            seqs.append(int(parts[1]))
        return min(seqs)

    @property
    def complete_seq(self) -> int | None:
        """The seq up to which the queues hold everything that this recorder has recorded; None if unknown.

        Until the recorder enqueues something after a load, that is what was loaded.
        """
        return self.loaded_seq if self.enqueued_seq is None else self.enqueued_seq

    @property
    def complete_ecq_seq(self) -> int | None:
        """As `complete_seq`, for the compacted queues."""
        return self.loaded_ecq_seq if self.enqueued_seq is None else self.enqueued_seq

    @property
    def is_rebuilt(self) -> bool:
        """Whether the queues were loaded from the lake, and this recorder has enqueued nothing since."""
        has_loaded = self.loaded_seq is not None or self.loaded_ecq_seq is not None
        return has_loaded and self.enqueued_seq is None


class WatermarkedQueues(Streams):
    """Reads and moves watermarks. A Redis that loses entries also loses the watermark, which is written after them.

    Raises:
        redis.RedisError: from every method, if Redis is unavailable or rejects a command.
    """

    async def marks(self, node: int) -> Watermarks:
        """Read the watermarks of the recorder `node`."""
        loaded_keys, enqueued_keys = self._keys(node)
        batch = self.batch()
        for key in (*loaded_keys, *enqueued_keys):
            batch.call(("GET", key), _or_empty)
        for field in (keys.rebuilt_field(node), keys.rebuilt_field(node, of_ecq=True)):
            batch.call(("HGET", keys.REBUILT_UP_TO, field), _or_empty)
        *marks, raw_seq, raw_ecq_seq = await batch.run()
        loaded = tuple(marks[: len(loaded_keys)])
        enqueued_marks = tuple(marks[len(loaded_keys) :])
        loaded_seq = int(raw_seq) if raw_seq else None
        loaded_ecq_seq = int(raw_ecq_seq) if raw_ecq_seq else None
        return Watermarks(loaded, enqueued_marks, loaded_seq, loaded_ecq_seq)

    async def advance_watermark(self, node: int, marks: Watermarks, seq: int) -> Watermarks:
        """Advance this recorder's watermark, because the queues hold everything up to `seq`. Returns the new watermarks.

        Raises:
            Retryable: the watermarks in Redis are no longer `marks`.
        """
        loaded_keys, enqueued_keys = self._keys(node)
        new_mark = b"%s %d" % (marks.load_id, seq)
        batch = self.batch()
        for key in loaded_keys:
            batch.call(("GET", key), _or_empty)
        for key, old_mark in zip(enqueued_keys, marks.enqueued_marks, strict=True):
            batch.call(_commands.swap(key, old_mark, new_mark), int)
        replies = await batch.run()
        loaded, were_swapped = tuple(replies[: len(loaded_keys)]), replies[len(loaded_keys) :]
        if loaded != marks.loaded or not all(were_swapped):
            raise Retryable(CHANGED)
        return Watermarks(marks.loaded, (new_mark,) * len(enqueued_keys), marks.loaded_seq, marks.loaded_ecq_seq)

    async def mark_incomplete(self, marks: Watermarks) -> None:
        """Mark the queues as incomplete, so that they need a rebuild, unless they were loaded again since `marks` were read."""
        batch = self.batch()
        loaded_keys = keys.loaded_marks(of_cluster=is_cluster(self.redis))
        for key, old_mark in zip(loaded_keys, marks.loaded, strict=True):
            batch.call(_commands.swap(key, old_mark, b""), int)
        await batch.run()

    async def drop_watermark(self, node: int) -> None:
        """Delete the watermark of this recorder, because it enqueues nothing."""
        batch = self.batch()
        for key in keys.watermark_keys(node, of_cluster=is_cluster(self.redis)):
            batch.call(("DEL", key), int)
        await batch.run()

    async def require_full_populate(self) -> None:
        """Make the next populate compare the queues with the whole lake.

        This is necessary after Redis rolled back, because it may lack entries that earlier populates loaded.
        """
        batch = self.batch()
        for key in (keys.POPULATED, keys.DONE_PRUNED):  # the snapshots of the lake up to which it was compared before
            batch.call(("DEL", key), int)
        await batch.run()

    def _keys(self, node: int) -> tuple[list[str], list[str]]:
        """The keys of `Watermarks.loaded`, and those of `Watermarks.enqueued_marks`."""
        of_cluster = is_cluster(self.redis)
        return keys.loaded_marks(of_cluster=of_cluster), keys.watermark_keys(node, of_cluster=of_cluster)


def _or_empty(reply: Any) -> bytes:
    return bytes(reply or b"")
