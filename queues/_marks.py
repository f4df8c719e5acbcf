"""What the queues say of themselves: whether they are loaded, and up to which seq of a recorder everything is in them."""

from dataclasses import dataclass
from typing import Any

from contracts import keys
from contracts.errors import Retryable
from queues import _commands
from queues._cluster import is_cluster
from queues._streams import Streams

NOT_LOADED = "the queues are not loaded: run `manifold rebuild`"
CHANGED = "the queues are not what they were a second ago: they went back to an older state, or were loaded anew"


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one recorder, as Redis has them. A cluster has one in each part of its slots, one Redis one alone."""

    loaded: tuple[bytes, ...]  # when the queues were loaded; empty: not there
    handed: tuple[bytes, ...]  # `<loading> <seq>`; empty: not there
    taken: int | None  # seq up to which the last rebuild had this recorder's triggers from the lake
    taken_ecq: int | None = None  # the same of its stream ecq: the lake may know less of one than of the other

    @property
    def loading(self) -> bytes | None:
        """Names the last time that the queues were loaded; None: they do not hold everything pending."""
        return self.loaded[0] if all(self.loaded) else None

    @property
    def joined(self) -> int | None:
        """Up to which seq all is here that this recorder has handed over; None: nothing since the queues were loaded."""
        parts = [mark.split(b" ") for mark in self.handed]
        if any(len(part) != 2 or part[0] != self.loading for part in parts):
            return None
        return min(int(seq) for _, seq in parts)

    @property
    def upto(self) -> int | None:
        """Up to which seq all is here that this recorder has recorded; None: nobody knows of anything."""
        return self.taken if self.joined is None else self.joined

    @property
    def upto_ecq(self) -> int | None:
        """The same of what compacted queues have to hear of."""
        return self.taken_ecq if self.joined is None else self.joined

    @property
    def is_rebuilt(self) -> bool:
        """Whether all that this recorder handed over came from the lake, and nothing since."""
        return self.joined is None and not (self.taken is None and self.taken_ecq is None)


class MarkedQueues(Streams):
    """Reads and moves marks. What is said to be in the queues was written before, so that whoever loses one loses the other.

    Raises:
        redis.RedisError: from every method, where Redis is away or refuses.
    """

    async def marks(self, node: int) -> Marks:
        """What the queues say of themselves and of the recorder `node`."""
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
        """Everything of this recorder up to `seq` is in the queues now; the marks as they are then.

        Raises:
            Retryable: the queues are not as `marks` says.
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
        """The queues do not hold everything pending: a rebuild is needed. Unless they have been loaded since."""
        batch = self.batch()
        for key, value in zip(keys.loaded_marks(of_cluster=is_cluster(self.redis)), marks.loaded, strict=True):
            batch.call(_commands.swap(key, value, b""), int)
        await batch.run()

    async def drop_handed(self, node: int) -> None:
        """This recorder hands nothing over, and so offers nothing again."""
        batch = self.batch()
        for key in keys.handed_marks(node, of_cluster=is_cluster(self.redis)):
            batch.call(("DEL", key), int)
        await batch.run()

    async def forget_populated(self) -> None:
        """What populate has looked at may be forgotten by a node that went back: the next one looks at all again."""
        batch = self.batch()
        for key in (keys.POPULATED, keys.DONE_PRUNED):
            batch.call(("DEL", key), int)
        await batch.run()

    def _keys(self, node: int) -> tuple[list[str], list[str]]:
        of_cluster = is_cluster(self.redis)
        return keys.loaded_marks(of_cluster=of_cluster), keys.handed_marks(node, of_cluster=of_cluster)


def _or_empty(reply: Any) -> bytes:
    return bytes(reply or b"")
