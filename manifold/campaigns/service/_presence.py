"""Asks the queues which of the targets that could be released are connected, in order, a thousand at a time."""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence

import structlog
from redis.exceptions import RedisError

from manifold.contracts import keys
from manifold.contracts.seq import wall_clock_ms
from manifold.queues import Queues, is_corrupt

SWEEP_S, MAX_SWEEP_PAUSE_S = 0.5, 60.0
VEHICLES_PER_ROUND_TRIP = 1000
_FIELDS = ("connected", "heard", "subscribed")

log = structlog.get_logger(__name__)


class Sweep:
    """Looks for the targets that could be released, again and again. `woken` is set when it has found some."""

    def __init__(self, queues: Queues, woken: asyncio.Event) -> None:
        self.counts: Mapping[str, int] = {}  # campaign → how many targets the last sweep found
        self._queues, self._woken = queues, woken
        self._wanted: dict[str, tuple[list[str], int]] = {}  # campaign → whom to look for, and how many are enough
        self._here: dict[str, set[str]] = {}  # campaign → targets that were found; used once

    def look_for(self, campaign: str, vins: list[str], enough: int) -> None:
        """Look for these targets of a campaign from now on."""
        self._wanted[campaign] = vins, enough

    def has_found(self, campaign: str) -> bool:
        """Whether targets of the campaign were found that nobody has taken yet."""
        return campaign in self._here

    def take(self, campaign: str) -> set[str]:
        """Return the targets of the campaign that were found, and stop looking for its targets."""
        self._wanted.pop(campaign, None)
        return self._here.pop(campaign, set())

    def keep_only(self, campaigns: Collection[str]) -> None:
        """Forget all other campaigns, and targets that were found for a campaign that is no longer looked for."""
        self._wanted = {name: wanted for name, wanted in self._wanted.items() if name in campaigns}
        self._here = {name: here for name, here in self._here.items() if name in self._wanted}

    async def run(self) -> None:
        """Sweep again and again, and rest at least as long as each sweep took; runs forever."""
        while True:
            began, counts = time.monotonic(), dict[str, int]()
            for name, (vins, enough) in list(self._wanted.items()):
                try:
                    found = await find_present(self._queues, vins, enough, wall_clock_ms())
                except RedisError as exc:
                    log.debug("presence of a campaign's vehicles unknown", campaign=name, reason=str(exc))
                    continue
                counts[name] = len(found)
                if found:
                    self._here[name] = found
                    self._woken.set()
            self.counts = counts
            await asyncio.sleep(min(MAX_SWEEP_PAUSE_S, max(SWEEP_S, time.monotonic() - began)))


async def find_present(queues: Queues, vins: Sequence[str], enough: int, now_ms: int) -> set[str]:
    """The vehicles among `vins` that are connected and listen; at least the first `enough` of them, if there are so many.

    Raises:
        redis.RedisError: Redis is unavailable.
    """
    here: set[str] = set()
    for first in range(0, len(vins), VEHICLES_PER_ROUND_TRIP):
        if len(here) >= enough:
            break
        some = vins[first : first + VEHICLES_PER_ROUND_TRIP]
        batch = queues.batch()
        for vin in some:
            batch.call(("HMGET", keys.presence(vin), *_FIELDS), list)
        replies = await batch.run(tolerant=True)
        heard_after_ms = now_ms - queues.policy.presence_ms
        here.update(
            vin for vin, reply in zip(some, replies, strict=True) if not is_corrupt(reply) and _is_here(reply, heard_after_ms)
        )
    return here


def _is_here(fields: Sequence[bytes | None], heard_after_ms: int) -> bool:
    """As `presence_state` in queues/lua/_owner.lua."""
    connected, heard, subscribed = fields
    if subscribed in (b"no", b"qos0"):
        return False
    return connected == b"yes" or (connected == b"heard" and int(heard or 0) >= heard_after_ms)
