"""Makes the brakes in Redis what the fold says. Recorders put them on at once; only this takes them off."""

from collections.abc import Mapping

import structlog
from redis.exceptions import RedisError

from manifold.campaigns.braking import follows, right_brake
from manifold.campaigns.fold import Campaign
from manifold.contracts.brakes import Brake, Braking
from manifold.queues import Queues

UNSURE = "nothing is released: its brake in Redis is not known, or by an order that is not read yet"

log = structlog.get_logger(__name__)


class FoldedBrakes:
    """The brakes as Redis has them, read once a round."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._known: Mapping[str, Brake] | None = None  # None: unknown

    async def read(self) -> None:
        """Read them. Without Redis they are unknown, and nothing can be sent either."""
        try:
            found = await self._queues.brakes()
        except (RedisError, ValueError):
            self._known = None
        else:
            self._known = found.brakes if found.version else None

    async def follow(self, name: str, campaign: Campaign) -> bool:
        """Make this campaign's brake what the fold says; returns whether it is known to be that."""
        if self._known is None:
            return False
        known = self._known.get(name)
        right = right_brake(campaign, known)
        if right is None or right == known:
            return known is None or follows(campaign, known)
        try:
            if known is None:
                is_set = await self._queues.brake([Braking(name, right)]) == 1
            else:
                is_set = await self._queues.turn_brake(name, known, right)
        except RedisError as exc:
            log.warning("brake not set", campaign=name, reason=str(exc))
            return False
        if is_set:
            log.info("brake set", campaign=name, brake=right.word, seq=right.seq)
        return is_set
