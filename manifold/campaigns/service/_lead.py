"""The lease of the active campaigner. Each holder of the lease has a higher epoch than all holders before it."""

import asyncio

import structlog
from redis.asyncio import Redis

from manifold.archive.claims import ArchiveClaims, RedisClaims
from manifold.archive.journal_folder import JournalFolder, UnusableFolder
from manifold.archive.lease import Lease
from manifold.contracts.errors import Permanent
from manifold.settings import Settings

NAME = "campaigner"  # the name of the lease's claims, and of the folder in the home directory
RETRY_S = 1.0  # pause between two attempts to take the lease

log = structlog.get_logger(__name__)


class Lead:
    """The lease of the active campaigner."""

    def __init__(self, settings: Settings, redis: Redis) -> None:
        self._settings = settings
        self._redis = redis
        self._folder = JournalFolder(settings.home / NAME)
        self._standby_reason = ""  # empty if this campaigner does not stand by
        self._lease: Lease | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the lease that is held; 0 if none is held."""
        return 0 if self._lease is None else self._lease.epoch

    @property
    def problem(self) -> str | None:
        """Why this campaigner is not active, or is about to lose the lease."""
        if self._standby_reason:
            return self._standby_reason
        return None if self._lease is None else self._lease.problem

    async def take(self) -> None:
        """Stand by until no other campaigner is active, and take the lease.

        Raises:
            UnusableFolder: this process cannot write to its own folder.
        """
        while True:
            try:
                self._folder.lock()
                self._lease = await self._acquire()
            except UnusableFolder:  # also a `Permanent`, but waiting does not help
                raise
            except Permanent as exc:  # another campaigner holds the lease, or locks the folder
                self._folder.unlock()
                self._set_standby(f"stands by: {exc}")
                await asyncio.sleep(RETRY_S)
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
        """Release the lease, so that another campaigner does not have to wait until it expires."""
        if self._lease is not None and self._lease.lost is None:
            await self._lease.release()
        self._lease = None
        self._folder.unlock()

    async def _acquire(self) -> Lease:
        """Take the lease in the archive and in Redis.

        The campaigner assigns no seqs, so the number of the recorder and the last seq, which are 0 here, mean nothing.

        Raises:
            Permanent: another campaigner holds it.
        """
        settings = self._settings
        archive_claims = ArchiveClaims(settings.archive, settings.s3, NAME)
        redis_claims = RedisClaims(self._redis, NAME)
        lease_s = settings.campaigner_lease_seconds
        lease = Lease(0, self._folder, archive_claims, [redis_claims], lease_s=lease_s, role="the active campaigner")
        await lease.take(0)
        return lease

    def _set_standby(self, reason: str) -> None:
        """Note why this campaigner stands by (empty: it does not), and log when standby begins."""
        if reason and not self._standby_reason:
            log.info("campaigner stands by", reason=reason)
        self._standby_reason = reason
