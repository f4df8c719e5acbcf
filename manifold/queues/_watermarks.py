"""The marks in Redis that say whether the queues are loaded, and up to which seq of a recorder they hold everything."""

from dataclasses import dataclass
from typing import Any

from manifold.contracts import keys
from manifold.contracts.errors import Retryable
from manifold.queues import _commands
from manifold.queues._cluster import is_cluster
from manifold.queues._streams import Streams

NOT_LOADED = "the queues are not loaded: run `manifold rebuild`"
CHANGED = "the queues are not what they were a second ago: they went back to an older state, or were loaded anew"


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one recorder, as Redis has them: one of each kind, or in a cluster one in each part of the slots."""

    loaded: tuple[bytes, ...]  # when the queues were loaded; empty: not there
    handed: tuple[bytes, ...]  # `<loading> <seq>`; empty: not there
    taken: int | None  # seq up to which the last rebuild had this recorder's triggers from the lake
    taken_ecq: int | None = None  # the same of its stream ecq: the lake may know less of one than of the other

    @property
    def loading(self) -> bytes | None:
        """The name of the last loading of the queues; None if they do not hold everything pending."""
        return self.loaded[0] if all(self.loaded) else None

    @property
    def joined(self) -> int | None:
        """The seq up to which this recorder has handed everything over; None if nothing since the queues were loaded."""
        parts = [mark.split(b" ") for mark in self.handed]
        if any(len(part) != 2 or part[0] != self.loading for part in parts):
            return None
        return min(int(seq) for _, seq in parts)

    @property
    def upto(self) -> int | None:
        """The seq up to which the queues hold everything that this recorder has recorded; None if that is not known."""
        return self.taken if self.joined is None else self.joined

    @property
    def upto_ecq(self) -> int | None:
        """As `upto`, for compacted queues."""
        return self.taken_ecq if self.joined is None else self.joined

    @property
    def is_rebuilt(self) -> bool:
        """Whether the queues were filled from the lake, and this recorder has handed nothing over since."""
        return self.joined is None and not (self.taken is None and self.taken_ecq is None)


class MarkedQueues(Streams):
    """Reads and moves marks. A mark is written after what it speaks of, so a Redis that loses writes loses the mark first.

    Raises:
        redis.RedisError: from every method, where Redis is away or refuses.
    """

    async def marks(self, node: int) -> Marks:
        """The marks of the recorder `node`."""
        loaded, handed = self._keys(node)
        batch = self.batch()
        for key in (*loaded, *handed):
            batch.call(("GET", key), _or_empty)
        for field in (keys.taken_field(node), keys.taken_field(node, of_ecq=True)):
            batch.call(("HGET", keys.TAKEN, field), _or_empty)
        *found, taken, taken_ecq = await batch.run()
        of_lake = (int(seq) if seq else None for seq in (taken, taken_ecq))
        return Marks(tuple(found[: len(loaded)]), tuple(found[len(loaded) :]), *of_lake)

    async def move_handed(self, node: int, marks: Marks, seq: int) -> Marks:
        """Note that the queues hold everything of this recorder up to `seq`; returns the new marks.

        Raises:
            Retryable: the marks in Redis are not `marks` any more.
        """
        loaded, handed = self._keys(node)
        new = b"%s %d" % (marks.loading, seq)
        batch = self.batch()
        for key in loaded:
            batch.call(("GET", key), _or_empty)
        for key, before in zip(handed, marks.handed, strict=True):
            batch.call(_commands.swap(key, before, new), int)
        found = await batch.run()
        if tuple(found[: len(loaded)]) != marks.loaded or not all(found[len(loaded) :]):
            raise Retryable(CHANGED)
        return Marks(marks.loaded, (new,) * len(handed), marks.taken, marks.taken_ecq)

    async def unload(self, marks: Marks) -> None:
        """Note that the queues do not hold everything pending and need a rebuild, unless they were loaded since `marks`."""
        batch = self.batch()
        for key, value in zip(keys.loaded_marks(of_cluster=is_cluster(self.redis)), marks.loaded, strict=True):
            batch.call(_commands.swap(key, value, b""), int)
        await batch.run()

    async def drop_handed(self, node: int) -> None:
        """Note that this recorder hands nothing over, and so will not offer anything again."""
        batch = self.batch()
        for key in keys.handed_marks(node, of_cluster=is_cluster(self.redis)):
            batch.call(("DEL", key), int)
        await batch.run()

    async def forget_populated(self) -> None:
        """Have the next populate compare the whole lake: a node that went back may have lost what earlier ones brought."""
        batch = self.batch()
        for key in (keys.POPULATED, keys.DONE_PRUNED):
            batch.call(("DEL", key), int)
        await batch.run()

    def _keys(self, node: int) -> tuple[list[str], list[str]]:
        of_cluster = is_cluster(self.redis)
        return keys.loaded_marks(of_cluster=of_cluster), keys.handed_marks(node, of_cluster=of_cluster)


def _or_empty(reply: Any) -> bytes:
    return bytes(reply or b"")
