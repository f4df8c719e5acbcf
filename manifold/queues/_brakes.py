"""Brakes of campaigns in Redis, and the triggers of campaigns whose entries may have to be withdrawn."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from manifold.contracts import keys
from manifold.contracts.brakes import Brake, Braking
from manifold.queues import _commands
from manifold.queues._streams import Streams

DROP_BATCH_SIZE = 10_000


class KnownBrakes(NamedTuple):
    """The brakes of all campaigns, with their version, b"" if they are not loaded, and the time of Redis (Unix ms)."""

    version: bytes
    now_ms: int
    brakes: Mapping[str, Brake]


class BrakedQueues(Streams):
    """Reads and sets brakes. An order that arrives late, or twice, changes nothing.

    Raises:
        redis.RedisError: from every method, if Redis is unavailable or rejects a command.
    """

    async def brake(self, brakings: Iterable[Braking]) -> int:
        """Put brakes on, each unless a newer order is known; return how many changed."""
        return int(await self._one(_commands.brake((each.campaign, each.brake, None) for each in brakings)))

    async def load_brakes(self, brakings: Iterable[Braking]) -> None:
        """Put all brakes on that there are; they count as loaded from now on."""
        await self._one(_commands.brake(((each.campaign, each.brake, None) for each in brakings), are_all=True))

    async def turn_brake(self, campaign: str, before: Brake, after: Brake) -> bool:
        """Replace a brake that is still `before`; returns whether it was."""
        return bool(await self._one(_commands.brake([(campaign, after, before)])))

    async def forget_brakes(self, before_seq: int) -> int:
        """Forget the brakes whose last order has a seq before `before_seq`; return how many."""
        old = ((campaign, None, known) for campaign, known in (await self.brakes()).brakes.items() if known.seq < before_seq)
        return int(await self._one(_commands.brake(old)))

    async def brakes_since(self) -> bytes:
        """When all brakes were first loaded into this Redis: another value after it was emptied; b"" if they never were."""
        version: bytes | None = await self._one(("GET", keys.BRAKES_VERSION))
        return (version or b"").partition(b".")[0]

    async def brakes(self) -> KnownBrakes:
        """Read all brakes."""
        version, now_ms, raw = await self._one(_commands.read_brakes())
        fields = zip(raw[::2], raw[1::2], strict=True)
        return KnownBrakes(version, now_ms, {campaign.decode(): Brake.from_wire(value) for campaign, value in fields})

    async def released(self, campaigns: Sequence[str]) -> list[list[int]]:
        """The seqs of each campaign's triggers that may have entries, in the order of `campaigns`."""
        batch = self.batch()
        for campaign in campaigns:
            batch.call(("ZRANGE", keys.releases(campaign), 0, -1), _seqs)
        return await batch.run()

    async def closed_windows(self, now_ms: int) -> list[int]:
        """The seqs of triggers whose vehicles' time window has ended by `now_ms`, and that may have entries."""
        return _seqs(await self._one(("ZRANGEBYSCORE", keys.WINDOWS, "-inf", now_ms)))

    async def drop_released(self, campaign: str, seqs: Sequence[int]) -> None:
        """Note that these triggers of a campaign have no entry left."""
        await self._drop(keys.releases(campaign), seqs)

    async def drop_windows(self, seqs: Sequence[int]) -> None:
        """Note that these triggers, whose window has ended, have no entry left."""
        await self._drop(keys.WINDOWS, seqs)

    async def _drop(self, key: str, seqs: Sequence[int]) -> None:
        for start in range(0, len(seqs), DROP_BATCH_SIZE):
            await self._one(("ZREM", key, *seqs[start : start + DROP_BATCH_SIZE]))

    async def _one(self, command: tuple[Any, ...]) -> Any:
        batch = self.batch()
        batch.call(command, lambda reply: reply)
        return (await batch.run())[0]


def _seqs(members: list[bytes]) -> list[int]:
    return list(map(int, members))
