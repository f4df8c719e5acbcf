"""Hands the brakes of campaigns over to the queues as soon as they are recorded, even while the direct enqueue is suspended.

Brakes may arrive in any order: of two brakes of one campaign, the one with the greater seq counts (`brake.lua`). So brakes that
were recorded while Redis was unavailable, or that Redis has lost, are simply handed over again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic

import pyarrow as pa
import structlog
from redis.exceptions import RedisError

from manifold.archive.brakes import brakings_of
from manifold.contracts.brakes import Brake, Braking
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import EPOCH_MS, seq_of, wall_clock_ms
from manifold.queues import Queues
from manifold.recorder._parser import Incoming
from manifold.recorder._redis import run_id, why
from manifold.recorder._replay import ReplaySource

# Why an order has no effect yet, for its receipt.
QUEUES_UNAVAILABLE = "recorded, but not in force yet: the queues are away ({}); it comes into force as soon as they are back"
LATER_ORDER_IN_FORCE = (
    "recorded, but not in force yet: a later order is in force, by the clock of another recorder; pause it again"
)
MAX_LOGGED_CAMPAIGNS = 20
FORGET_INTERVAL_S = 3600  # seconds between two removals of brakes that are older than any entry
# How much longer a brake is kept than an entry, because a release of its campaign may be recorded just after the brake.
EXTRA_RETENTION_MS = 86_400_000
ARCHIVE_RETRY_S = 5.0  # pause between two attempts to read an archive that was unreadable
# Pause between two attempts to hand over missed brakes. It is short because dispatchers resume as soon as Redis is available.
RETRY_S = 0.05

log = structlog.get_logger(__name__)


class Brakes:
    """The brakes that this recorder hands over. `queues` needs a plain client (`open_plain`): brakes may go to any Redis.

    Orders that are older than the retention of entries are not handed over again, because no entry is left for them to stop.
    """

    def __init__(self, queues: Queues, recorded: ReplaySource) -> None:
        self._queues, self._recorded = queues, recorded
        # A Redis is identified by its run id and the time at which brakes were first loaded into it.
        self._complete_redis: tuple[str, bytes] | None = None  # the Redis that has all brakes
        self._incomplete_redis: tuple[str, bytes] | None = None  # the Redis that lacks brakes because the archive was unreadable
        self._is_incomplete = asyncio.Event()
        self._missed: list[Braking] = []  # brakes recorded while Redis was unavailable
        self._has_missed = asyncio.Event()
        self._forget_at = 0.0  # when to remove old brakes next, in monotonic seconds

    async def run(self) -> None:
        """Hand over missed brakes once Redis is available, and the archive's brakes once the archive is readable.

        Never returns.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hand_over_missed(), name="recorder.brakes.missed")
            group.create_task(self._hand_over_archived(), name="recorder.brakes.archived")

    async def _hand_over_missed(self) -> None:
        """Hand over missed brakes as soon as Redis is available."""
        while True:
            await self._has_missed.wait()
            await asyncio.sleep(RETRY_S)
            missed = list(self._missed)
            try:
                await self._queues.brake(missed)
            except RedisError:
                continue  # the event is still set: try again
            # Keep what `hand_over` has added in the meantime.
            del self._missed[: len(missed)]
            if not self._missed:
                self._has_missed.clear()
            log.info("campaign brakes that redis missed are handed over", orders=len(missed), campaigns=_campaigns(missed))

    async def _hand_over_archived(self) -> None:
        """Hand over the archive's brakes once the archive is readable, in a task of its own: reading may take minutes to fail."""
        while True:
            await self._is_incomplete.wait()
            await asyncio.sleep(ARCHIVE_RETRY_S)
            redis_before = self._incomplete_redis
            try:
                brakings = await asyncio.to_thread(self._recorded_brakes)
                await self._queues.brake(brakings)
            except (RedisError, OSError, pa.ArrowException):
                continue  # the event is still set: try again
            if self._incomplete_redis is redis_before:  # otherwise another Redis is in use by now and lacks these brakes
                self._complete_redis, self._incomplete_redis = redis_before, None
                self._is_incomplete.clear()
            log.info("archive readable again; its campaign brakes are handed over to redis", brakes=len(brakings))

    async def hand_over(self, group: Sequence[Incoming]) -> None:
        """Hand the brakes of this group over to Redis, and set `not_in_force` on each order that has no effect yet."""
        orders = [incoming for incoming in group if incoming.braking is not None and incoming.offerable]
        if not orders:
            return
        brakings = [incoming.braking for incoming in orders if incoming.braking is not None]
        try:
            changed_count = await self._queues.brake(brakings)
            brakes_in_redis: Mapping[str, Brake] = {}
            if changed_count != len(brakings):  # Redis has the same order or a later one already, which may be a resumption
                brakes_in_redis = (await self._queues.brakes()).brakes
        except (RedisError, ValueError) as exc:  # ValueError: the brakes in Redis are unreadable
            self._complete_redis = self._incomplete_redis = None  # so that `recheck` hands all brakes over again
            self._missed += brakings
            self._has_missed.set()
            reason = why(exc)
            about = {"orders": len(brakings), "campaigns": _campaigns(brakings), "reason": reason}
            log.warning("campaign brakes recorded, but not handed over to redis", **about)
            for incoming in orders:
                incoming.not_in_force = QUEUES_UNAVAILABLE.format(reason)
            return
        for incoming, braking in zip(orders, brakings, strict=True):
            incoming.applied = True
            brake = brakes_in_redis.get(braking.campaign)
            if brake is not None and not brake.is_on:  # otherwise the campaign is stopped, by this order or a later one
                incoming.not_in_force = LATER_ORDER_IN_FORCE

    async def recheck(self) -> None:
        """Hand all brakes over again if Redis may lack some: it has restarted or failed over, was emptied, or missed an order.

        If the archive is unreadable, this method hands over only the journal's brakes, and `run` hands over the archive's brakes
        later.

        Raises:
            redis.RedisError, OSError, pyarrow.ArrowException: it failed; call it again.
        """
        redis_run_id = await run_id(self._queues.redis)
        loaded_since = await self._queues.brakes_since()  # empty if brakes were never loaded into this Redis
        if loaded_since:
            await self._forget_old_brakes_if_due()
        current_redis = redis_run_id, loaded_since
        if loaded_since and current_redis in (self._complete_redis, self._incomplete_redis):
            return  # it has all brakes, or `run` will add those of the archive
        try:
            brakings = await asyncio.to_thread(self._recorded_brakes)
        except (OSError, pa.ArrowException) as exc:
            if not loaded_since:  # no entry of a campaign is sent before all brakes are loaded, so waiting is safe
                raise
            log.warning("archive unreadable; its campaign brakes are handed over as soon as it is readable", reason=str(exc))
            await self._queues.brake(await asyncio.to_thread(self._journaled_brakes))
            self._incomplete_redis = current_redis
            self._is_incomplete.set()
            return
        await self._queues.load_brakes(brakings)
        # If Redis had no brakes, `loaded_since` is empty in `current_redis` but set in Redis now. So the next call hands all
        # brakes over once more, which is intended: another recorder may have loaded its brakes first.
        self._complete_redis, self._incomplete_redis = current_redis, None
        self._is_incomplete.clear()
        if brakings:
            log.info("campaign brakes handed over to redis again", brakes=len(brakings))

    async def _forget_old_brakes_if_due(self) -> None:
        """Every `FORGET_INTERVAL_S`, remove from Redis the brakes that are older than any entry: they stop nothing."""
        if monotonic() < self._forget_at:
            return
        self._forget_at = monotonic() + FORGET_INTERVAL_S
        try:
            await self._queues.forget_brakes(self._oldest_seq(EXTRA_RETENTION_MS))
        except ValueError as exc:
            log.warning("campaign brakes in redis unreadable; no entry of a campaign is sent", reason=str(exc))

    def _recorded_brakes(self) -> list[Braking]:
        """The brakes of the archive and of the journal, within the retention of entries."""
        return list(brakings_of(self._recorded.campaigns(self._oldest_seq())))

    def _oldest_seq(self, extra_ms: int = 0) -> int:
        """The smallest seq within the retention of entries, extended by `extra_ms`."""
        oldest_ms = wall_clock_ms() - self._queues.policy.retention_ms - extra_ms
        return seq_of(max(EPOCH_MS, oldest_ms), 0, 0)

    def _journaled_brakes(self) -> list[Braking]:
        return list(brakings_of(self._recorded.journaled(Stream.CAMPAIGN)))


def _campaigns(brakings: Sequence[Braking]) -> list[str]:
    """The names of the braked campaigns, for the log; not more than `MAX_LOGGED_CAMPAIGNS`."""
    return sorted({braking.campaign for braking in brakings})[:MAX_LOGGED_CAMPAIGNS]
