"""Handles the events of one queue in order, and the events of different queues concurrently.

Each batch of events needs one round trip to Redis.
"""

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
from dispatcher._events import ClaimEvent, Effect, Event, Forward, Load, Loaded, Missing, Publish, Published
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
CLAIM_EVENTS = frozenset(get_args(ClaimEvent))

ParkedHandler = Callable[[str], None]  # argument: the data_id of an entry that was just parked


class Scheduler:
    """Takes events, gets their effects from `step`, and carries the effects out.

    While claimed entries wait for room in the publish window, no new event is started, so that these entries are published before
    their deadline. Events that are not started stay unacknowledged in the broker or in the wake-up stream, which bound their
    number. `on_parked` is called for each entry that was parked.
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
        on_parked: ParkedHandler,
    ) -> None:
        self._policy, self._queues, self._payloads, self._messages, self._mqtt = policy, queues, payloads, messages, mqtt
        self._brakes, self._on_parked = brakes, on_parked
        self.publisher = Publisher(
            mqtt,
            topic_of=partial(topic_of, policy),
            ruling=brakes.ruling,
            window=window,
            report=self.report,
            on_empty_backlog=self.start_new_events,
        )
        payloads.may_read = messages.may_read = self.publisher.may_read.wait
        # The jobs that wait behind the current job of their queue; None if no job waits. An idle queue is missing.
        self._queued: dict[QueueName, deque[Job] | None] = {}
        self._ready: deque[Job] = deque()
        # Ready jobs with events of open claims. They never wait for room in the publish window, because they make it.
        self._ready_claim_events: deque[Job] = deque()
        self._answered: list[tuple[Job, Event]] = []  # jobs with the reply of Redis, which is the next event of the job
        self._open_claims: dict[QueueName, OpenClaim] = {}
        self._has_work, self._is_idle = asyncio.Event(), asyncio.Event()
        self._is_idle.set()
        self.redis = RedisRetry()

    @property
    def busy_queues(self) -> int:
        """The number of queues with unfinished events."""
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
        if waiting is None:  # the first waiting event is kept without a check, because a single event costs little
            self._queued[queue] = deque((job,))
        elif type(event) is not Subscribed or self._policy.reaches(event.topic_filter, queue):
            enqueue_job(waiting, job)
        elif done is not None:  # drop a subscription that matches no topic of the queue: one packet may have thousands
            done()

    def start_new_events(self) -> None:
        """Start the ready events, because no publish waits for room any more."""
        self._has_work.set()

    def report(self, queue: QueueName, event: ClaimEvent) -> None:
        """Handle an event of an open claim."""
        if type(event) is not Published or event.reason_code != 0:
            self.offer(queue, event)
            return
        # For a successful publish, `step` would close the claim without effects. Do that here, which needs no batch.
        claim = self._open_claims.get(queue)
        if claim is not None and claim.is_of(event):
            del self._open_claims[queue]

    async def run(self) -> None:
        """Run batches forever."""
        while True:
            await self._has_work.wait()
            started = time.perf_counter()
            await self._run_batch()
            _metrics.BATCH_SECONDS.observe(time.perf_counter() - started)

    async def wait_idle(self) -> None:
        """Wait until all events are finished."""
        await self._is_idle.wait()

    def _make_ready(self, job: Job) -> None:
        """Let the next batches take the job."""
        ready = self._ready_claim_events if type(job.event) in CLAIM_EVENTS else self._ready
        ready.append(job)
        self._is_idle.clear()
        self._has_work.set()

    def _take_jobs(self) -> list[tuple[Job, Event]]:
        """Take the jobs of the next batch, each with its next event.

        Answered jobs come first, then events of claims. New events are taken only while no publish waits for room.
        """
        jobs, self._answered = self._answered, []
        while self._ready_claim_events and len(jobs) < JOBS_PER_BATCH:
            job = self._ready_claim_events.popleft()
            jobs.append((job, job.event))
        while self._ready and len(jobs) < JOBS_PER_BATCH and not self.publisher.backlog:
            job = self._ready.popleft()
            jobs.append((job, job.event))
        return jobs

    async def _run_batch(self) -> None:
        """Handle one event of up to `JOBS_PER_BATCH` jobs, with a single round trip to Redis for all their verbs."""
        jobs = self._take_jobs()
        if not jobs:  # no job is ready, or all jobs wait for room in the window
            self._has_work.clear()
            return
        now = wall_clock_ms()
        batch = EffectBatch(self._queues, now, monotonic_ms(), self._payloads.request_id_of, self._brakes)
        unanswered: list[Job] = []
        for job, event in jobs:
            awaits_reply = [self._execute(job, effect, batch) for effect in self._step(job.queue, event)]
            if any(awaits_reply):
                unanswered.append(job)
            if isinstance(event, Loaded):  # `_load` counted its bytes; now the publisher counts them, or the payload was dropped
                self.publisher.add_backlog_bytes(-len(event.payload))
        self._mqtt.flush()  # send the publishes before waiting for Redis
        if not batch:
            await asyncio.sleep(0)  # let other tasks run, because `send` awaits nothing for an empty batch
        answers = await self.redis.send(batch)
        if self._brakes.is_outdated:
            await self._brakes.read()  # before any entry that this batch has claimed is published
        # A job whose verb got no answer, because its queue has corrupt keys, is finished.
        answered = [(job, answer) for job, answer in zip(unanswered, answers, strict=True) if answer is not None]
        self._answered += answered
        for _, answer in answered:
            if isinstance(answer.verb, Park):
                self._on_parked(answer.verb.data_id)
        unfinished = {id(job) for job, _ in answered}
        for job, _ in jobs:
            if id(job) not in unfinished:
                self._finish(job)

    def _step(self, queue: QueueName, event: Event) -> list[Effect]:
        """Update the open claim of the queue, and return the effects of the event."""
        old_claim = self._open_claims.get(queue)
        state, effects = step(OwnerState(self._policy, queue, old_claim), event)
        if state.open_claim is None:
            self._open_claims.pop(queue, None)
        elif state.open_claim is not old_claim:
            self._open_claims[queue] = state.open_claim
        return effects

    def _execute(self, job: Job, effect: Effect, batch: EffectBatch) -> bool:
        """Start `effect`; returns whether it needs a reply of Redis."""
        queue = job.queue
        match effect:
            case Publish():
                self.publisher.send(queue, effect)
            case Load(seq, claimed_ms):
                self._load(queue, seq, claimed_ms)
            case Forward(other_queue, event):
                # The job is done once both queues have handled the event.
                if job.done is not None:
                    job.done = after_two_calls(job.done)
                self.offer(other_queue, event, job.done)
            case _:
                return batch.add(queue, effect)
        return False

    # An entry is published in one of three ways: with a payload that is in the cache, with a payload that is loaded first, or, in
    # a compacted queue, with a small message that came with its claim.
    def _load(self, queue: QueueName, seq: int, claimed_ms: int) -> None:
        """Publish an entry if its payload is cached; otherwise fetch the payload, and publish once it is found.

        Messages of compacted queues are never cached.
        """

        def on_found(result: Found | MissingData) -> None:
            if isinstance(result, MissingData):
                self.offer(queue, Missing(seq, claimed_ms, result.data_id))
                return
            loaded = Loaded(seq, claimed_ms, *result)
            if queue in self._queued:  # keep the order of its unfinished events; count the bytes until `_run_batch` publishes
                self.publisher.add_backlog_bytes(len(loaded.payload))
                self.offer(queue, loaded)
            else:  # the queue is idle; publish now, because that needs no round trip to Redis
                self._publish(queue, loaded)

        if is_ecq(queue):
            self._messages.fetch(queue, seq, on_found)
            return
        result = self._payloads.cached(seq)
        if result is None:
            self._payloads.fetch(queue, seq, on_found)
            return
        self._publish(queue, Loaded(seq, claimed_ms, *result))

    def _publish(self, queue: QueueName, loaded: Loaded) -> None:
        """Handle `loaded` at once. Its only effect that needs an action is `Publish`."""
        for effect in self._step(queue, loaded):
            if isinstance(effect, Publish):
                self.publisher.send(queue, effect)

    def _finish(self, job: Job) -> None:
        """Call `done` of the job, and make the next job of the same queue ready."""
        if job.done is not None:
            job.done()
        waiting = self._queued[job.queue]
        if waiting:
            self._make_ready(waiting.popleft())
            return
        del self._queued[job.queue]
        if not self._queued:
            self._is_idle.set()
