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
Sent = tuple[QueueName, Verb]
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

    async def sound(self, answers: Iterable[tuple[Owner, Any]]) -> dict[Owner, EnqueueReply]:
        """Return the replies of a tolerant batch by owner, without the owners whose queues have corrupt keys.

        A rebuild gives these owners their entries.
        """
        sound = await self._sound((fanout_queue(owner), owner, reply) for owner, reply in answers)
        return dict(sound)

    async def sound_by_verb(self, answers: Iterable[tuple[Sent, Any]]) -> list[tuple[Sent, Any]]:
        """Return the replies of a tolerant batch with the verbs that were sent, without the queues that have corrupt keys."""
        return await self._sound((sent[0], sent, reply) for sent, reply in answers)

    async def _sound(self, answers: Iterable[tuple[QueueName, T, Any]]) -> list[tuple[T, Any]]:
        """Return the second and third item of each (queue, label, reply) whose reply is not the error of a corrupt key."""
        sound = []
        for queue, label, reply in answers:
            if is_corrupt(reply):
                log.error("corrupt keys in redis; queue skipped", queue=queue, remedy=DELETE_KEYS)
                await self._check(queue)
            else:
                sound.append((label, reply))
        return sound

    async def recheck(self) -> None:
        """Check the tracked queues again and forget those that were repaired."""
        for queue in list(self._descriptions):
            await self._check(queue)

    async def _check(self, queue: QueueName) -> None:
        description = await self._queues.corrupt_key(queue)
        if description is None:
            self._descriptions.pop(queue, None)
        elif queue in self._descriptions or len(self._descriptions) < MAX_REPORTED:
            self._descriptions[queue] = description
