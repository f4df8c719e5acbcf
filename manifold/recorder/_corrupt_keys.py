"""Queues with corrupt keys in Redis: they are reported, and do not delay other queues."""

from collections.abc import Iterable
from typing import Any, TypeVar

import structlog

from manifold.contracts.names import Owner
from manifold.contracts.queue_names import QueueName, fanout_queue
from manifold.queues import DELETE_KEYS, Queues, is_corrupt
from manifold.queues.verbs.fills import EnqueueReply
from manifold.queues.verbs.verb import Verb

MAX_REPORTED = 20  # corrupt queues that are reported at a time
QueueVerb = tuple[QueueName, Verb]  # a verb, with the queue to which it is sent
T = TypeVar("T")

log = structlog.get_logger(__name__)


class CorruptQueues:
    """Tracks the queues with corrupt keys until the keys are repaired.

    Raises:
        redis.RedisError: from every method that reads Redis.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._descriptions: dict[QueueName, str] = {}  # queue → description of its corrupt key

    @property
    def problems(self) -> list[str]:
        """One line per queue, with the corrupt key and the remedy."""
        remedy = "nothing can be queued for it: delete that key, then run `manifold rebuild`"
        return [f"{queue}: {description}, so {remedy}" for queue, description in self._descriptions.items()]

    async def intact_replies(self, replies: Iterable[tuple[Owner, Any]]) -> dict[Owner, EnqueueReply]:
        """Return the replies of a tolerant batch by owner, without the owners whose queues have corrupt keys.

        In such a batch, an error takes the place of a reply. The owners left out get their entries from a later rebuild.
        """
        intact = await self._without_corrupt((fanout_queue(owner), owner, reply) for owner, reply in replies)
        return dict(intact)

    async def intact_replies_by_verb(self, replies: Iterable[tuple[QueueVerb, Any]]) -> list[tuple[QueueVerb, Any]]:
        """Return the replies of a tolerant batch with the verbs that were sent, without the queues that have corrupt keys."""
        return await self._without_corrupt((queue, (queue, verb), reply) for (queue, verb), reply in replies)

    async def _without_corrupt(self, replies: Iterable[tuple[QueueName, T, Any]]) -> list[tuple[T, Any]]:
        """Return (label, reply) of each (queue, label, reply). Queues with corrupt keys are logged and tracked instead.

        A label is what the caller wants back with the reply: the owner, or the queue and the verb.
        """
        intact = []
        for queue, label, reply in replies:
            if is_corrupt(reply):
                log.error("corrupt keys in redis; queue skipped", queue=queue, remedy=DELETE_KEYS)
                await self._check(queue)
            else:
                intact.append((label, reply))
        return intact

    async def recheck(self) -> None:
        """Check the tracked queues again and forget those that were repaired."""
        for queue in list(self._descriptions):
            await self._check(queue)

    async def _check(self, queue: QueueName) -> None:
        """Track the queue if it has a key of a wrong type; forget it if not. Only `MAX_REPORTED` queues are tracked at a time."""
        description = await self._queues.corrupt_key(queue)
        if description is None:
            self._descriptions.pop(queue, None)
        elif queue in self._descriptions or len(self._descriptions) < MAX_REPORTED:
            self._descriptions[queue] = description
