"""Keeps the brakes in Redis equal to the folded state. Recorders set brakes at once; only the campaigner releases them."""

from collections.abc import Mapping

import structlog
from redis.exceptions import RedisError

from manifold.campaigns.braking import may_change, required_brake
from manifold.campaigns.fold import Campaign
from manifold.contracts.brakes import Brake, Braking
from manifold.contracts.seq import unix_ms_of, wall_clock_ms
from manifold.queues import Queues

UNSURE = "nothing is released: its brake in Redis is unknown, or was set by an order that has not been read yet"

log = structlog.get_logger(__name__)


class FoldedBrakes:
    """The brakes that are set in Redis, read once a round."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._brakes: Mapping[str, Brake] | None = None  # None: unknown

    async def read(self) -> None:
        """Read the brakes. If Redis is unavailable or has lost them, they are unknown, and nothing can be sent."""
        try:
            state = await self._queues.brakes()
        except (RedisError, ValueError):  # unavailable, or a value in Redis is no brake
            self._brakes = None
        else:
            are_loaded = bool(state.version)  # the version is empty while Redis lacks the brakes, until they are loaded again
            self._brakes = state.brakes if are_loaded else None

    async def change_as_required(self, name: str, campaign: Campaign) -> bool:
        """Change this campaign's brake as its folded state requires, and return whether the brake is known to be correct."""
        if self._brakes is None:
            return False
        known = self._brakes.get(name)
        required = required_brake(campaign, known)
        oldest_entry_ms = wall_clock_ms() - self._queues.policy.retention_ms
        if known is None and required is not None and unix_ms_of(required.seq) < oldest_entry_ms:
            return True  # recorders remove a brake that is older than every entry, because there is nothing left to stop
        if required == known:  # a brake that was set by an order that is not folded yet stays, but may be wrong
            return known is None or may_change(campaign, known)
        assert required is not None
        try:
            if known is None:
                is_changed = await self._queues.brake([Braking(name, required)]) == 1
            else:
                is_changed = await self._queues.turn_brake(name, known, required)
        except RedisError as exc:
            log.warning(
                "campaign brake not changed in redis", campaign=name, brake=required.word, seq=required.seq, reason=str(exc)
            )
            return False
        if is_changed:
            log.info("campaign brake changed in redis", campaign=name, brake=required.word, seq=required.seq)
        return is_changed
