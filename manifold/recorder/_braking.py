"""Hands brakes of campaigns over to the queues: at once, whether or not anything else is handed over.

Brakes may arrive in any order: of two, the one with the greater seq counts (`brake.lua`). So brakes that were recorded while
Redis was away, or that Redis has lost, are simply handed over again.
"""

import asyncio
from collections.abc import Sequence
from time import monotonic

import pyarrow as pa
import structlog
from redis.exceptions import RedisError

from manifold.archive.brakes import brakings_of
from manifold.contracts.brakes import Braking
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import EPOCH_MS, seq_of, wall_clock_ms
from manifold.queues import Queues
from manifold.recorder._parser import Incoming
from manifold.recorder._redis import run_id, why
from manifold.recorder._replay import ReplaySource

AWAY = "recorded, but not in force yet: the queues are away ({}); it comes into force as soon as they are back"
LATE = "recorded, but not in force yet: a later order is in force, by the clock of another recorder; pause it again"
FORGET_S = 3600  # between two removals of brakes that are older than any entry
FORGET_LATER_MS = 86_400_000  # a brake is kept so much longer than an entry: a release may be recorded just after it
ARCHIVE_AGAIN_S = 5.0  # pause between two attempts to read an archive that was unreadable
AGAIN_S = 0.05  # pause between two attempts to hand over what Redis missed: dispatchers go on as soon as it is back

log = structlog.get_logger(__name__)


class Brakes:
    """The brakes that this recorder hands over. `queues` must not be guarded: brakes fit any Redis.

    Orders older than the retention of entries are not handed over again: there is no entry that they could stop.
    """

    def __init__(self, queues: Queues, recorded: ReplaySource) -> None:
        self._queues, self._recorded = queues, recorded
        # Each names a Redis by its run id and the time since which it has had brakes.
        self._complete_in: tuple[str, bytes] | None = None  # the Redis that has all brakes
        self._incomplete_in: tuple[str, bytes] | None = None  # the Redis that lacks those of the archive, which was unreadable
        self._is_incomplete = asyncio.Event()
        self._missed: list[Braking] = []  # recorded while Redis was away
        self._has_missed = asyncio.Event()
        self._forget_at = 0.0  # monotonic seconds

    async def run(self) -> None:
        """Hand over what Redis missed once it is back, and the archive's brakes once it is readable; runs forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hand_over_missed(), name="recorder.brakes.missed")
            group.create_task(self._hand_over_archived(), name="recorder.brakes.archived")

    async def _hand_over_missed(self) -> None:
        while True:
            await self._has_missed.wait()
            await asyncio.sleep(AGAIN_S)
            missed = list(self._missed)
            try:
                await self._queues.brake(missed)
            except RedisError:
                continue
            del self._missed[: len(missed)]
            if not self._missed:
                self._has_missed.clear()
            log.info("campaign brakes that redis missed are handed over", orders=len(missed))

    async def _hand_over_archived(self) -> None:
        """Hand over the archive's brakes once it is readable. A task of its own, because reading may take minutes to fail."""
        while True:
            await self._is_incomplete.wait()
            await asyncio.sleep(ARCHIVE_AGAIN_S)
            incomplete_in = self._incomplete_in
            try:
                brakings = await asyncio.to_thread(self._recorded_brakes)
                await self._queues.brake(brakings)
            except (RedisError, OSError, pa.ArrowException):
                continue
            if self._incomplete_in is incomplete_in:  # otherwise another Redis, which lacks them, has taken its place
                self._complete_in, self._incomplete_in = incomplete_in, None
                self._is_incomplete.clear()
            log.info("archive readable again; its campaign brakes are handed over to redis", orders=len(brakings))

    async def hand_over(self, group: Sequence[Incoming]) -> None:
        """Hand the brakes of this group over to Redis, and note on each order whether it is in force."""
        ordered = [incoming for incoming in group if incoming.braking is not None and incoming.offerable]
        if not ordered:
            return
        brakings = [incoming.braking for incoming in ordered if incoming.braking is not None]
        try:
            all_are_on = await self._queues.brake(brakings) == len(brakings)
            known = {} if all_are_on else (await self._queues.brakes()).brakes
        except (RedisError, ValueError) as exc:
            self._complete_in = self._incomplete_in = None
            self._missed += brakings
            self._has_missed.set()
            log.warning("campaign brakes recorded, but not handed over to redis", orders=len(brakings), reason=why(exc))
            for incoming in ordered:
                incoming.not_in_force = AWAY.format(why(exc))
            return
        for incoming, braking in zip(ordered, brakings, strict=True):
            incoming.applied = True
            if not all_are_on and not known.get(braking.campaign, braking.brake).is_on:
                incoming.not_in_force = LATE

    async def recheck(self) -> None:
        """Hand all brakes over again if Redis may lack some: it is another process, was emptied, or missed an order.

        If the archive is unreadable, only the journal's brakes are handed over here, and `run` does the rest.

        Raises:
            redis.RedisError, OSError, pyarrow.ArrowException: it failed; call it again.
        """
        found, since = await run_id(self._queues.redis), await self._queues.brakes_since()
        if since and monotonic() >= self._forget_at:
            self._forget_at = monotonic() + FORGET_S
            try:
                await self._queues.forget_brakes(self._seq_ago(FORGET_LATER_MS))
            except ValueError as exc:
                log.warning("brakes not readable: nothing of a campaign is sent", reason=str(exc))
        if since and (found, since) in (self._complete_in, self._incomplete_in):
            return
        try:
            brakings = await asyncio.to_thread(self._recorded_brakes)
        except (OSError, pa.ArrowException) as exc:
            if not since:
                raise
            log.warning("archive unreadable; its campaign brakes are handed over as soon as it is readable", reason=str(exc))
            await self._queues.brake(await asyncio.to_thread(self._journaled_brakes))
            self._incomplete_in = found, since
            self._is_incomplete.set()
            return
        await self._queues.load_brakes(brakings)
        # `since` is empty if Redis had no brakes. It has changed now, so the next call hands them over once more: another
        # recorder may have been first.
        self._complete_in, self._incomplete_in = (found, since), None
        self._is_incomplete.clear()
        if brakings:
            log.info("campaign brakes handed over to redis again", orders=len(brakings))

    def _recorded_brakes(self) -> list[Braking]:
        return list(brakings_of(self._recorded.campaigns(self._seq_ago())))

    def _seq_ago(self, more_ms: int = 0) -> int:
        """The oldest seq at which an entry is kept, or one that is `more_ms` older."""
        return seq_of(max(EPOCH_MS, wall_clock_ms() - self._queues.policy.retention_ms - more_ms), 0, 0)

    def _journaled_brakes(self) -> list[Braking]:
        return list(brakings_of(self._recorded.journaled(Stream.CAMPAIGN)))
