"""Owners under whose keys in Redis somebody has put something else: they are named, and hold up nobody."""

from collections.abc import Iterable
from typing import Any

import structlog

from contracts.names import Owner
from queues import Queues, is_spoilt
from queues.verbs.fills import EnqueueReply

MOST_NAMED = 20

log = structlog.get_logger(__name__)


class Spoilt:
    """Knows whose keys are spoilt, until they are not any more.

    Raises:
        redis.RedisError: from every method that asks Redis.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._what: dict[Owner, str] = {}  # owner → which of its keys, and what it is

    @property
    def problems(self) -> list[str]:
        """Whose keys they are, and the remedy."""
        remedy = "nothing can be queued for it: delete that key, then run `manifold rebuild`"
        return [f"{owner}: {what}, so {remedy}" for owner, what in self._what.items()]

    async def sound(self, answers: Iterable[tuple[Owner, Any]]) -> dict[Owner, EnqueueReply]:
        """The replies of a tolerant batch without those of owners whose keys are spoilt. They get theirs by a rebuild."""
        sound = {}
        for owner, reply in answers:
            if is_spoilt(reply):
                log.error("this vehicle's keys in Redis are spoilt: delete them, then `manifold rebuild`", vin=owner)
                await self._look_at(owner)
            else:
                sound[owner] = reply
        return sound

    async def look_again(self) -> None:
        """Forget those whose keys are as they should be."""
        for owner in list(self._what):
            await self._look_at(owner)

    async def _look_at(self, owner: Owner) -> None:
        what = await self._queues.spoilt_key(owner)
        if what is None:
            self._what.pop(owner, None)
        elif owner in self._what or len(self._what) < MOST_NAMED:
            self._what[owner] = what
