"""Shared base of the loaders of both queue types: verbs of many queues in one exchange, over blocking Redis."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from manifold.queues._drivers import BlockingBatch
from manifold.queues._policy import Policy
from manifold.queues.verbs.verb import Verb


@dataclass(slots=True)
class LoadResult:
    """The result of offering entries to queues. Results can be added up."""

    owners: int = 0  # number of owners to whom entries were offered
    offered: int = 0  # number of offered entries
    queued: int = 0  # number of entries that are new in the queues
    superseded: list[tuple[str, int]] = field(default_factory=list)  # owner and seq of each superseded entry
    spoilt: list[str] = field(default_factory=list)  # owners that were skipped because of a corrupt key

    def __add__(self, other: "LoadResult") -> "LoadResult":
        """Add up each number, and concatenate each list."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in self.__slots__}
        return LoadResult(**sums)


class BulkQueues:
    """A blocking Redis client and a policy. `redis` must not decode responses."""

    def __init__(self, redis: Redis, policy: Policy) -> None:
        self._redis, self._policy = redis, policy

    def _batch(self) -> BlockingBatch:
        return BlockingBatch(self._redis, self._policy)

    def _run(self, verbs: Iterable[tuple[str, Verb]], now_ms: int, *, tolerant: bool = False) -> list[Any]:
        """Run each (queue name, verb) and return the replies in order."""
        batch = self._batch()
        for queue, verb in verbs:
            batch.add(queue, verb, now_ms)
        return batch.run(tolerant=tolerant)

    def _wake(self, queues: Iterable[str]) -> None:
        """Notify the dispatchers that these queues have something to claim."""
        batch = self._batch()
        batch.wake(queues)
        if batch:
            batch.run()
