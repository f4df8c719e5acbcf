"""Simulated worlds of recorders that all claim one number: hosts, their clocks, and two stores.

Everything runs in virtual time, and each choice comes from the seed, so a failing world can be replayed by its number.
"""

import asyncio
import contextlib
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from manifold.archive import lease as under_test
from manifold.archive.claims import Claim
from manifold.archive.journal_folder import JournalFolder
from manifold.archive.lease import Lease
from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.seq import SeqSource
from tests.support.virtual_time import VirtualTimeLoop

LEASE_S = 30.0
HOSTS = 3
ROUNDS = 60
NOON_MS = 1_790_000_000_000
LATE_S = (0, 0, 0.001, 0.01, 1, 4, 15, 45)  # delays of the stores' replies
STOPPED_S = (5, 29, 31, 90, 300)  # pauses of a process


class Register:
    """A store in memory: each step may be late, and a late step may still take effect."""

    def __init__(self, rng: random.Random) -> None:
        self.held: dict[str, Claim] = {}
        self.away = False
        self._rng = rng

    async def put(self, claim: Claim) -> None:
        await self._step()
        self.held[claim.name] = claim
        await self._step()

    async def claims(self) -> list[Claim]:
        await self._step()
        found = list(self.held.values())
        await self._step()
        return found

    async def remove(self, claim: Claim) -> None:
        await self._step()
        self.held.pop(claim.name, None)

    async def _step(self) -> None:
        await asyncio.sleep(self._rng.choice(LATE_S) if self._rng.random() < 0.5 else 0)
        if self.away:
            raise Retryable("away")


class World:
    """Where journals are copied, the archive is not away: see docs/guides/high-availability.md."""

    def __init__(self, seed: int, folder: Path, *, copies: bool) -> None:
        self.rng = random.Random(seed)
        self.archive, self.redis = Register(self.rng), Register(self.rng)
        self.given: list[int] = []
        self._copies = copies
        self._offsets_ms = [0] * HOSTS
        self._folders = [folder / str(host) for host in range(HOSTS)]
        self._last = [0] * HOSTS  # the last seq in the journal of each host
        self._copied = 0

    async def run(self) -> None:
        """Start and kill hosts and inject faults, some tens of times."""
        running: dict[int, asyncio.Task[None]] = {}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(under_test, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": self._sleep}))
            patched.setattr(under_test, "RETRY_S", 7.0)  # fewer steps
            for _ in range(ROUNDS):
                for host in range(HOSTS):
                    if host not in running and self.rng.random() < 0.5:
                        running[host] = asyncio.create_task(self._live(host))
                await asyncio.sleep(self.rng.choice((0.001, 0.1, 1, 5, 10, 40)))
                self._harm(running)
                for host, process in list(running.items()):
                    if self.rng.random() < 0.1:
                        process.cancel()
                        await asyncio.wait((process,))
                    if process.done():
                        del running[host]
            for process in running.values():
                process.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)

    async def _live(self, host: int) -> None:
        """One process on `host`: it starts, issues seqs, and ends somehow."""
        rng, place = self.rng, JournalFolder(self._folders[host])
        place.lock()
        lease = Lease(0, place, self.archive, [self.redis], lease_s=LEASE_S, clock_ms=lambda: self._ms(host))
        keeping = None
        try:
            async with asyncio.timeout(rng.choice((60, 200, 1000))):
                seqs = await lease.take(self._last[host])
                keeping = asyncio.create_task(lease.renew_until_lost())
                for _ in range(rng.randrange(30)):
                    await lease.wait_until_held()
                    self._give(host, seqs)
                    await asyncio.sleep(rng.choice((0, 0.001, 0.5, 3, 20, 70)))
                    self._give(host, seqs)  # as a process that was paused after its check
                if rng.random() < 0.4:
                    keeping.cancel()
                    await asyncio.wait((keeping,))
                    await lease.release()
        except (Permanent, TimeoutError):
            pass
        finally:
            if keeping is not None:
                keeping.cancel()
            place.unlock()

    def _give(self, host: int, seqs: SeqSource) -> None:
        with contextlib.suppress(Retryable):
            self._last[host] = seqs.next()
            self.given.append(self._last[host])

    def _ms(self, host: int) -> int:
        return NOON_MS + round(asyncio.get_running_loop().time() * 1000) + self._offsets_ms[host]

    async def _sleep(self, seconds: float) -> None:
        """The lease's sleep; sometimes its process is paused meanwhile."""
        await asyncio.sleep(seconds + (self.rng.choice(STOPPED_S) if self.rng.random() < 0.1 else 0))

    def _harm(self, running: dict[int, Any]) -> None:
        """Inject or heal one fault."""
        rng, loop = self.rng, asyncio.get_running_loop()
        match rng.randrange(7):
            case 0:
                self._offsets_ms[rng.randrange(HOSTS)] += rng.choice((-200_000, -31_000, -5000, 5000, 31_000, 200_000))
            case 1:
                self.redis.away = not self.redis.away
            case 2 if not self._copies:
                self.archive.away = not self.archive.away
            case 3 if self._copies:
                self.redis.held.clear()
            case 4 if self._copies and 2 not in running:
                self._copy()
            case 5:
                assert isinstance(loop, VirtualTimeLoop)
                loop.stand_still(rng.choice(STOPPED_S))

    def _copy(self) -> None:
        """Replace the journal of the last host with a copy of the first one's."""
        self._copied += 1
        self._folders[2] = self._folders[2].with_name(f"copy-{self._copied}")
        self._folders[2].mkdir(parents=True)
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(self._folders[0] / "lock", self._folders[2] / "lock")
        self._last[2] = self._last[0]
