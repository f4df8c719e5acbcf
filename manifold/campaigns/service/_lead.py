"""Which campaigner is active: the one that holds the lease. Its epoch is greater than those of all before it."""

import asyncio

import structlog
from redis.asyncio import Redis

from manifold.archive.claims import ArchiveClaims, RedisClaims
from manifold.archive.journal_folder import JournalFolder, UnusableFolder
from manifold.archive.lease import Lease
from manifold.contracts.errors import Permanent
from manifold.settings import Settings

NAME = "campaigner"  # of the claims, beside those of the recorders' numbers
LOOK_S = 1.0

log = structlog.get_logger(__name__)


class Lead:
    """The lease of the campaigner. Use each object once."""

    def __init__(self, settings: Settings, redis: Redis) -> None:
        self._settings, self._redis = settings, redis
        self._place = JournalFolder(settings.home / NAME)
        self._stands_by = ""
        self._lease: Lease | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the lease that is held; 0 if none is held."""
        return 0 if self._lease is None else self._lease.epoch

    @property
    def problem(self) -> str | None:
        """Why this campaigner is not active, or soon will not be."""
        return self._stands_by or (None if self._lease is None else self._lease.problem)

    async def take(self) -> None:
        """Stand by until no other campaigner is active, and take the lease.

        Raises:
            UnusableFolder: this process may not write in its own folder.
        """
        while True:
            try:
                self._place.lock()
                self._lease = await self._acquire()
            except UnusableFolder:
                raise
            except Permanent as exc:
                self._place.unlock()
                self._set_standby(f"stands by: {exc}")
                await asyncio.sleep(LOOK_S)
            else:
                self._set_standby("")
                return

    async def wait_until_held(self) -> None:
        """Return at once while the lease is held; never return once it is lost."""
        assert self._lease is not None
        await self._lease.wait_until_held()

    async def renew_until_lost(self) -> None:
        """Renew the lease until it is lost."""
        assert self._lease is not None
        await self._lease.renew_until_lost()

    async def leave(self) -> None:
        """Give the lease back, so that another campaigner need not wait."""
        if self._lease is not None and self._lease.lost is None:
            await self._lease.release()
        self._lease = None
        self._place.unlock()

    async def _acquire(self) -> Lease:
        settings = self._settings
        archive = ArchiveClaims(settings.archive, settings.s3, NAME)
        others = [RedisClaims(self._redis, NAME)]
        lease = Lease(0, self._place, archive, others, lease_s=settings.campaigner_lease_seconds, what="the active campaigner")
        await lease.take(0)
        return lease

    def _set_standby(self, stands_by: str) -> None:
        if stands_by and not self._stands_by:
            log.info("campaigner stands by", reason=stands_by)
        self._stands_by = stands_by
