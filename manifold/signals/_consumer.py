"""Keeps the door connected to RabbitMQ and settles messages in groups, one session after another."""

import asyncio
import contextlib
import random
import time
from collections import deque
from urllib.parse import urlsplit

import structlog

from manifold.contracts.errors import message_of
from manifold.contracts.signals import topology
from manifold.contracts.signals.rights import DOOR
from manifold.messaging.amqp import connection_url, shown_url
from manifold.settings import Settings
from manifold.signals import _metrics
from manifold.signals._disposition import Disposition, Key
from manifold.signals._freshness import Backlogs
from manifold.signals._held_back import HeldBack
from manifold.signals._processor import Processor
from manifold.signals._received import Received
from manifold.signals._retry import Retry
from manifold.signals._session import SESSION_ERRORS, Session, open_session
from manifold.signals._state import StateFile

DEPTH_CHECK_S = 1.0  # between two checks of the queue depths
REPAIR_S = 5.0  # between two declarations of the topology
SAVE_S = 10.0  # between two saves of the time when the raw queue was last empty
RECONNECT_MIN_S, RECONNECT_MAX_S = 0.5, 15.0  # backoff between connection attempts
GROUP_BYTES = 4 << 20  # body bytes settled as one group
MAX_GROUPS_PUBLISHING = 2  # groups that wait for their confirms while the next group is judged and recorded
# Above this number of held-back messages, or of bytes in their bodies, consumers are not replaced: no more messages are delivered
# than the prefetch of the current consumers allows.
MAX_HELD_BACK, MAX_HELD_BACK_BYTES = 1000, 32 << 20
OTHER_QUEUES = (topology.RETRY, topology.DEAD, topology.STATUS, topology.PROCESSED, topology.DEAD_COPY)

log = structlog.get_logger(__name__)


class Consumer:
    """Receives and settles messages while `run` runs. `problem` says why nothing is consumed; it is None while consuming."""

    def __init__(self, settings: Settings, processor: Processor, state: StateFile, retry: Retry) -> None:
        self.problem: str | None = "not connected yet"
        self._signal_queues = (topology.RAW, *(queue.name for queue in topology.partitions(settings.signals_partitions)))
        self.backlog = Backlogs(self._signal_queues, settings.signals_nonce_seconds, in_flight=settings.signals_prefetch)
        self.in_hand = 0  # messages delivered and not acknowledged
        self._settings, self._processor, self._state = settings, processor, state
        self._group_size = max(1, settings.signals_prefetch // (MAX_GROUPS_PUBLISHING + 1))
        self._waiting: deque[Received] = deque()
        self._arrived = asyncio.Event()
        self._held_back = HeldBack(retry, self._arrived.set)
        self._settled_groups = 0
        self._session: Session | None = None
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Stop consuming, settle the messages in hand, and end `run`."""
        self._stopping.set()
        if self._session is not None:
            self._session.end("the door stops")

    async def run(self) -> None:
        """Run one session after another until `stop`.

        Raises:
            Permanent: the topology in RabbitMQ conflicts with the contract.
        """
        settings = self._settings
        failures = 0  # since the last session that settled a group
        while not self._stopping.is_set():
            settled_before = self._settled_groups
            try:
                async with open_session(connection_url(settings, as_user=DOOR), settings) as session:
                    await self._serve(session)
                    why = session.lost.result()
            except SESSION_ERRORS as exc:
                why = message_of(exc)
            if self._stopping.is_set():
                return
            if (
                self._settled_groups > settled_before
            ):  # mere connecting does not reset the backoff: such a session may fail at once
                failures = 0
            self._set_problem(f"not connected to RabbitMQ at {_without_password(settings)}: {why}")
            pause_s = min(RECONNECT_MAX_S, RECONNECT_MIN_S * 2**failures)
            failures = min(failures + 1, 10)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s * random.uniform(0.5, 1)):
                    await self._stopping.wait()

    async def _serve(self, session: Session) -> None:
        """Consume until the session is lost or the door stops; then settle the messages in hand."""
        self._waiting.clear()  # messages of the previous session, which RabbitMQ redelivers
        self.backlog.connection_lost()
        session.waited_s = lambda queue: self.backlog.age_s(time.time(), queue)
        await self._check_depths(session)
        self._session = session
        settling = asyncio.create_task(self._settle_all(session), name="signals.settle")
        checking = asyncio.create_task(self._check_periodically(session), name="signals.check")
        try:
            await self._consume(session)
            self._set_problem(None)
            await asyncio.wait((session.lost, settling, checking), return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                await session.stop_consuming()
        finally:
            session.end("its work has ended")
            self._arrived.set()
            try:  # let groups finish: the next session appends to the same journal as this one
                await asyncio.wait((settling,))
            finally:  # reached early if this wait is cancelled, as on process shutdown
                settling.cancel()
                # Cancelling a call closes its channel, on which messages are acknowledged. So this comes after `settling`.
                checking.cancel()
                session.leave()
                self._held_back.clear()
                self._session, self.in_hand = None, 0
                _metrics.IN_HAND.set(0)
                _metrics.CONNECTED.set(0)
        await asyncio.wait((checking,))
        if not checking.cancelled():
            checking.result()
        settling.result()

    async def _consume(self, session: Session) -> None:
        """Start to consume signals, copies of dead letters and, if the settings say so, device statuses."""
        for queue in self._signal_queues:
            await session.consume(queue, self._take)
        await session.consume(topology.DEAD_COPY, self._take)
        if self._settings.signals_reads_status:
            await session.consume(topology.STATUS, self._take)

    def _take(self, received: Received) -> None:
        """Note a delivery, and wake the task that settles messages."""
        self.backlog.record_delivery(received.queue)
        self._waiting.append(received)
        self.in_hand += 1
        _metrics.IN_HAND.set(self.in_hand)
        self._arrived.set()

    async def _settle_all(self, session: Session) -> None:
        """Settle messages in groups until the session is lost; when the door stops, until no message waits.

        While earlier groups are published and acknowledged, the next group is judged and recorded. A chunk of held-back messages
        is a group that was judged and recorded before; it starts once all earlier groups have finished.
        """
        finishing = deque[
            tuple[asyncio.Task[None], frozenset[Key]]
        ]()  # tasks, oldest first, with the keys that each group claims
        try:
            while not session.lost.done() or (self._stopping.is_set() and self._waiting):
                while finishing and finishing[0][0].done():
                    finishing.popleft()[0].result()
                if self._held_back.is_due and not self._stopping.is_set():
                    while finishing:
                        await finishing.popleft()[0]
                    disposition = self._held_back.take(self._group_size)
                elif self._waiting:
                    claimed = self._held_back.keys.union(*(keys for _, keys in finishing))
                    disposition = await self._processor.begin(self._next_group(), claimed)
                    if len(finishing) == MAX_GROUPS_PUBLISHING:
                        await finishing.popleft()[0]
                else:
                    self._arrived.clear()
                    await self._arrived.wait()
                    continue
                previous = finishing[-1][0] if finishing else None
                task = asyncio.create_task(self._finish(disposition, session, previous), name="signals.finish")
                task.add_done_callback(lambda _: self._arrived.set())
                finishing.append((task, disposition.held))
            for task, _ in finishing:
                await task
        except asyncio.CancelledError:
            for task, _ in finishing:
                task.cancel()
            raise
        finally:
            await asyncio.gather(*(task for task, _ in finishing), return_exceptions=True)

    def _next_group(self) -> list[Received]:
        """Take the waiting messages of the next group, oldest first.

        A group has at most one of `MAX_GROUPS_PUBLISHING` + 1 equal parts of the prefetch; the groups being published use the
        other parts.
        """
        group, body_bytes = list[Received](), 0
        while self._waiting and body_bytes < GROUP_BYTES and len(group) < self._group_size:
            group.append(self._waiting.popleft())
            body_bytes += len(group[-1].body)
        return group

    async def _finish(self, disposition: Disposition, session: Session, previous: asyncio.Task[None] | None) -> None:
        """Publish a group, and acknowledge it once the previous group has finished. Rejected messages are held back."""
        await self._processor.publish(disposition, session)
        if previous is not None:
            await previous
        rejected = await self._processor.acknowledge(disposition, session, one_by_one=len(self._held_back) > 0)
        self._held_back.add(rejected)
        settled = [received for received in disposition.received if received.tag not in rejected.rejected_by]
        if settled:
            self._settled_groups += 1
        self.in_hand -= len(settled)
        _metrics.IN_HAND.set(self.in_hand)

    async def _check_periodically(self, session: Session) -> None:
        """Check the queue depths, replace full consumers, repair the topology and save the backlog's time, until cancelled."""
        saved_at = repaired_at = time.monotonic()
        while True:
            await asyncio.sleep(DEPTH_CHECK_S)
            await self._check_depths(session)
            await self._replace_full_consumers(session)
            if time.monotonic() - repaired_at > REPAIR_S:
                await session.repair_topology()
                repaired_at = time.monotonic()
            if time.monotonic() - saved_at > SAVE_S and self.backlog.empty_at > self._state.state.empty_at:
                await asyncio.to_thread(self._state.remember_empty, self.backlog.empty_at)
                saved_at = time.monotonic()

    async def _replace_full_consumers(self, session: Session) -> None:
        """Replace consumers of whose prefetch held-back messages use up half, so that RabbitMQ still delivers other messages."""
        held_back = self._held_back
        if self._stopping.is_set() or len(held_back) > MAX_HELD_BACK or held_back.body_bytes > MAX_HELD_BACK_BYTES:
            return
        for consumer, count in held_back.by_consumer.items():
            if count >= self._settings.signals_prefetch / 2:
                await session.replace_consumer(consumer)

    async def _check_depths(self, session: Session) -> None:
        """Update the queue depths and the age of the backlog of signals."""
        for queue in self._signal_queues:
            counted_at = time.time()  # taken before the call, because its reply may come much later
            self.backlog.observe_depth(queue, await session.count(queue), counted_at)
        _metrics.DEPTH.labels(topology.RAW).set(self.backlog.count)  # includes the partitions
        for queue in OTHER_QUEUES:
            _metrics.DEPTH.labels(queue).set(await session.count(queue))
        _metrics.BACKLOG_AGE_SECONDS.set(self.backlog.age_s(time.time()))

    def _set_problem(self, problem: str | None) -> None:
        """Note why nothing is consumed, and log a new reason. None: consumption has started, which is always logged."""
        if problem is not None and problem != self.problem:
            log.warning("rabbitmq unavailable; consumption paused", reason=problem)
        if problem is None:
            status = [topology.STATUS] if self._settings.signals_reads_status else []
            log.info("consuming", queues=[*self._signal_queues, *status])
        self.problem = problem
        _metrics.CONNECTED.set(problem is None)


def _without_password(settings: Settings) -> str:
    """Return host and port of RabbitMQ."""
    parts = urlsplit(shown_url(settings))
    return f"{parts.hostname}:{parts.port or ''}".rstrip(":")
