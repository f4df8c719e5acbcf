"""Keeps the door connected to RabbitMQ and settles messages in groups, one session after another."""

import asyncio
import contextlib
import random
import time
from collections import deque
from typing import NamedTuple
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
SAVE_S = 10.0  # between two saves of the time until which the backlog was delivered
RECONNECT_MIN_S, RECONNECT_MAX_S = 0.5, 15.0  # backoff between connection attempts
MAX_COUNTED_FAILURES = 10  # by then, the backoff has long reached its maximum
GROUP_BYTES = 4 << 20  # body bytes settled as one group
MAX_GROUPS_PUBLISHING = 2  # groups that wait for their confirms while the next group is judged and recorded
# Above this number of held-back messages, or of bytes in their bodies, consumers are not replaced: no more messages are delivered
# than the prefetch of the current consumers allows.
MAX_HELD_BACK, MAX_HELD_BACK_BYTES = 1000, 32 << 20
# Queues whose depth is measured in addition to that of the signal queues.
OTHER_QUEUES = (topology.RETRY, topology.DEAD, topology.STATUS, topology.PROCESSED, topology.DEAD_COPY)

log = structlog.get_logger(__name__)


class _UnfinishedGroup(NamedTuple):
    """A judged and recorded group, which `task` publishes and acknowledges. The group claims `keys` until then."""

    task: asyncio.Task[None]
    keys: frozenset[Key]


class Consumer:
    """Receives and settles messages while `run` runs. `problem` says why nothing is consumed; it is None while consuming."""

    def __init__(self, settings: Settings, processor: Processor, state: StateFile, retry: Retry) -> None:
        self.problem: str | None = "not connected yet"
        self._signal_queues = (topology.RAW, *(queue.name for queue in topology.partitions(settings.signals_partitions)))
        self.backlog = Backlogs(self._signal_queues, settings.signals_nonce_seconds, in_flight=settings.signals_prefetch)
        self.in_hand = 0  # messages delivered and not acknowledged
        self._settings, self._processor, self._state = settings, processor, state
        # RabbitMQ delivers no more than the prefetch of a queue. The groups being published and the next one share it equally.
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
            # A session that only connects, and then fails at once, does not reset the backoff.
            if self._settled_groups > settled_before:
                failures = 0
            self._set_problem(f"not connected to RabbitMQ at {_host_and_port(settings)}: {why}")
            pause_s = min(RECONNECT_MAX_S, RECONNECT_MIN_S * 2**failures)
            failures = min(failures + 1, MAX_COUNTED_FAILURES)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s * random.uniform(0.5, 1)):
                    await self._stopping.wait()

    async def _serve(self, session: Session) -> None:
        """Consume until the session is lost or the door stops; then settle the messages in hand."""
        self._waiting.clear()  # messages of the previous session, which RabbitMQ redelivers
        self.backlog.connection_lost()
        session.max_wait_s = lambda queue: self.backlog.queue_age_s(queue, time.time())
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
            self._arrived.set()  # wakes `settling`, which ends with the session
            try:  # let groups finish: the next session appends to the same journal as this one
                await asyncio.wait((settling,))
            finally:  # reached early if this wait is cancelled, as on process shutdown
                settling.cancel()
                # Cancelling a call closes its channel, on which messages are acknowledged. So this comes after `settling`.
                checking.cancel()
                session.ignore_deliveries()
                self._held_back.clear()
                self._session, self.in_hand = None, 0
                _metrics.IN_HAND.set(0)
                _metrics.CONNECTED.set(0)
        await asyncio.wait((checking,))
        if not checking.cancelled():
            checking.result()  # raises the error that ended the checks
        settling.result()  # raises the error that ended the settling

    @property
    def _consumed_queues(self) -> list[str]:
        """The queues of signals and of dead-letter copies and, if the settings say so, that of device statuses."""
        status = [topology.STATUS] if self._settings.signals_reads_status else []
        return [*self._signal_queues, topology.DEAD_COPY, *status]

    async def _consume(self, session: Session) -> None:
        """Start to consume every queue."""
        for queue in self._consumed_queues:
            await session.consume(queue, self._on_received)

    def _on_received(self, received: Received) -> None:
        """Count a delivered message, append it to the waiting ones, and wake the task that settles them."""
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
        unfinished = deque[_UnfinishedGroup]()  # oldest first
        try:
            while not session.lost.done() or (self._stopping.is_set() and self._waiting):
                while unfinished and unfinished[0].task.done():
                    unfinished.popleft().task.result()  # raises the error of a failed group
                if self._held_back.is_due and not self._stopping.is_set():
                    while unfinished:
                        await unfinished.popleft().task
                    disposition = self._held_back.take_chunk(self._group_size)
                elif self._waiting:
                    keys_in_progress = self._held_back.keys.union(*(group.keys for group in unfinished))
                    disposition = await self._processor.begin(self._next_group(), keys_in_progress)
                    if len(unfinished) == MAX_GROUPS_PUBLISHING:
                        await unfinished.popleft().task
                else:
                    self._arrived.clear()
                    await self._arrived.wait()
                    continue
                previous = unfinished[-1].task if unfinished else None
                task = asyncio.create_task(self._finish(disposition, session, previous), name="signals.finish")
                task.add_done_callback(lambda _: self._arrived.set())
                unfinished.append(_UnfinishedGroup(task, disposition.claimed_keys))
            for group in unfinished:
                await group.task
        except asyncio.CancelledError:
            for group in unfinished:
                group.task.cancel()
            raise
        finally:
            await asyncio.gather(*(group.task for group in unfinished), return_exceptions=True)

    def _next_group(self) -> list[Received]:
        """Remove the messages of the next group from the waiting ones and return them, oldest first.

        A group has at most `_group_size` messages, and ends with the message that brings its bodies to `GROUP_BYTES` or more.
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
        """Check queue depths, replace full consumers, repair the topology and save the state of the backlog, until cancelled."""
        saved_at = repaired_at = time.monotonic()
        while True:
            await asyncio.sleep(DEPTH_CHECK_S)
            await self._check_depths(session)
            await self._replace_full_consumers(session)
            if time.monotonic() - repaired_at > REPAIR_S:
                await session.repair_topology()
                repaired_at = time.monotonic()
            delivered_until = self.backlog.delivered_until
            if time.monotonic() - saved_at > SAVE_S and delivered_until > self._state.state.empty_at:
                await asyncio.to_thread(self._state.save_delivered_until, delivered_until)
                saved_at = time.monotonic()

    async def _replace_full_consumers(self, session: Session) -> None:
        """Replace each consumer half of whose prefetch is used up by held-back messages, so that it gets other messages, too."""
        held_back = self._held_back
        has_too_many = len(held_back) > MAX_HELD_BACK or held_back.body_bytes > MAX_HELD_BACK_BYTES
        if self._stopping.is_set() or has_too_many:
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
        """Set why nothing is consumed, and log a new reason. None: consumption has started, which is always logged."""
        if problem is not None and problem != self.problem:
            log.warning("rabbitmq unavailable; consumption paused", reason=problem)
        if problem is None:
            log.info("consuming from rabbitmq", queues=self._consumed_queues)
        self.problem = problem
        _metrics.CONNECTED.set(problem is None)


def _host_and_port(settings: Settings) -> str:
    """Return `<host>:<port>` of RabbitMQ, without user and password; only the host if the URL has no port."""
    parts = urlsplit(shown_url(settings))
    return f"{parts.hostname}:{parts.port or ''}".rstrip(":")
