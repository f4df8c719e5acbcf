"""The replicas of a simulated world: dispatcher processes around the real `step`, one effect at a time."""

import random
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from redis.asyncio import Redis

from dispatcher._effect_batch import EffectBatch
from dispatcher._events import (
    Answered,
    ClaimEvent,
    DeadlinePassed,
    Effect,
    Event,
    Forward,
    Ignore,
    Load,
    Loaded,
    Missing,
    NotPublished,
    Publish,
    Published,
    PublishLost,
    Withheld,
    Woken,
)
from dispatcher._policy import DispatchPolicy
from dispatcher._step import OpenClaim, OwnerState, step
from manifold.contracts import keys
from manifold.contracts.names import Owner
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.queues import Policy, Queues
from manifold.queues.verbs.claims import Park
from manifold.settings import Settings
from tests.dispatcher.lockstep import Asking
from tests.dispatcher.roads import Roads
from tests.faults.history import Line, What

DEADLINE_S = 30
STAYS_AWAY = 0.5  # the share of dying dispatchers
SKEWS_MS = (-300_000, 0, 0, 300_000)  # clock skews of replicas


@cache
def settings_of(max_attempts: int, retention_days: float) -> Settings:
    """The settings of a world."""
    return Settings(
        ack_deadline_seconds=DEADLINE_S,
        ack_deadline_max_seconds=120,
        wake_shards=1,
        max_attempts=max_attempts,
        retention_days=retention_days,
    )


@dataclass
class Job:
    """An event that a replica is processing, with its remaining effects."""

    owner: str
    event: Event
    effects: deque[Effect]
    retry: EffectBatch | None = None  # a verb that was executed although its reply was lost


@dataclass
class Replica:
    """A dispatcher process: the state that it would lose by dying."""

    skew_ms: int = 0  # the skew of its clock
    events: list[tuple[str, Event]] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    open_claims: dict[str, OpenClaim] = field(default_factory=dict)
    air: list[tuple[str, Publish]] = field(default_factory=list)  # publishes that have not reached the broker
    answers: list[tuple[str, ClaimEvent]] = field(default_factory=list)  # replies on their way back


class Replicas(Roads):
    """Dispatcher processes over queues in a real Redis, connected to the simulated network."""

    def __init__(self, name: str, rng: random.Random, settings: Settings, *, calm: bool, replicas: int, vehicles: int) -> None:
        super().__init__(name, rng, calm=calm, vehicles=vehicles)
        self.redis = Asking(name, lambda: self.now)
        self.queues, self.policy = Queues(cast(Redis, self.redis), Policy.of(settings)), DispatchPolicy.of(settings)
        self.replicas = [Replica(skew_ms=0 if calm else rng.choice(SKEWS_MS)) for _ in range(replicas)]
        self.adrift: list[tuple[str, Publish]] = []  # publishes of an ended connection, which the broker may still read
        self.missing: dict[int, Owner] = {}  # seq of an entry without its data
        self.recorded: dict[tuple[str, int], list[Outcome]] = {}
        self.releases: set[int] = set()  # seqs of entries of a campaign
        self.braked = False  # that campaign
        self._drained = "0-0"  # the last outcome that the recorder has read

    def take_from_feed(self, replica: Replica) -> None:
        if self.feed:
            replica.events.append(self.feed.popleft())

    def _begin(self, replica: Replica, owner: str, event: Event) -> None:
        replica.jobs[owner] = Job(owner, event, deque(self._step(replica, owner, event)))

    def _step(self, replica: Replica, owner: str, event: Event) -> list[Effect]:
        state, effects = step(OwnerState(self.policy, owner, replica.open_claims.get(owner)), event)
        if state.open_claim is None:
            replica.open_claims.pop(owner, None)
        else:
            replica.open_claims[owner] = state.open_claim
        return effects

    async def work(self, replica: Replica) -> None:
        """Begin one job, or carry out one effect of a job; a job without remaining effects is done."""
        waiting = list(dict.fromkeys(owner for owner, _ in replica.events if owner not in replica.jobs))
        choices = [*waiting, *replica.jobs]
        if not choices:
            return
        owner = self.rng.choice(choices)
        if owner in waiting:
            place = next(n for n, (of, _) in enumerate(replica.events) if of == owner)
            self._begin(replica, *replica.events.pop(place))
        job = replica.jobs[owner]
        if job.effects:
            await self._carry(replica, job)
        while self.calm and any(isinstance(effect, Load | Publish) for effect in job.effects):
            await self._carry(replica, job)
        if not job.effects:
            del replica.jobs[owner]
            if isinstance(job.event, DeadlinePassed):
                await self.queues.settle_due(0, [owner], self.now + replica.skew_ms)

    async def _carry(self, replica: Replica, job: Job) -> None:
        effect = job.effects[0]
        match effect:
            case Ignore():
                pass
            case Forward(other, event):
                replica.events.append((other, event))
            case Publish():
                replica.air.append((job.owner, effect))
                if self.calm:
                    self.reach_broker(replica)
            case Load(seq, claimed_ms):
                gone = Missing(seq, claimed_ms, f"{self.name}-{seq}")
                found = gone if seq in self.missing else Loaded(seq, claimed_ms, "r", "d", b"")
                if self.calm:
                    job.effects.extend(self._step(replica, job.owner, found))
                else:
                    replica.answers.append((job.owner, found))
            case _:
                batch = job.retry or EffectBatch(self.queues, self.now + replica.skew_ms, asked_at=self.now)
                verb = batch.add(job.owner, effect) if job.retry is None else True
                answers = await batch.run(repeated=job.retry is not None)
                await self.tell_ended()
                if verb and job.retry is None and not self.calm and self.rng.random() < 0.03:
                    job.retry = batch
                    return
                job.retry = None
                if isinstance(effect, Park) and await self._is_parked(job.owner, effect.seq):
                    self.tell(What.PARKED, job.owner, effect.seq)
                job.effects.popleft()
                for answer in answers:
                    assert isinstance(answer, Answered)
                    following = self._step(replica, job.owner, answer)
                    job.effects.extend(following)
                    self._note_claims(job.owner, following, answer.asked_at, skewed=replica.skew_ms != 0)
                return
        job.effects.popleft()

    async def _is_parked(self, owner: str, seq: int) -> bool:
        return await self.redis.execute_command("ZSCORE", keys.parked(Owner(owner)), seq) is not None

    async def tell_ended(self) -> None:
        """Move new items of the outcomes stream into the history; the recorder has them on disk at once."""
        for record_id, (_, payload) in await self.redis.execute_command("XRANGE", keys.OUTCOMES, f"({self._drained}", "+"):
            self._drained = record_id.decode()
            self.recorded_one(payload)

    def recorded_one(self, payload: bytes) -> None:
        """Note that the recorder has this outcome on disk."""
        record = OutcomeRecord.from_wire(payload)
        self.recorded.setdefault((record.vin, record.seq), []).append(record.outcome)
        self.tell(What.ENDED, record.vin, record.seq, note=record.outcome.value)

    def _note_claims(self, owner: str, following: list[Effect], at_ms: int, *, skewed: bool) -> None:
        for load in following:
            what = load.entry if isinstance(load, Publish) else load
            if isinstance(what, Load | Loaded):
                if skewed:
                    self.harm("a clock is wrong: deadlines pass by it that have not passed")
                self.claimed(owner, what.seq, at_ms)

    def claimed(self, owner: str, seq: int, at_ms: int) -> None:
        """Note that an entry was put in flight."""
        self.history.tell(Line(at_ms / 1000, What.PUBLISHED, owner, seq))

    def reach_broker(self, replica: Replica) -> None:
        """Let one publish reach the broker unless its deadline has passed; its reply is on the way."""
        if self.adrift and self.rng.random() < 0.3:
            owner, publish = self.adrift.pop(self.rng.randrange(len(self.adrift)))
            if publish.send_by > self.now:
                self.publish(owner, publish.entry.seq)
        if replica.air:
            owner, publish = replica.air.pop(self.rng.randrange(len(replica.air)))
            seq, claimed_ms = publish.entry.seq, publish.entry.claimed_ms
            if publish.send_by <= self.now:
                replica.answers.append((owner, NotPublished(seq, claimed_ms)))
            elif self.braked and seq in self.releases:
                replica.answers.append((owner, Withheld(seq, claimed_ms, self.now + replica.skew_ms, "braked")))
            else:
                replica.answers.append((owner, Published(seq, claimed_ms, self.publish(owner, seq))))

    def deliver_answer(self, replica: Replica) -> None:
        """Let one reply of the broker reach the replica."""
        if replica.answers:
            replica.events.append(replica.answers.pop(self.rng.randrange(len(replica.answers))))

    def crash(self, replica: Replica) -> None:
        """Kill the replica (`kill -9`): unfinished events are redelivered, and publishes under way may have reached the broker.

        If it stays away longer than its session lives, the broker discards its events.
        """
        repeated = [(job.owner, job.event) for job in replica.jobs.values()] + replica.events
        of_redis = Woken if self.rng.random() < STAYS_AWAY else object
        again = [(o, e) for o, e in repeated if isinstance(e, of_redis) and not isinstance(e, ClaimEvent | DeadlinePassed)]
        self.feed.extendleft(reversed(again))
        self._let_drift(replica)
        self.harm("kill -9 of a dispatcher")
        self.replicas[self.replicas.index(replica)] = Replica(skew_ms=replica.skew_ms)

    def cut_off(self, replica: Replica) -> None:
        """Break its connection to the broker: no PUBACK arrives, whether or not the broker has the message."""
        self._let_drift(replica)
        self.harm("a dispatcher's connection to the broker broke")
        replica.events += [(owner, self._lost(publish.entry.seq, publish.entry.claimed_ms)) for owner, publish in replica.air]
        lost = [(o, self._lost(e.seq, e.claimed_ms) if isinstance(e, Published) else e) for o, e in replica.answers]
        replica.air, replica.answers = [], []
        replica.events += lost

    def _lost(self, seq: int, claimed_ms: int) -> PublishLost:
        return PublishLost(seq, claimed_ms, alone=self.rng.random() < 0.2)

    def _let_drift(self, replica: Replica) -> None:
        """Drop half of the publishes under way; deliver the others at any time before their deadline."""
        for owner, publish in replica.air:
            if self.rng.random() < 0.5:
                self.adrift.append((owner, publish))

    async def look_at_deadlines(self, replica: Replica) -> None:
        due: Any = await self.redis.execute_command("ZRANGEBYSCORE", keys.deadlines(0), "-inf", self.now + replica.skew_ms)
        replica.events += [(owner.decode(), DeadlinePassed()) for owner in due]
