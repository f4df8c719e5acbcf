"""Assembles the campaigner: lease → fence → read and fold → step → publish → wait for its record."""

import asyncio
from contextlib import suppress
from typing import Any

import structlog

from manifold.campaigns.service import _metrics
from manifold.campaigns.service._active import Active
from manifold.campaigns.service._lead import Lead
from manifold.contracts.errors import Retryable
from manifold.queues import connect
from manifold.runtime.expiry import export_certificate_expiry
from manifold.runtime.http import Health, serve
from manifold.settings import Settings

RETRY_S = 1.0

log = structlog.get_logger(__name__)


class Campaigner:
    """One campaigner process. `run` serves until `stop` is set."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._redis = connect(settings.redis, socket_connect_timeout=2, socket_timeout=10)
        self._lead = Lead(settings, self._redis)
        self._active: Active | None = None
        self._problem: str | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set.

        Raises:
            Permanent: the HTTP port is in use.
        """
        settings, token = self._settings, self._settings.http_token.get_secret_value()
        export_certificate_expiry(settings, settings.mqtt_username_campaigns)
        try:
            async with serve(
                settings.host, settings.campaigner_port, self.health, token=token, tls_files=settings.http_tls_files
            ):
                work = asyncio.create_task(self._work(), name="campaigner.work")
                stopping = asyncio.create_task(stop.wait(), name="campaigner.stop")
                await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
                await _stop_task(stopping)
                await _stop_task(work)  # `work` ends by itself only with an error, which is raised here
                await self._lead.leave()
        finally:
            await self._redis.aclose()

    def health(self) -> Health:
        """Return the health of this campaigner. It is healthy if it decides about campaigns, or stands by for the active one."""
        active = self._active
        problem = self._problem if active is None else active.problem
        problems = [text for text in (problem, self._lead.problem) if text]
        details: dict[str, object] = {"active": active is not None, "epoch": self._lead.epoch, "problems": problems}
        if active is not None:
            details |= {"open_campaigns": active.open_campaigns, "waiting": active.waiting}
        return Health(problem is None, details)

    async def _work(self) -> None:
        """Take the lease and decide about campaigns until the lease is lost or an error occurs. Repeat this forever."""
        while True:
            await self._lead.take()
            self._active = Active(self._settings, self._redis, self._lead, self._problem or "has not read the record yet")
            _metrics.LEADS.set(1)
            log.info("campaigner is active; it has taken the lease", epoch=self._lead.epoch)
            renewing = asyncio.create_task(self._lead.renew_until_lost(), name="campaigner.lease")
            work = asyncio.create_task(self._active.run(), name="campaigner.active")
            try:
                await asyncio.wait((renewing, work), return_when=asyncio.FIRST_COMPLETED)
                await _stop_task(work)  # raises the error of `work`, if it has ended by itself
                self._problem = None
            except Retryable as exc:
                self._problem = str(exc)
                log.warning("campaigner cannot work; it releases its lease and will retry", reason=str(exc), retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
            finally:
                self._active = None
                _metrics.LEADS.set(0)
                for task in (renewing, work):
                    task.cancel()
                await asyncio.gather(renewing, work, return_exceptions=True)
            await self._lead.leave()


async def _stop_task(task: "asyncio.Task[Any]") -> None:
    """Cancel the task unless it has ended. If it has ended with an error, raise that error."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
