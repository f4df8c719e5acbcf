"""The AMQP door, put together: RabbitMQ → checks → journal → processed queue → acknowledgement."""

import asyncio
import random
import time
from collections import deque
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from adapters.amqp import connection_url, hmac_secrets, shown_url
from adapters.day_keys import DayKeys
from adapters.http import Health, serve
from adapters.lag import watch_lag
from archive.claims import ArchiveClaims, RedisClaims
from archive.flushing import flush_journal
from archive.journal import Journal
from archive.journal_folder import JournalFolder
from archive.lease import Lease
from archive.recorded import RecordedSegments
from archive.recovery import last_seq
from archive.segment_writer import SegmentWriter
from archive.store import Archive
from contracts.errors import Permanent
from contracts.settings import Settings
from contracts.signals import topology
from contracts.signals.bounds import read_bounds
from queues import connect
from signals import _metrics
from signals._checks import Checks
from signals._freshness import Backlog
from signals._once import Once
from signals._processor import Processor
from signals._received import Received
from signals._session import AWAY, Session, open_session
from signals._state import StateFile

STOP_WAIT_S = 10.0  # what is not settled or sealed by then comes again, or stays in the journal
LOOK_S = 1.0  # between two looks at the queues
SAVE_S = 10.0  # between two notes of when the queue was last seen empty
AGAIN_MIN_S, AGAIN_MAX_S = 0.5, 15.0  # between two tries to reach RabbitMQ
GROUP_BYTES = 8 << 20  # bodies that are settled together
WATCHED = (topology.RAW, topology.RETRY, topology.DEAD, topology.STATUS, topology.PROCESSED)

log = structlog.get_logger(__name__)


class Signals:
    """One AMQP door. `run` serves until `stop` is set, then settles what it has in hand."""

    def __init__(self, settings: Settings) -> None:
        self._settings, node, folder = settings, settings.signals_node, settings.signals_journal_folder
        retry_s = settings.journal_retry_seconds
        self._redis = connect(settings.signals_redis, socket_connect_timeout=2, socket_timeout=5)
        self._state, self._folder = StateFile(folder), JournalFolder(folder)
        self._journal = Journal(
            folder,
            max_bytes=settings.segment_max_bytes,
            max_age_s=settings.segment_max_seconds,
            retry_s=retry_s,
            on_closed=lambda: self._writer.wake(),
        )
        self._segments = RecordedSegments(Archive(settings.archive, settings.s3))
        self._writer = SegmentWriter(self._journal, self._segments, self._state.remember_seq, node=node, retry_s=retry_s)
        stores = ArchiveClaims(settings.archive, settings.s3, node), [RedisClaims(self._redis, node)]
        self._lease = Lease(node, self._folder, *stores, lease_s=settings.node_lease_seconds)
        self._secrets, self._keys = hmac_secrets(settings), DayKeys.of(settings)
        self._processor = Processor(
            Checks.of(settings, self._secrets),
            Once(self._redis, settings),
            self._keys,
            self._journal,
            read_bounds(settings.signals_bounds),
            self._lease.held,
            max_retries=settings.signals_max_retries,
        )
        self._backlog = Backlog(settings.signals_nonce_seconds)
        self._problem: str | None = "not connected yet"
        self._waiting: deque[Received] = deque()
        self._arrived = asyncio.Event()
        self._in_hand = 0
        self._settled = 0  # groups
        self._session: Session | None = None
        self._stopping = False

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set.

        Raises:
            Permanent: HTTP cannot be served there, there is no key ring, RabbitMQ has another topology, or the number of this
                door is another's.
        """
        settings = self._settings
        routes, token = [web.post("/flush", self._flush)], settings.http_token.get_secret_value()
        try:
            async with serve(settings.host, settings.signals_port, self.health, routes, token=token):
                self._folder.enter()
                await self._work(stop)
        finally:
            self._journal.stop()
            self._folder.leave()
            await self._redis.aclose()

    def health(self) -> Health:
        """Healthy: consuming, and able to put what comes on disk."""
        parts = (self._processor, self._journal, self._writer, self._lease)
        problems = [part.problem for part in parts if part.problem is not None]
        serving = self._problem is None and self._processor.problem is None and self._journal.problem is None
        if self._problem is not None:
            problems.insert(0, self._problem)
        details = {
            "problems": problems,
            "signatures": "required" if self._secrets else "not asked for: no secret is set",
            "backlog": self._backlog.count,
            "backlog_age_seconds": round(self._backlog.age_s(time.time()), 1) if self._problem is None else None,
            "in_hand": self._in_hand,
            "journal_files": len(self._journal.files),
            "node": self._settings.signals_node,
        }
        return Health(serving, details)

    async def _work(self, stop: asyncio.Event) -> None:
        told = asyncio.ensure_future(stop.wait())
        start = asyncio.ensure_future(self._start())
        await asyncio.wait((told, start), return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            start.cancel()
            return
        start.result()
        lease = asyncio.ensure_future(self._lease.keep())
        tasks = [told, lease, *map(asyncio.ensure_future, (self._writer.run(), watch_lag(_metrics.LOOP_LAG_SECONDS.set)))]
        stay = asyncio.create_task(self._stay_connected(), name="signals.stay")
        try:
            await asyncio.wait((stay, lease, told), return_when=asyncio.FIRST_COMPLETED)
            if stay.done():
                stay.result()
            await self._finish(stay)
        finally:
            for task in (stay, *tasks):
                task.cancel()
            await asyncio.gather(stay, *tasks, return_exceptions=True)
            await self._lease.release()
        if self._lease.lost is not None:
            raise Permanent(self._lease.lost)

    async def _start(self) -> None:
        if not self._secrets:
            log.warning("no secret is set: whoever may publish to RabbitMQ is believed; set MANIFOLD_SIGNALS_HMAC_SECRET")
        self._keys.ring.current  # noqa: B018  # the error is for the operator, before anything is taken
        recovered, state, node = self._journal.recover(), self._state.load(), self._settings.signals_node
        given = await asyncio.to_thread(last_seq, state.last_seq, recovered, self._segments, node)
        self._processor.seqs = await self._lease.take(given)
        self._backlog.empty_at = state.empty_at
        log.info("door started", last_seq=given, journal_files=len(recovered), signatures=bool(self._secrets))

    async def _finish(self, stay: "asyncio.Task[None]") -> None:
        """Take nothing new, settle what came, close the segments; whatever that lacks comes again, or the next start does it."""
        self._stopping = True
        if self._session is not None:
            self._session.end("the door stops")
        try:
            async with asyncio.timeout(STOP_WAIT_S):
                await asyncio.wait((stay,))
                self._journal.rotate()
                await asyncio.gather(*(file.sealed.wait() for file in self._journal.files))
        except TimeoutError:
            log.warning("stopping with work left", journal_files=len(self._journal.files), in_hand=self._in_hand)

    async def _stay_connected(self) -> None:
        """One stay at RabbitMQ after the other, until the door stops."""
        settings, tries = self._settings, 0
        while True:
            before = self._settled
            try:
                async with open_session(connection_url(settings), settings) as session:
                    await self._stay(session)
                    why = session.lost.result()
            except AWAY as exc:
                why = str(exc) or type(exc).__name__
            if self._settled > before:  # a stay that settles nothing, and ends, does not begin again at once
                tries = 0
            if self._stopping:
                return
            self._say(f"not connected to RabbitMQ at {_without_password(settings)}: {why}")
            pause = min(AGAIN_MAX_S, AGAIN_MIN_S * 2**tries)
            tries = min(tries + 1, 10)
            await asyncio.sleep(pause * random.uniform(0.5, 1))

    async def _stay(self, session: Session) -> None:
        """Consume until the session is lost, or the door stops; then settle what came before."""
        self._waiting.clear()  # of a stay before: it comes again
        session.waited_s = lambda: self._backlog.age_s(time.time())
        await self._look(session)
        self._session = session
        settling = asyncio.create_task(self._settle_all(session), name="signals.settle")
        looking = asyncio.create_task(self._look_again_and_again(session), name="signals.look")
        try:
            await session.consume(topology.RAW, self._take)
            if self._settings.signals_reads_status:
                await session.consume(topology.STATUS, self._take)
            self._say(None)
            await asyncio.wait((session.lost, settling, looking), return_when=asyncio.FIRST_COMPLETED)
            if self._stopping:
                await session.stop_consuming()
            session.end("its work has ended")
            self._arrived.set()
            await asyncio.wait((settling,))  # never broken off in the middle of a write to the journal
            settling.result()
        finally:
            session.end("it has ended")
            for task in (settling, looking):
                task.cancel()
            await asyncio.gather(settling, looking, return_exceptions=True)
            self._session, self._in_hand = None, 0
            _metrics.CONNECTED.set(0)

    def _take(self, received: Received) -> None:
        self._waiting.append(received)
        self._in_hand += 1
        _metrics.IN_HAND.set(self._in_hand)
        self._arrived.set()

    async def _settle_all(self, session: Session) -> None:
        """Settle what comes, in groups: what came while the group before was settled is the next one."""
        while True:
            if not self._waiting:
                if session.lost.done():
                    return
                self._arrived.clear()
                await self._arrived.wait()
                continue
            if session.lost.done() and not self._stopping:
                return
            group, size = list[Received](), 0
            while self._waiting and size < GROUP_BYTES:
                group.append(self._waiting.popleft())
                size += len(group[-1].body)
            await self._processor.settle(group, session)
            self._settled += 1
            self._in_hand -= len(group)
            _metrics.IN_HAND.set(self._in_hand)

    async def _look_again_and_again(self, session: Session) -> None:
        saved = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            await self._look(session)
            if time.monotonic() - saved > SAVE_S and self._backlog.empty_at > self._state.state.empty_at:
                await asyncio.to_thread(self._state.remember_empty, self._backlog.empty_at)
                saved = time.monotonic()

    async def _look(self, session: Session) -> None:
        """How much waits in each queue; and since when the raw queue was not empty."""
        for queue in WATCHED:
            count = await session.count(queue)
            _metrics.DEPTH.labels(queue).set(count)
            if queue == topology.RAW:
                self._backlog.saw(count, time.time())
        _metrics.BACKLOG_AGE_SECONDS.set(self._backlog.age_s(time.time()))

    def _say(self, problem: str | None) -> None:
        if problem is not None and problem != self._problem:
            log.warning("away from RabbitMQ", reason=problem)
        if problem is None:
            log.info("consuming", queues=[topology.RAW] + [topology.STATUS] * self._settings.signals_reads_status)
        self._problem = problem
        _metrics.CONNECTED.set(problem is None)

    async def _flush(self, _: web.Request) -> web.Response:
        return await flush_journal(self._journal, self._writer, self._settings.signals_node)


def _without_password(settings: Settings) -> str:
    parts = urlsplit(shown_url(settings))
    return f"{parts.hostname}:{parts.port or ''}".rstrip(":")
