"""What this dispatcher knows of the campaigns' brakes, and of Redis' clock, by which time windows end.

Each round with Redis asks for the version of the brakes, and a changed one has them read before anything else is published. So no
entry of a campaign is published later than `FRESH_MS` after its brake; in between, a publish waits only for the broker.
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

OVER = "the time window of the vehicle is over"
FRESH_MS = 500  # brakes that were read longer ago count as unknown: no entry of a campaign is published
MAX_EXPIRY_S = (1 << 32) - 1  # MQTT's Message Expiry Interval has 32 bits; a trigger may name any end until the year 9999
LOOK_S = 0.2  # between two reads

log = structlog.get_logger(__name__)


def braked(campaign: str, brake: Brake) -> str:
    """Say why nothing of this campaign is sent."""
    return f"campaign {campaign} {WHY.get(brake.word, 'is stopped')}"


class Ruling(NamedTuple):
    """`why_not` is why an entry must not be sent, if so; `expiry_s` is how long the broker may keep it, if that is limited."""

    why_not: str | None = None
    expiry_s: int | None = None


FREE = Ruling()


class Brakes:
    """The brakes as last read. Each round with Redis confirms them; `run` reads them while there are no rounds."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._version: bytes | None = None  # of the known brakes; b"": Redis has lost them, None: never read
        self._brakes: Mapping[str, Brake] = {}
        self._seen_at: int | None = None  # when they were last current, by `monotonic_ms`; None: there are newer ones
        self._ahead_ms = 0  # Redis' clock (Unix ms) minus `monotonic_ms`, at most
        _metrics.BRAKES_AGE_SECONDS.set_function(self.age_s)

    @property
    def is_outdated(self) -> bool:
        """Whether Redis has newer brakes than these."""
        return self._seen_at is None

    def age_s(self) -> float:
        """How many seconds ago these brakes were last known to be current."""
        return float("inf") if self._seen_at is None else (monotonic_ms() - self._seen_at) / 1000

    def note_version(self, version: bytes, asked_at: int) -> None:
        """Note the version of the brakes, which was asked for at `asked_at` (by `monotonic_ms`)."""
        if version == self._version:
            self._seen_at = asked_at
        else:
            self._seen_at = None

    async def read(self) -> None:
        """Read brakes and clock. If Redis is unavailable, nothing changes."""
        asked_at = monotonic_ms()
        try:
            found = await self._queues.brakes()
        except (RedisError, ValueError) as exc:
            log.warning("campaign brakes unreadable; no entry of a campaign is sent", reason=str(exc))
            return
        self._ahead_ms = found.now_ms - asked_at
        if found.version != self._version:
            log.info("campaign brakes changed", braked=sum(brake.is_on for brake in found.brakes.values()))
        self._version, self._brakes, self._seen_at = found.version, found.brakes, asked_at

    async def run(self) -> None:
        """Read the brakes again and again; runs forever."""
        while True:
            await self.read()
            await asyncio.sleep(LOOK_S)

    def ruling(self, campaign: str, until_ms: int | None) -> Ruling | None:
        """Whether an entry of this campaign may be sent now, in a window that ends at `until_ms`; None if that is unknown."""
        now = monotonic_ms()
        if self._seen_at is None or now - self._seen_at > FRESH_MS:
            return None
        if not self._version:
            return Ruling("the brakes of campaigns are not loaded since Redis has lost its data")
        brake = self._brakes.get(campaign)
        if brake is not None and brake.is_on:
            return Ruling(braked(campaign, brake))
        if until_ms is None:
            return FREE
        left_s = (until_ms - now - self._ahead_ms) // 1000
        return Ruling(expiry_s=min(left_s, MAX_EXPIRY_S)) if left_s > 0 else Ruling(OVER)
