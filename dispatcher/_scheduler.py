"""Handles the events of one queue in order and those of all queues concurrently, in batches of one round trip each."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import get_args

from dispatcher import _metrics
from dispatcher._brakes import Brakes
from dispatcher._ecq_messages import EcqMessages
from dispatcher._effect_batch import EffectBatch
from dispatcher._events import Effect, Event, Forward, Load, Loaded, Missing, OfClaim, Publish, Published
from dispatcher._monotonic import monotonic_ms
from dispatcher._payloads import Found, MissingData, Payloads
from dispatcher._policy import DispatchPolicy
from dispatcher._publisher import Publisher, Window
from dispatcher._queue_types import topic_of
from dispatcher._redis_retry import RedisRetry
from dispatcher._step import OpenClaim, OwnerState, step
from dispatcher._waiting import Done, Job, after_two_calls, enqueue_job
from manifold.contracts.events import Subscribed
from manifold.contracts.queue_names import QueueName, is_ecq
from manifold.contracts.seq import wall_clock_ms
from manifold.messaging.mqtt import Mqtt
from manifold.queues import Queues
from manifold.queues.verbs.claims import Park

JOBS_PER_BATCH = 200
OF_CLAIM = frozenset(get_args(OfClaim))

Parked = Callable[[str], None]  # called with the data_id of an entry that was just parked


class Scheduler:
    """Takes events, gets their effects from `step`, and carries them out.

    While entries wait for room at the broker, no new event is started, so that claimed entries are published before their
    deadline. Events that are not started stay unacknowledged at the broker or in the stream, which bounds them.
    """

    def __init__(
        self,
        policy: DispatchPolicy,
        queues: Queues,
        payloads: Payloads,
        messages: EcqMessages,
        mqtt: Mqtt,
        *,
        brakes: Brakes,
        window: Window,
        parked: Parked,
    ) -> None:
        self._policy, self._queues, self._payloads, self._parked, self._mqtt = policy, queues, payloads, parked, mqtt
        self._brakes = brakes
        self.publisher = Publisher(
            mqtt,
            topic_of=partial(topic_of, policy),
            ruling=brakes.ruling,
            window=window,
            report=self.report,
            room=self.go_on,
        )
        payloads.may_read = messages.may_read = self.publisher.is_light.wait
        self._messages = messages
        # absent: the queue is idle; None: it has a job in hand, and none waits; deque: the jobs that wait behind that one
        self._queued: dict[QueueName, deque[Job] | None] = {}
        self._ready: deque[Job] = deque()
        self._claims: deque[Job] = deque()  # ready events of open claims; they make room, so they never wait for it
        self._turns: list[tuple[Job, Event]] = []  # replies that lead to the next step of jobs in hand
        self._open_claims: dict[QueueName, OpenClaim] = {}
        self._work, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self.redis = RedisRetry()

    @property
    def jobs(self) -> int:
        """The number of owners with an event in hand."""
        return len(self._queued)

    def offer(self, queue: QueueName, event: Event, done: Done | None = None) -> None:
        """Handle `event` after all earlier events of the same queue, and call `done` when its effects are carried out.

        `enqueue_job` bounds the number of waiting events.
        """
        job = Job(queue, event, done)
        if queue not in self._queued:
            self._queued[queue] = None
            self._make_ready(job)
            return
        waiting = self._queued[queue]
        # the first waiting event is kept unfiltered: one costs little
        if waiting is None:
            self._queued[queue] = deque((job,))
        elif type(event) is not Subscribed or self._policy.reaches(event.topic_filter, queue):
            enqueue_job(waiting, job)
        elif done is not None:  # a filter that matches none of its topics; one packet may have thousands
            done()

    def go_on(self) -> None:
        """Start new events: there is room at the broker again."""
        self._work.set()

    def report(self, queue: QueueName, event: OfClaim) -> None:
        """Handle an event of an open claim."""
        if type(event) is not Published or event.reason_code != 0:
            self.offer(queue, event)
            return
        claim = self._open_claims.get(queue)  # as `step` would: the claim is closed without effects, so it needs no batch
        if claim is not None and claim.is_of(event):
            del self._open_claims[queue]

    async def run(self) -> None:
        """Run batches forever."""
        while True:
            await self._work.wait()
            started = time.perf_counter()
            await self._run_batch()
            _metrics.BATCH_SECONDS.observe(time.perf_counter() - started)

    async def settle(self) -> None:
        """Wait until no event is in hand."""
        await self._idle.wait()

    def _make_ready(self, job: Job) -> None:
        (self._claims if type(job.event) in OF_CLAIM else self._ready).append(job)
        self._idle.clear()
        self._work.set()

    def _take(self) -> list[tuple[Job, Event]]:
        turns, self._turns = self._turns, []
        while self._claims and len(turns) < JOBS_PER_BATCH:
            job = self._claims.popleft()
            turns.append((job, job.event))
        while self._ready and len(turns) < JOBS_PER_BATCH and not self.publisher.backlog:
            job = self._ready.popleft()
            turns.append((job, job.event))
        return turns

    async def _run_batch(self) -> None:
        """Take one step of up to JOBS_PER_BATCH jobs, with a single round trip to Redis for all their verbs."""
        turns = self._take()
        if not turns:  # nothing is ready, or everything waits for room in the window
            self._work.clear()
            return
        now = wall_clock_ms()
        batch = EffectBatch(self._queues, now, monotonic_ms(), self._payloads.request_id_of, self._brakes)
        unanswered: list[Job] = []
        for job, event in turns:
            asked = [self._execute(job, effect, batch) for effect in self._step(job.queue, event)]
            if any(asked):
                unanswered.append(job)
            if isinstance(event, Loaded):  # the publisher counts it now, or it was dropped
                self.publisher.add_backlog_bytes(-len(event.payload))
        self._mqtt.flush()  # send the publishes before waiting for Redis
        if not batch:
            await asyncio.sleep(0)  # there is nothing to await: let other tasks run
        answers = await self.redis.send(batch)
        if self._brakes.is_outdated:
            await self._brakes.read()  # before anything that was claimed here is published
        turns_to_come = [(job, answer) for job, answer in zip(unanswered, answers, strict=True) if answer is not None]
        self._turns += turns_to_come
        for _, answer in turns_to_come:
            if isinstance(answer.verb, Park):
                self._parked(answer.verb.data_id)
        unfinished = {id(job) for job, _ in turns_to_come}
        for job, _ in turns:
            if id(job) not in unfinished:
                self._finish(job)

    def _step(self, queue: QueueName, event: Event) -> list[Effect]:
        before = self._open_claims.get(queue)
        state, effects = step(OwnerState(self._policy, queue, before), event)
        if state.open_claim is None:
            self._open_claims.pop(queue, None)
        elif state.open_claim is not before:
            self._open_claims[queue] = state.open_claim
        return effects

    def _execute(self, job: Job, effect: Effect, batch: EffectBatch) -> bool:
        """Start `effect`; returns whether it waits for a reply of Redis."""
        queue = job.queue
        match effect:
            case Publish():
                self.publisher.send(queue, effect)
            case Load(seq, claimed_ms):
                self._load(queue, seq, claimed_ms)
            case Forward(other, event):
                # The event is done once both queues have handled it.
                job.done = done = None if job.done is None else after_two_calls(job.done)
                self.offer(other, event, done)
            case _:
                return batch.add(queue, effect)
        return False

    # Three ways lead to Publish: a payload in the cache, one that is loaded first, and a small message that came with its claim.
    def _load(self, queue: QueueName, seq: int, claimed_ms: int) -> None:
        """Publish the payload of an entry if it is cached; otherwise fetch it, and handle it once it is found or missing."""

        def on_found(found: Found | MissingData) -> None:
            if isinstance(found, MissingData):
                self.offer(queue, Missing(seq, claimed_ms, found.data_id))
            elif queue in self._queued:  # with events in hand: keep their order, and count the bytes until _run_batch takes it
                self.publisher.add_backlog_bytes(len(found.payload))
                self.offer(queue, Loaded(seq, claimed_ms, *found))
            else:  # the queue is idle: publishing needs no round trip to Redis, so do it now
                self._publish(queue, Loaded(seq, claimed_ms, *found))

        if is_ecq(queue):
            self._messages.fetch(queue, seq, on_found)
            return
        found = self._payloads.cached(seq)
        if found is None:
            self._payloads.fetch(queue, seq, on_found)
            return
        self._publish(queue, Loaded(seq, claimed_ms, *found))

    def _publish(self, queue: QueueName, loaded: Loaded) -> None:
        for effect in self._step(queue, loaded):
            if isinstance(effect, Publish):
                self.publisher.send(queue, effect)

    def _finish(self, job: Job) -> None:
        if job.done is not None:
            job.done()
        waiting = self._queued[job.queue]
        if waiting:
            self._make_ready(waiting.popleft())
            return
        del self._queued[job.queue]
        if not self._queued:
            self._idle.set()
