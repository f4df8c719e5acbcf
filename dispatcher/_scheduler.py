"""Events of one owner one after the other, of all owners side by side: decided together, executed in one round trip."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import get_args

import structlog
from redis.exceptions import RedisError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential_jitter

from adapters.mqtt import Mqtt
from contracts.events import Subscribed
from contracts.names import Owner
from contracts.seq import wall_clock_ms
from dispatcher import _metrics
from dispatcher._effect_batch import EffectBatch
from dispatcher._effects import Effect, Load, Publish
from dispatcher._events import Answered, Event, Loaded, Missing, OfClaim, Published
from dispatcher._payloads import Found, MissingData, Payloads
from dispatcher._policy import DispatchPolicy
from dispatcher._publisher import Publisher, Window
from dispatcher._step import OpenClaim, OwnerState, step
from dispatcher._waiting import Done, Job, join
from queues import Queues
from queues.verbs.claims import Park

JOBS_A_BATCH = 200
OF_CLAIM = frozenset(get_args(OfClaim))

log = structlog.get_logger(__name__)
Parked = Callable[[str], None]  # told the data id of an entry that has just stepped aside


class Scheduler:
    """Takes events, asks `step` what follows, and executes the effects.

    While entries wait for room at the broker no new work is begun, so that what is claimed is published before its deadline;
    what is not begun stays unacknowledged at the broker or in the stream, and so bounds itself.
    """

    def __init__(
        self, policy: DispatchPolicy, queues: Queues, payloads: Payloads, mqtt: Mqtt, *, window: Window, parked: Parked
    ) -> None:
        self._policy, self._queues, self._payloads, self._parked = policy, queues, payloads, parked
        self.publisher = Publisher(mqtt, prefix=policy.topic_prefix, window=window, report=self.report, room=self.go_on)
        payloads.may_read = self.publisher.is_light.wait
        self._queued: dict[Owner, deque[Job] | None] = {}  # what waits behind the job that the owner has in hand
        self._ready: deque[Job] = deque()
        self._claims: deque[Job] = deque()  # ready, and about a claim in hand: they make room, so they never wait for it
        self._turns: list[tuple[Job, Event]] = []  # answers that lead to the next step of jobs in hand
        self._open_claims: dict[Owner, OpenClaim] = {}
        self._work, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self.redis_up = False

    @property
    def jobs(self) -> int:
        """Owners with an event in hand."""
        return len(self._queued)

    def offer(self, owner: Owner, event: Event, done: Done | None = None) -> None:
        """Handle `event` after all earlier events of the same owner; call `done` when its effects are carried out.

        Of those that wait behind another, `join` leaves only as many as one vehicle's share.
        """
        job = Job(owner, event, done)
        if owner not in self._queued:
            self._queued[owner] = None
            self._make_ready(job)
            return
        waiting = self._queued[owner]
        if waiting is None:
            self._queued[owner] = deque((job,))
        elif type(event) is not Subscribed or self._policy.reaches(event.topic_filter, owner):
            join(waiting, job)
        elif done is not None:  # a filter that gets none of its requests, of which one packet may name thousands
            done()

    def go_on(self) -> None:
        """There is room at the broker again."""
        self._work.set()

    def report(self, owner: Owner, event: OfClaim) -> None:
        """What became of a claim in hand."""
        if type(event) is not Published or event.reason_code != 0:
            self.offer(owner, event)
            return
        claim = self._open_claims.get(owner)  # as `step` would say: it is closed, and nothing is to be done, so it needs no turn
        if claim is not None and claim.is_of(event):
            del self._open_claims[owner]

    async def run(self) -> None:
        """Run batches until cancelled."""
        while True:
            await self._work.wait()
            started = time.perf_counter()
            await self._run_batch()
            _metrics.BATCH_SECONDS.observe(time.perf_counter() - started)
            await asyncio.sleep(0)  # a batch without verbs does not wait for anything: let others run

    async def settle(self) -> None:
        """Wait until nothing is in hand."""
        await self._idle.wait()

    def _make_ready(self, job: Job) -> None:
        (self._claims if type(job.event) in OF_CLAIM else self._ready).append(job)
        self._idle.clear()
        self._work.set()

    def _take(self) -> list[tuple[Job, Event]]:
        turns, self._turns = self._turns, []
        while self._claims and len(turns) < JOBS_A_BATCH:
            job = self._claims.popleft()
            turns.append((job, job.event))
        while self._ready and len(turns) < JOBS_A_BATCH and not self.publisher.backlog:
            job = self._ready.popleft()
            turns.append((job, job.event))
        return turns

    async def _run_batch(self) -> None:
        turns = self._take()
        if not turns:  # nothing is ready, or everything waits for room
            self._work.clear()
            return
        now = wall_clock_ms()
        batch = EffectBatch(self._queues, now, self._payloads.request_id_of)
        unanswered: list[Job] = []
        for job, event in turns:
            asked = [self._execute(job.owner, effect, batch) for effect in self._step(job.owner, event)]
            if any(asked):
                unanswered.append(job)
            if isinstance(event, Loaded):  # it is with the publisher now, or came too late
                self.publisher.expect(-len(event.payload))
        answers = await self._send(batch)
        turns_to_come = [(job, answer) for job, answer in zip(unanswered, answers, strict=True) if answer is not None]
        self._turns += turns_to_come
        for _, answer in turns_to_come:
            if isinstance(answer.verb, Park):
                self._parked(answer.verb.data_id)
        still = {id(job) for job, _ in turns_to_come}
        for job, _ in turns:
            if id(job) not in still:
                self._finish(job)

    def _step(self, owner: Owner, event: Event) -> list[Effect]:
        before = self._open_claims.get(owner)
        state, effects = step(OwnerState(self._policy, owner, before), event)
        if state.open_claim is None:
            self._open_claims.pop(owner, None)
        elif state.open_claim is not before:
            self._open_claims[owner] = state.open_claim
        return effects

    def _execute(self, owner: Owner, effect: Effect, batch: EffectBatch) -> bool:
        """Begin `effect`; whether Redis answers it."""
        match effect:
            case Publish():
                self.publisher.send(owner, effect)
            case Load(seq, claimed_ms):
                self._load(owner, seq, claimed_ms)
            case _:
                return batch.add(owner, effect)
        return False

    def _load(self, owner: Owner, seq: int, claimed_ms: int) -> None:
        def answer(found: Found | MissingData) -> None:
            if isinstance(found, Found):
                self.publisher.expect(len(found.payload))
                self.offer(owner, Loaded(seq, claimed_ms, *found))
            else:
                self.offer(owner, Missing(seq, claimed_ms, found.data_id))

        found = self._payloads.cached(seq)
        if found is None:
            self._payloads.fetch(owner, seq, answer)
            return
        for effect in self._step(owner, Loaded(seq, claimed_ms, *found)):
            if isinstance(effect, Publish):
                self.publisher.send(owner, effect)

    async def _send(self, batch: EffectBatch) -> list[Answered | None]:
        """The answers of this batch's verbs. Waits for Redis as long as it takes: every verb twice is as good as once."""
        if not batch:
            return []
        try:
            return await batch.run(repeated=False)
        except RedisError as exc:
            self._redis_is_away(str(exc))
        pauses = wait_exponential_jitter(multiplier=0.05, max=2, jitter=0.1)
        async for attempt in AsyncRetrying(retry=retry_if_exception_type(RedisError), wait=pauses, before_sleep=self._say_why):
            with attempt:
                answers = await batch.run(repeated=True)
        self.redis_is_back()
        return answers

    def redis_is_back(self) -> None:
        """Redis has answered."""
        self.redis_up = True
        _metrics.REDIS_UP.set(1)
        log.info("redis reachable")

    def _redis_is_away(self, reason: str) -> None:
        self.redis_up = False
        _metrics.REDIS_UP.set(0)
        log.warning("redis not reachable: deliveries wait", reason=reason)

    def _say_why(self, state: RetryCallState) -> None:
        self._redis_is_away(str(state.outcome.exception() if state.outcome else None))

    def _finish(self, job: Job) -> None:
        if job.done is not None:
            job.done()
        waiting = self._queued[job.owner]
        if waiting:
            self._make_ready(waiting.popleft())
            return
        del self._queued[job.owner]
        if not self._queued:
            self._idle.set()
