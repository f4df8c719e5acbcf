"""Brakes of campaigns in Redis, and the triggers of campaigns whose entries may have to be withdrawn."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from manifold.contracts import keys
from manifold.contracts.brakes import Brake, Braking
from manifold.queues import _commands
from manifold.queues._streams import Streams

DROP_BATCH_SIZE = 10_000


class KnownBrakes(NamedTuple):
    """The brakes of all campaigns as Redis has them."""

    version: bytes  # changes with every change of a brake; b"" if the brakes are not loaded
    now_ms: int  # the time of Redis, in Unix ms
    brakes: Mapping[str, Brake]


class BrakedQueues(Streams):
    """Reads and sets brakes. An order that arrives late, after a newer one, or twice changes nothing.

    Raises:
        redis.RedisError: from every method, if Redis is unavailable or rejects a command.
    """

    async def brake(self, brakings: Iterable[Braking]) -> int:
        """Set these brakes, except those for which Redis has a newer order; return how many have changed."""
        changes = ((braking.campaign, braking.brake, None) for braking in brakings)
        return int(await self._run_one(_commands.brake(changes)))

    async def load_brakes(self, brakings: Iterable[Braking]) -> None:
        """Set these brakes, which are all that exist, and mark the brakes of this Redis as loaded."""
        changes = ((braking.campaign, braking.brake, None) for braking in brakings)
        await self._run_one(_commands.brake(changes, are_all=True))

    async def turn_brake(self, campaign: str, old: Brake, new: Brake) -> bool:
        """Replace the brake of a campaign by `new` if it is still `old`; returns whether it was."""
        return bool(await self._run_one(_commands.brake([(campaign, new, old)])))

    async def forget_brakes(self, before_seq: int) -> int:
        """Forget the brakes whose last order has a seq less than `before_seq`; return their number."""
        known = await self.brakes()
        forgotten = ((campaign, None, brake) for campaign, brake in known.brakes.items() if brake.seq < before_seq)
        return int(await self._run_one(_commands.brake(forgotten)))

    async def brakes_since(self) -> bytes:
        """Read when all brakes were first loaded into this Redis, in Unix microseconds; b"" if they never were.

        The value differs after Redis was emptied and the brakes were loaded again.
        """
        version: bytes | None = await self._run_one(("GET", keys.BRAKES_VERSION))
        loaded_at, _, _ = (version or b"").partition(b".")  # a version is `<loaded_at>.<changed_at>`
        return loaded_at

    async def brakes(self) -> KnownBrakes:
        """Read all brakes."""
        version, now_ms, flat = await self._run_one(_commands.read_brakes())
        campaigns_and_brakes = zip(flat[::2], flat[1::2], strict=True)
        brakes = {campaign.decode(): Brake.from_wire(brake) for campaign, brake in campaigns_and_brakes}
        return KnownBrakes(version, now_ms, brakes)

    async def release_seqs(self, campaigns: Sequence[str]) -> list[list[int]]:
        """Read the seqs of each campaign's triggers that may still have entries, in the order of `campaigns`."""
        batch = self.batch()
        for campaign in campaigns:
            batch.call(("ZRANGE", keys.releases(campaign), 0, -1), _seqs)
        return await batch.run()

    async def closed_windows(self, now_ms: int) -> list[int]:
        """Read the seqs of triggers that may still have entries, although their time window ended at or before `now_ms`."""
        return _seqs(await self._run_one(("ZRANGEBYSCORE", keys.WINDOWS, "-inf", now_ms)))

    async def drop_release_seqs(self, campaign: str, seqs: Sequence[int]) -> None:
        """Remove triggers of a campaign from those that `release_seqs` returns, because they have no entry left."""
        await self._drop(keys.releases(campaign), seqs)

    async def drop_windows(self, seqs: Sequence[int]) -> None:
        """Remove triggers from those that `closed_windows` returns, because they have no entry left."""
        await self._drop(keys.WINDOWS, seqs)

    async def _drop(self, key: str, seqs: Sequence[int]) -> None:
        """Remove seqs from a sorted set, `DROP_BATCH_SIZE` of them with each command."""
        for start in range(0, len(seqs), DROP_BATCH_SIZE):
            await self._run_one(("ZREM", key, *seqs[start : start + DROP_BATCH_SIZE]))

    async def _run_one(self, command: tuple[Any, ...]) -> Any:
        """Run one command and return its raw reply."""
        batch = self.batch()
        batch.call(command, lambda reply: reply)
        (reply,) = await batch.run()
        return reply


def _seqs(members: list[bytes]) -> list[int]:
    return list(map(int, members))
