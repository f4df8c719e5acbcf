"""This dispatcher's copy of the campaigns' brakes, and the clock of Redis, by which time windows end.

Each round trip to Redis reads the version of the brakes. If the version has changed, the brakes are read again before anything
else is published. So an entry of a campaign is published at most `FRESH_MS` after the campaign's brake; once the dispatcher has
handed the publish over, it waits only for the broker.
"""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import structlog
from redis.exceptions import RedisError

from dispatcher import _metrics
from dispatcher._monotonic import monotonic_ms
from manifold.contracts.brakes import WHY, Brake
from manifold.queues import Queues

WINDOW_OVER = "the time window of the vehicle is over"
FRESH_MS = 500  # brakes confirmed longer ago than this count as unknown, and no entry of a campaign is published
MAX_EXPIRY_S = (1 << 32) - 1  # MQTT's Message Expiry Interval has 32 bits; a trigger's window may end as late as the year 9999
READ_INTERVAL_S = 0.2

log = structlog.get_logger(__name__)


def why_braked(campaign: str, brake: Brake) -> str:
    """Say why no entry of this campaign is sent while it has this brake."""
    return f"campaign {campaign} {WHY.get(brake.word, 'is stopped')}"


class Ruling(NamedTuple):
    """Whether an entry of a campaign may be sent now."""

    why_not: str | None = None  # why the entry must not be sent; None if it may be sent
    expiry_s: int | None = None  # how long the broker may keep the message; None: without limit


UNRESTRICTED = Ruling()


class Brakes:
    """The brakes as last read. Each batch that is sent to Redis confirms them, and so does `run` while no batch is sent."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._version: bytes | None = None  # version of the known brakes; b"": Redis has lost them; None: never read
        self._brakes: Mapping[str, Brake] = {}
        # When the brakes were last known to be current, by `monotonic_ms`; None: Redis has newer brakes.
        self._confirmed_at: int | None = None
        self._redis_offset_ms = 0  # upper bound of the clock of Redis (Unix ms) minus `monotonic_ms`
        _metrics.BRAKES_AGE_SECONDS.set_function(self.age_s)

    @property
    def is_outdated(self) -> bool:
        """Whether Redis has newer brakes than these."""
        return self._confirmed_at is None

    def age_s(self) -> float:
        """The seconds since these brakes were last known to be current; infinite if Redis has newer brakes."""
        return float("inf") if self._confirmed_at is None else (monotonic_ms() - self._confirmed_at) / 1000

    def compare_version(self, version: bytes, asked_at: int) -> None:
        """Compare these brakes with the version that Redis has, which was requested at `asked_at` (by `monotonic_ms`).

        If the versions are equal, these brakes were current at that time; otherwise they are outdated.
        """
        self._confirmed_at = asked_at if version == self._version else None

    async def read(self) -> None:
        """Read the brakes and the clock of Redis. If Redis is unavailable or a brake is malformed, nothing changes."""
        asked_at = monotonic_ms()
        try:
            known = await self._queues.brakes()
        except (RedisError, ValueError) as exc:
            log.warning("campaign brakes unreadable; entries of campaigns wait until they are readable", reason=str(exc))
            return
        self._redis_offset_ms = known.now_ms - asked_at
        if known.version != self._version:
            braked_campaigns = sum(brake.is_on for brake in known.brakes.values())
            log.info("campaign brakes changed", braked_campaigns=braked_campaigns)
        self._version, self._brakes, self._confirmed_at = known.version, known.brakes, asked_at

    async def run(self) -> None:
        """Read the brakes at intervals, forever."""
        while True:
            await self.read()
            await asyncio.sleep(READ_INTERVAL_S)

    def ruling(self, campaign: str, until_ms: int | None) -> Ruling | None:
        """Decide whether an entry of this campaign may be sent now.

        `until_ms` is the end of the vehicle's time window (Unix ms by the clock of Redis), or None. Returns None if that cannot
        be decided, because these brakes are outdated or were confirmed too long ago; the entry must then not be sent either.
        """
        now = monotonic_ms()
        if self._confirmed_at is None or now - self._confirmed_at > FRESH_MS:
            return None
        if not self._version:  # b"": Redis has no brakes
            return Ruling("Redis lost its data, and the brakes of campaigns are not loaded again yet")
        brake = self._brakes.get(campaign)
        if brake is not None and brake.is_on:
            return Ruling(why_braked(campaign, brake))
        if until_ms is None:
            return UNRESTRICTED
        redis_now_ms = now + self._redis_offset_ms
        remaining_s = (until_ms - redis_now_ms) // 1000
        if remaining_s <= 0:
            return Ruling(WINDOW_OVER)
        return Ruling(expiry_s=min(remaining_s, MAX_EXPIRY_S))
