"""The brakes in Redis, which the campaigner makes what the fold says."""

from collections.abc import Mapping

import structlog
from redis.exceptions import RedisError

from manifold.campaigns.braking import right_brake
from manifold.campaigns.fold import Campaign
from manifold.contracts.brakes import Brake, Braking
from manifold.queues import Queues

log = structlog.get_logger(__name__)


class Brakes:
    """The brakes as Redis had them when they were last read."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._known: Mapping[str, Brake] | None = None  # None: unknown

    async def read(self) -> None:
        """Read the brakes; they stay unknown while Redis is away, or has not loaded them."""
        try:
            found = await self._queues.brakes()
        except (RedisError, ValueError):  # then nothing can be sent either
            self._known = None
        else:
            self._known = found.brakes if found.version else None

    async def set(self, name: str, campaign: Campaign) -> bool:
        """Make the brake in Redis what the fold says; returns whether it is known to be that."""
        if self._known is None:
            return False
        known = self._known.get(name)
        right = right_brake(campaign, known)
        if right == known:
            return known is None or known.seq in campaign.orders
        assert right is not None
        try:
            if known is None:
                return await self._queues.brake([Braking(name, right)]) == 1
            return await self._queues.turn_brake(name, known, right)
        except RedisError as exc:
            log.warning("brake not set", campaign=name, reason=str(exc))
            return False
