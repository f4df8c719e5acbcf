"""Queues with corrupt keys in Redis: they are reported, and do not delay other queues."""

from collections.abc import Iterable
from typing import Any, TypeVar

import structlog

from manifold.contracts.names import Owner
from manifold.contracts.queue_names import QueueName, fanout_queue
from manifold.queues import DELETE_KEYS, Queues, is_corrupt
from manifold.queues.verbs.fills import EnqueueReply
from manifold.queues.verbs.verb import Verb

MAX_NAMED = 20
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
        self._what: dict[QueueName, str] = {}  # queue → description of the corrupt key

    @property
    def problems(self) -> list[str]:
        """One line per queue, with the corrupt key and the remedy."""
        remedy = "nothing can be queued for it: delete that key, then run `manifold rebuild`"
        return [f"{queue}: {what}, so {remedy}" for queue, what in self._what.items()]

    async def sound(self, answers: Iterable[tuple[Owner, Any]]) -> dict[Owner, EnqueueReply]:
        """The replies of a tolerant batch, except those of owners with corrupt keys, who get their entries by a rebuild."""
        sound = await self._sound((fanout_queue(owner), owner, reply) for owner, reply in answers)
        return dict(sound)

    async def sound_by_verb(self, answers: Iterable[tuple[Sent, Any]]) -> list[tuple[Sent, Any]]:
        """As `sound`, with one reply for each verb, since a queue may have several."""
        return await self._sound((sent[0], sent, reply) for sent, reply in answers)

    async def _sound(self, answers: Iterable[tuple[QueueName, T, Any]]) -> list[tuple[T, Any]]:
        sound = []
        for queue, asked, reply in answers:
            if is_corrupt(reply):
                log.error("corrupt keys in redis; queue skipped", queue=queue, remedy=DELETE_KEYS)
                await self._check(queue)
            else:
                sound.append((asked, reply))
        return sound

    async def recheck(self) -> None:
        """Check the tracked queues again and forget those that were repaired."""
        for queue in list(self._what):
            await self._check(queue)

    async def _check(self, queue: QueueName) -> None:
        what = await self._queues.corrupt_key(queue)
        if what is None:
            self._what.pop(queue, None)
        elif queue in self._what or len(self._what) < MAX_NAMED:
            self._what[queue] = what
