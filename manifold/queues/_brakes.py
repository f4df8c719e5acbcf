"""Brakes of campaigns in Redis, and the campaigns' triggers of which entries may have to be withdrawn."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from manifold.contracts import keys
from manifold.contracts.brakes import Brake, Braking
from manifold.queues import _commands
from manifold.queues._streams import Streams


class KnownBrakes(NamedTuple):
    """The brakes of all campaigns, with their version, b"" if they are not loaded, and the time of Redis (Unix ms)."""

    version: bytes
    now_ms: int
    brakes: Mapping[str, Brake]


class Release(NamedTuple):
    """A campaign's trigger."""

    seq: int
    campaign: str
    until_ms: int | None


class BrakedQueues(Streams):
    """Reads and sets brakes. An order that arrives late, or twice, changes nothing.

    Raises:
        redis.RedisError: from every method, if Redis is unavailable or rejects a command.
    """

    async def brake(self, brakings: Iterable[Braking]) -> int:
        """Put brakes on, each unless a newer order is known, and note that the brakes are loaded; returns how many changed."""
        return int(await self._one(_commands.brake((each.campaign, each.brake, None) for each in brakings)))

    async def turn_brake(self, campaign: str, before: Brake, after: Brake) -> bool:
        """Replace a brake that is still `before`; returns whether it was."""
        return bool(await self._one(_commands.brake([(campaign, after, before)])))

    async def are_brakes_loaded(self) -> bool:
        """Whether somebody has loaded the brakes since Redis was last empty."""
        return bool(await self._one(("EXISTS", keys.BRAKES_VERSION)))

    async def brakes(self) -> KnownBrakes:
        """Read all brakes."""
        version, now_ms, raw = await self._one(_commands.read_brakes())
        fields = zip(raw[::2], raw[1::2], strict=True)
        return KnownBrakes(version, now_ms, {campaign.decode(): Brake.from_wire(value) for campaign, value in fields})

    async def releases(self, before_ms: int) -> list[Release]:
        """The campaigns' triggers that may have entries; those recorded before `before_ms` (Unix ms) are forgotten first."""
        await self._one(_commands.forget_releases(before_ms))
        members: list[bytes] = await self._one(("ZRANGE", keys.RELEASES, 0, -1))
        return [_release(member) for member in members]

    async def drop_releases(self, releases: Sequence[Release]) -> None:
        """Forget triggers of which no entry is left."""
        if releases:
            await self._one(
                (
                    "ZREM",
                    keys.RELEASES,
                    *(f"{seq} {'' if until_ms is None else until_ms} {campaign}" for seq, campaign, until_ms in releases),
                )
            )

    async def _one(self, command: tuple[Any, ...]) -> Any:
        batch = self.batch()
        batch.call(command, lambda reply: reply)
        return (await batch.run())[0]


def _release(member: bytes) -> Release:
    seq, until_ms, campaign = member.decode().split(" ")
    return Release(int(seq), campaign, int(until_ms) if until_ms else None)
