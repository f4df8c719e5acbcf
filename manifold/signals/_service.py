"""Assembles the AMQP door: RabbitMQ → checks → journal → processed queue → acknowledgement."""

import asyncio
import time

import structlog
from aiohttp import web

from manifold.archive.claims import ArchiveClaims, RedisClaims
from manifold.archive.flushing import flush_journal
from manifold.archive.journal import Journal
from manifold.archive.journal_folder import JournalFolder
from manifold.archive.lease import Lease
from manifold.archive.recorded import RecordedSegments
from manifold.archive.recovery import last_seq
from manifold.archive.segment_writer import SegmentWriter
from manifold.archive.store import Archive
from manifold.contracts.errors import Permanent
from manifold.contracts.signals.bounds import read_bounds
from manifold.lake.day_keys import DayKeys
from manifold.messaging.amqp import hmac_secrets
from manifold.queues import connect
from manifold.runtime.expiry import export_certificate_expiry
from manifold.runtime.http import Health, serve
from manifold.runtime.lag import watch_lag
from manifold.settings import Settings
from manifold.signals import _metrics
from manifold.signals._checks import Checks
from manifold.signals._consumer import Consumer
from manifold.signals._dead_letter_pages import dead_letter_routes
from manifold.signals._idempotency import IdempotencyStore
from manifold.signals._judging import Judge
from manifold.signals._processor import Processor
from manifold.signals._publishing import Publishing
from manifold.signals._recording import Recording
from manifold.signals._retry import Retry
from manifold.signals._state import StateFile
from manifold.signals._tracing import Tracing

# Seconds to settle messages and seal the journal on shutdown. RabbitMQ redelivers messages that are not settled by then, and the
# next start seals the journal.
STOP_WAIT_S = 10.0

log = structlog.get_logger(__name__)


class Signals:
    """One AMQP door. `run` serves until `stop` is set, then settles the messages in hand."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        node, folder, retry_s = settings.signals_node, settings.signals_journal_folder, settings.journal_retry_seconds
        self._redis = connect(settings.signals_redis, socket_connect_timeout=2, socket_timeout=5)
        self._state, self._folder = StateFile(folder), JournalFolder(folder)
        self._journal = Journal(
            folder,
            max_bytes=settings.segment_max_bytes,
            max_age_s=settings.segment_max_seconds,
            retry_s=retry_s,
            on_ended=lambda: self._writer.wake(),  # a lambda, because `_writer` is created below
        )
        self._segments = RecordedSegments(Archive(settings.archive, settings.s3))
        self._writer = SegmentWriter(self._journal, self._segments, self._state.remember_seq, node=node, retry_s=retry_s)
        archive_claims = ArchiveClaims(settings.archive, settings.s3, node)
        redis_claims = [RedisClaims(self._redis, node)]
        self._lease = Lease(node, self._folder, archive_claims, redis_claims, lease_s=settings.node_lease_seconds)
        self._secrets = hmac_secrets(settings)
        self._day_keys = DayKeys.of(settings)
        self._retry = Retry()
        store = IdempotencyStore(self._redis, settings)
        checks, bounds = Checks.of(settings, self._secrets), read_bounds(settings.signals_bounds)
        judge = Judge(checks, store, bounds, self._retry, max_retries=settings.signals_max_retries)
        self._recording = Recording(self._day_keys, self._journal, self._lease.wait_until_held, self._retry)
        publishing = Publishing(self._retry, confirm_s=settings.signals_confirm_seconds)
        processor = Processor(judge, self._recording, publishing, store, self._retry)
        self._tracing = Tracing.of(settings)
        processor.tracing = self._tracing
        processor.log_accepted = settings.signals_log_accepted
        self._consumer = Consumer(settings, processor, self._state, self._retry)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set.

        Raises:
            Permanent: the HTTP address is unusable, the key ring is missing, the RabbitMQ topology conflicts, or another door has
                this node number.
        """
        settings = self._settings
        export_certificate_expiry(settings)
        routes = [web.post("/flush", self._flush), *dead_letter_routes(settings)]
        token, tls_files = settings.http_token.get_secret_value(), settings.http_tls_files
        try:
            async with serve(settings.host, settings.signals_port, self.health, routes, token=token, tls_files=tls_files):
                self._folder.lock()
                await self._work(stop)
        finally:
            self._journal.stop()
            self._folder.unlock()
            await self._redis.aclose()
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.close)

    def health(self) -> Health:
        """Report healthy while the door consumes, reaches its servers, finds no target queue full, and can write to disk.

        Problems of the segment writer and of the lease are only listed.
        """
        consumer = self._consumer
        required_parts = (consumer, self._retry, self._journal)
        problems = [part.problem for part in (*required_parts, self._writer, self._lease) if part.problem is not None]
        is_healthy = all(part.problem is None for part in required_parts)
        details = {
            "problems": problems,
            "signatures": "required" if self._secrets else "not asked for: no secret is set",
            "backlog": consumer.backlog.count,
            "backlog_age_seconds": round(consumer.backlog.age_s(time.time()), 1) if consumer.problem is None else None,
            "in_hand": consumer.in_hand,
            "journal_files": len(self._journal.files),
            "node": self._settings.signals_node,
        }
        return Health(is_healthy, details)

    async def _work(self, stop: asyncio.Event) -> None:
        """Start, and consume until stopped or until the lease is lost; then settle the messages in hand and release the lease."""
        stopping = asyncio.ensure_future(stop.wait())
        starting = asyncio.ensure_future(self._start())
        await asyncio.wait((stopping, starting), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():  # stopped before the start has finished
            starting.cancel()
            await asyncio.wait((starting,))  # it uses the journal and Redis, which the caller closes
            return
        starting.result()  # raises the error of a failed start
        renewing_lease = asyncio.ensure_future(self._lease.renew_until_lost())
        writing_segments = asyncio.ensure_future(self._writer.run())
        watching_lag = asyncio.ensure_future(watch_lag(_metrics.LOOP_LAG_SECONDS.set))
        consuming = asyncio.create_task(self._consumer.run(), name="signals.consumer")
        try:
            await asyncio.wait((consuming, renewing_lease, stopping), return_when=asyncio.FIRST_COMPLETED)
            if consuming.done():
                consuming.result()  # raises the error that ended the consumption
            await self._finish(consuming)
        finally:
            tasks = (consuming, stopping, renewing_lease, writing_segments, watching_lag)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._lease.release()
        if self._lease.lost is not None:
            raise Permanent(self._lease.lost)

    async def _start(self) -> None:
        """Recover the journal and the state of the previous run, and take the lease.

        Raises:
            Permanent: the key ring is missing, or another door has this node number.
        """
        if not self._secrets:
            log.warning("signatures disabled: no HMAC secret; set MANIFOLD_SIGNALS_HMAC_SECRET")
        self._day_keys.ring.current  # noqa: B018  # fail on a missing key ring before consuming
        recovered = self._journal.recover()
        state = self._state.load()
        node = self._settings.signals_node
        last_assigned_seq = await asyncio.to_thread(last_seq, state.last_seq, recovered, self._segments, node)
        self._recording.seqs = await self._lease.take(last_assigned_seq)
        self._consumer.backlog.delivered_until = state.empty_at
        log.info(
            "door started",
            node=node,
            last_seq=last_assigned_seq,
            recovered_journal_files=len(recovered),
            signatures_required=bool(self._secrets),
        )

    async def _finish(self, consuming: "asyncio.Task[None]") -> None:
        """Stop consuming, settle the messages in hand, and seal the journal.

        Work that does not finish within `STOP_WAIT_S` is left to RabbitMQ and to the next start.
        """
        self._consumer.stop()
        try:
            async with asyncio.timeout(STOP_WAIT_S):
                await asyncio.wait((consuming,))
                self._journal.rotate()
                await asyncio.gather(*(file.sealed.wait() for file in self._journal.files))
        except TimeoutError:
            log.warning(
                "shutdown timed out; rabbitmq redelivers unacknowledged messages, and the next start seals the journal",
                unsealed_journal_files=len(self._journal.files),
                unacknowledged_messages=self._consumer.in_hand,
            )

    async def _flush(self, _: web.Request) -> web.Response:
        return await flush_journal(self._journal, self._writer, self._settings.signals_node)
