"""Finds out from the queues which releasable targets are connected, in order of release, a thousand targets at a time."""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence

import structlog
from redis.exceptions import RedisError

from manifold.contracts import keys
from manifold.contracts.seq import wall_clock_ms
from manifold.queues import Queues, is_corrupt

MIN_SWEEP_PAUSE_S, MAX_SWEEP_PAUSE_S = 0.5, 60.0
VEHICLES_PER_ROUND_TRIP = 1000
_FIELDS = ("connected", "heard", "subscribed")

log = structlog.get_logger(__name__)


class Sweep:
    """Looks repeatedly for connected targets that could be released. It sets `woken` when it has found some."""

    def __init__(self, queues: Queues, woken: asyncio.Event) -> None:
        self.counts: Mapping[str, int] = {}  # campaign → how many targets the last sweep found
        self._queues = queues
        self._woken = woken
        self._wanted: dict[str, tuple[list[str], int]] = {}  # campaign → the VINs to look for, and how many are enough
        self._found: dict[str, set[str]] = {}  # campaign → VINs that were found since the last `take_found`

    def look_for(self, campaign: str, vins: list[str], enough: int) -> None:
        """Look for these targets of a campaign in each sweep from now on, until that sweep has found `enough` of them."""
        self._wanted[campaign] = vins, enough

    def has_found(self, campaign: str) -> bool:
        """Whether connected targets of the campaign were found since the last `take_found`."""
        return campaign in self._found

    def take_found(self, campaign: str) -> set[str]:
        """Return the targets of the campaign that were found, and stop looking for its targets."""
        self._wanted.pop(campaign, None)
        return self._found.pop(campaign, set())

    def keep_only(self, campaigns: Collection[str]) -> None:
        """Forget all campaigns except these, and the found targets of campaigns for which nothing is looked for."""
        self._wanted = {name: wanted for name, wanted in self._wanted.items() if name in campaigns}
        self._found = {name: vins for name, vins in self._found.items() if name in self._wanted}

    async def run(self) -> None:
        """Sweep forever. After each sweep, rest for as long as the sweep took, within the limits of the pause."""
        while True:
            began = time.monotonic()
            counts: dict[str, int] = {}
            for name, (vins, enough) in list(self._wanted.items()):
                try:
                    found = await find_present(self._queues, vins, enough, wall_clock_ms())
                except RedisError as exc:
                    log.debug("connected targets of a campaign not read from redis", campaign=name, reason=str(exc))
                    continue
                counts[name] = len(found)
                if found:
                    self._found[name] = found
                    self._woken.set()
            self.counts = counts
            sweep_s = time.monotonic() - began
            pause_s = min(MAX_SWEEP_PAUSE_S, max(MIN_SWEEP_PAUSE_S, sweep_s))
            await asyncio.sleep(pause_s)


async def find_present(queues: Queues, vins: Sequence[str], enough: int, now_ms: int) -> set[str]:
    """Return vehicles among `vins` that are connected and subscribed to their topic.

    The search is in order and stops when `enough` are found, but it always completes a round trip, so it may find more. A vehicle
    whose presence in Redis is corrupt counts as not connected.

    Raises:
        redis.RedisError: Redis is unavailable.
    """
    found: set[str] = set()
    heard_since_ms = now_ms - queues.policy.presence_ms
    for start in range(0, len(vins), VEHICLES_PER_ROUND_TRIP):
        if len(found) >= enough:
            break
        chunk = vins[start : start + VEHICLES_PER_ROUND_TRIP]
        batch = queues.batch()
        for vin in chunk:
            batch.call(("HMGET", keys.presence(vin), *_FIELDS), list)
        replies = await batch.run(tolerant=True)
        for vin, reply in zip(chunk, replies, strict=True):
            if not is_corrupt(reply) and _is_present(reply, heard_since_ms):
                found.add(vin)
    return found


def _is_present(fields: Sequence[bytes | None], heard_since_ms: int) -> bool:
    """Whether a vehicle with these fields is connected and subscribed, as in `presence_state` of queues/lua/_owner.lua."""
    connected, heard, subscribed = fields
    if subscribed in (b"no", b"qos0"):
        return False
    if connected == b"heard":  # its connection is unknown, but it has sent a sign of life
        return int(heard or 0) >= heard_since_ms
    return connected == b"yes"
