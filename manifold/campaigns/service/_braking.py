"""Keeps the brakes in Redis equal to the folded state. Recorders put brakes on at once; only the campaigner takes them off."""

from collections.abc import Mapping

import structlog
from redis.exceptions import RedisError

from manifold.campaigns.braking import follows, right_brake
from manifold.campaigns.fold import Campaign
from manifold.contracts.brakes import Brake, Braking
from manifold.contracts.seq import unix_ms_of, wall_clock_ms
from manifold.queues import Queues

UNSURE = "nothing is released: its brake in Redis is unknown, or was set by an order that has not been read yet"

log = structlog.get_logger(__name__)


class FoldedBrakes:
    """The brakes as Redis has them, read once a round."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._brakes: Mapping[str, Brake] | None = None  # None: unknown

    async def read(self) -> None:
        """Read the brakes. Without Redis they are unknown, and nothing can be sent either."""
        try:
            found = await self._queues.brakes()
        except (RedisError, ValueError):
            self._brakes = None
        else:
            self._brakes = found.brakes if found.version else None

    async def follow(self, name: str, campaign: Campaign) -> bool:
        """Set this campaign's brake as its folded state requires; return whether it is known to be set that way."""
        if self._brakes is None:
            return False
        known = self._brakes.get(name)
        right = right_brake(campaign, known)
        if known is None and right is not None and unix_ms_of(right.seq) < wall_clock_ms() - self._queues.policy.retention_ms:
            return True  # recorders forget such a brake: no entry is that old
        if right is None or right == known:
            return known is None or follows(campaign, known)
        try:
            if known is None:
                is_set = await self._queues.brake([Braking(name, right)]) == 1
            else:
                is_set = await self._queues.turn_brake(name, known, right)
        except RedisError as exc:
            log.warning("campaign brake not set in redis", campaign=name, reason=str(exc))
            return False
        if is_set:
            log.info("campaign brake set in redis", campaign=name, brake=right.word, seq=right.seq)
        return is_set
