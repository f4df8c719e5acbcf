"""A small world around `step`: replicas, a broker's sessions and vehicles, moved one effect at a time by a seeded adversary.

The queues are the real ones in a real Redis; time is a number. The adversary decides which replica gets an event, in which order
effects are carried out, when the broker's answers arrive, which answers of Redis are lost, and who dies. Nothing here sleeps.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from redis.asyncio import Redis

from contracts import keys
from contracts.events import Acked, Connected, Disconnected, Subscribed
from contracts.names import Owner
from contracts.seq import SeqSource
from contracts.settings import Settings
from contracts.topics import request_filter, request_topic
from dispatcher._carry import Round
from dispatcher._rules import Rules
from dispatcher._step import Hand, State, step
from dispatcher._vocabulary import (
    Answered,
    DeadlinePassed,
    Effect,
    Event,
    Heard,
    Ignore,
    Load,
    Loaded,
    OfClaim,
    Publish,
    Published,
    PublishLost,
    RecordOutcome,
    Woken,
)
from queues import Policy, Queues

START_MS = 1_800_000_000_000
EXPIRIES_S = (0, 60, 3600)


@dataclass
class Session:
    """What the broker holds for a vehicle."""

    expiry_s: int
    subscribed: bool = False
    unacked: list[int] = field(default_factory=list)
    until_ms: int | None = None  # set while the vehicle is away


@dataclass
class Vehicle:
    """A vehicle: what it got, as (seq, dup, number of its session), and what it acknowledged."""

    vin: Owner
    session: Session | None = None
    sessions: int = 0
    connected_at: int | None = None
    got: list[tuple[int, bool, int]] = field(default_factory=list)
    in_time: list[tuple[int, bool, int]] = field(default_factory=list)  # what it had got before the first deadline passed
    acked: set[int] = field(default_factory=set)


@dataclass
class Job:
    """An event in a replica's hand, with the effects that are still to be carried out."""

    owner: Owner
    event: Event
    effects: deque[Effect]
    retry: Round | None = None  # this verb was carried out, and its answer was lost


@dataclass
class Replica:
    """A dispatcher process: what it would lose by dying."""

    inbox: list[tuple[Owner, Event]] = field(default_factory=list)
    jobs: dict[Owner, Job] = field(default_factory=dict)
    hands: dict[Owner, Hand] = field(default_factory=dict)
    air: list[tuple[Owner, Publish]] = field(default_factory=list)  # publishes that have not reached the broker
    answers: list[tuple[Owner, OfClaim]] = field(default_factory=list)  # what comes back to it


class World:
    """`calm`: nobody dies, no answer is lost, no deadline passes, and nothing changes between a claim and its publish."""

    def __init__(self, seed: int, redis: Redis, *, calm: bool, replicas: int = 2, vehicles: int = 2) -> None:
        settings = Settings(ack_deadline_seconds=30, ack_deadline_max_seconds=120)
        self.rng, self.calm, self.now = random.Random(seed), calm, START_MS
        self.queues, self.rules = Queues(redis, Policy.of(settings)), Rules.of(settings)
        self.seqs = SeqSource(0, clock_ms=lambda: self.now)
        self.vehicles = [Vehicle(Owner(f"SIM{seed}-{calm}-{n}")) for n in range(vehicles)]
        self.replicas = [Replica() for _ in range(replicas)]
        self.feed: deque[tuple[Owner, Event]] = deque()  # at least once: what a dying replica had in hand comes back
        self.queued: dict[Owner, list[int]] = {v.vin: [] for v in self.vehicles}
        self.outcomes: set[tuple[str, int]] = set()

    # The adversary ----------------------------------------------------------------------------------------------------

    async def run(self, moves: int) -> None:
        """So many moves, whichever the seed chooses."""
        for _ in range(moves):
            self.now += self.rng.choice((1, 1, 1, 2, 50))
            await self._move()

    async def _move(self) -> None:
        dice, vehicle, replica = self.rng.random(), self.rng.choice(self.vehicles), self.rng.choice(self.replicas)
        if dice < 0.05:
            await self.enqueue(vehicle)
        elif dice < 0.22:
            self._move_vehicle(vehicle)
        elif dice < 0.32:
            self.take_from_feed(replica)
        elif dice < 0.85:
            await self.work(replica)
        elif dice < 0.93:
            self.reach_broker(replica)
        elif dice < 0.97:
            self._deliver_answer(replica)
        elif not self.calm:
            await self._harm(replica)

    async def _harm(self, replica: Replica) -> None:
        match self.rng.randrange(5):
            case 0:
                self.crash(replica)
            case 1:
                self.cut_off(replica)
            case 2:
                self.now += self.rng.choice((1_000, 31_000, 61_000, 4_000_000))
            case _:
                await self.look_at_deadlines(replica)

    def _move_vehicle(self, vehicle: Vehicle) -> None:
        if vehicle.connected_at is None:
            self.connect(vehicle, clean=self.rng.random() < 0.3, expiry_s=self.rng.choice(EXPIRIES_S))
            return
        moves: list[Callable[[Vehicle], None]] = [
            self.sign,
            self.sign,
            self.subscribe,
            self.ack,
            self.ack,
            self.ack,
            self.disconnect,
        ]
        self.rng.choice(moves)(vehicle)
        if self.rng.random() < 0.03:
            self.connect(vehicle, clean=self.rng.random() < 0.5, expiry_s=self.rng.choice(EXPIRIES_S))

    # The platform -----------------------------------------------------------------------------------------------------

    async def enqueue(self, vehicle: Vehicle) -> None:
        seq = self.seqs.next()
        self.queued[vehicle.vin].append(seq)
        batch = self.queues.batch()
        batch.enqueue(vehicle.vin, [(seq, "r")], self.now)
        (reply,) = await batch.run()
        if reply.word == "ready":
            self.feed.append((vehicle.vin, Woken()))

    # Vehicle and broker -----------------------------------------------------------------------------------------------

    def connect(self, vehicle: Vehicle, *, clean: bool, expiry_s: int) -> None:
        if vehicle.connected_at is not None:
            self.disconnect(vehicle, reason="discarded" if clean else "takenover")
        self._expire(vehicle)
        vehicle.connected_at = self.now
        self.feed.append((vehicle.vin, Connected(vehicle.vin, self.now, clean, expiry_s)))
        if clean or vehicle.session is None:
            vehicle.session, vehicle.sessions = Session(expiry_s), vehicle.sessions + 1
            return
        vehicle.session.expiry_s, vehicle.session.until_ms = expiry_s, None
        vehicle.got += [(seq, True, vehicle.sessions) for seq in vehicle.session.unacked]

    def disconnect(self, vehicle: Vehicle, reason: str = "tcp_closed") -> None:
        assert vehicle.connected_at is not None
        assert vehicle.session is not None
        self.feed.append((vehicle.vin, Disconnected(vehicle.vin, self.now, vehicle.connected_at, None, reason)))
        vehicle.connected_at, vehicle.session.until_ms = None, self.now + vehicle.session.expiry_s * 1000
        if reason == "discarded" or vehicle.session.expiry_s == 0:
            vehicle.session = None
        self.now += 1

    def _expire(self, vehicle: Vehicle) -> None:
        session = vehicle.session
        if session is not None and session.until_ms is not None and session.until_ms < self.now:
            vehicle.session = None

    def sign(self, vehicle: Vehicle) -> None:
        self.feed.append((vehicle.vin, Heard()))

    def subscribe(self, vehicle: Vehicle) -> None:
        assert vehicle.session is not None
        vehicle.session.subscribed = True
        self.feed.append((vehicle.vin, Subscribed(vehicle.vin, self.now, request_filter("agent", vehicle.vin), True)))

    def ack(self, vehicle: Vehicle) -> None:
        """Of the oldest unacknowledged message."""
        if vehicle.session is not None and vehicle.session.unacked:
            seq = vehicle.session.unacked.pop(0)
            vehicle.acked.add(seq)
            self.feed.append(
                (vehicle.vin, Acked(vehicle.vin, self.now, request_topic("agent", vehicle.vin, "r"), seq, None, None))
            )

    def _publish(self, owner: Owner, seq: int) -> int:
        vehicle = next(v for v in self.vehicles if v.vin == owner)
        self._expire(vehicle)
        if vehicle.session is None or not vehicle.session.subscribed:
            return 16
        vehicle.session.unacked.append(seq)
        if vehicle.connected_at is not None:
            vehicle.got.append((seq, False, vehicle.sessions))
        return 0

    # A replica --------------------------------------------------------------------------------------------------------

    def take_from_feed(self, replica: Replica) -> None:
        if self.feed:
            replica.inbox.append(self.feed.popleft())

    def _begin(self, replica: Replica, owner: Owner, event: Event) -> None:
        replica.jobs[owner] = Job(owner, event, deque(self._step(replica, owner, event)))

    def _step(self, replica: Replica, owner: Owner, event: Event) -> list[Effect]:
        state, effects = step(State(self.rules, owner, replica.hands.get(owner)), event)
        if state.hand is None:
            replica.hands.pop(owner, None)
        else:
            replica.hands[owner] = state.hand
        return effects

    async def work(self, replica: Replica) -> None:
        """Begin one job, or carry out one effect of one; a job without effects left is done."""
        waiting = list(dict.fromkeys(owner for owner, _ in replica.inbox if owner not in replica.jobs))
        choices = [*waiting, *replica.jobs]
        if not choices:
            return
        owner = self.rng.choice(choices)
        if owner in waiting:
            place = next(n for n, (of, _) in enumerate(replica.inbox) if of == owner)
            self._begin(replica, *replica.inbox.pop(place))
        job = replica.jobs[owner]
        if job.effects:
            await self._carry(replica, job)
        while self.calm and any(isinstance(effect, Load | Publish) for effect in job.effects):
            await self._carry(replica, job)
        if not job.effects:
            del replica.jobs[owner]
            if isinstance(job.event, DeadlinePassed):
                await self.queues.settle_due(keys.shard_of(owner, self.queues.policy.wake_shards), [owner], self.now)

    async def _carry(self, replica: Replica, job: Job) -> None:
        effect = job.effects[0]
        match effect:
            case Ignore():
                pass
            case Publish():
                replica.air.append((job.owner, effect))
                if self.calm:
                    self.reach_broker(replica)
            case Load(seq, claimed_ms):
                found = Loaded(seq, claimed_ms, "r", "d", b"")
                if self.calm:
                    job.effects.extend(self._step(replica, job.owner, found))
                else:
                    replica.answers.append((job.owner, found))
            case _:
                this = job.retry or Round(self.queues, self.now)
                verb = this.add(job.owner, effect) if job.retry is None else True
                answers = await this.run(repeated=job.retry is not None)
                if verb and job.retry is None and not self.calm and self.rng.random() < 0.03:
                    job.retry = this
                    return
                job.retry = None
                if isinstance(effect, RecordOutcome):
                    self.outcomes.add((effect.record.vin, effect.record.seq))
                job.effects.popleft()
                for answer in answers:
                    assert isinstance(answer, Answered)
                    job.effects.extend(self._step(replica, job.owner, answer))
                return
        job.effects.popleft()

    def reach_broker(self, replica: Replica) -> None:
        """One of its publishes reaches the broker; the PUBACK is on its way back."""
        if replica.air:
            owner, publish = replica.air.pop(self.rng.randrange(len(replica.air)))
            code = self._publish(owner, publish.what.seq)
            replica.answers.append((owner, Published(publish.what.seq, publish.what.claimed_ms, code)))

    def _deliver_answer(self, replica: Replica) -> None:
        if replica.answers:
            replica.inbox.append(replica.answers.pop(self.rng.randrange(len(replica.answers))))

    def crash(self, replica: Replica) -> None:
        """`kill -9`: what it had taken and not finished comes again; what was in the air reached the broker, or not."""
        repeated = [(job.owner, job.event) for job in replica.jobs.values()] + replica.inbox
        self.feed.extendleft(reversed([(o, e) for o, e in repeated if not isinstance(e, OfClaim | DeadlinePassed)]))
        for owner, publish in replica.air:
            if self.rng.random() < 0.5:
                self._publish(owner, publish.what.seq)
        self.replicas[self.replicas.index(replica)] = Replica()

    def cut_off(self, replica: Replica) -> None:
        """Its connection to the broker breaks: no PUBACK comes any more, whether the broker has the message or not."""
        for owner, publish in replica.air:
            if self.rng.random() < 0.5:
                self._publish(owner, publish.what.seq)
            replica.inbox.append((owner, PublishLost(publish.what.seq, publish.what.claimed_ms)))
        lost = [(o, PublishLost(e.seq, e.claimed_ms) if isinstance(e, Published) else e) for o, e in replica.answers]
        replica.air, replica.answers = [], []
        replica.inbox += lost

    async def look_at_deadlines(self, replica: Replica) -> None:
        mine = {v.vin for v in self.vehicles}
        for shard in range(self.queues.policy.wake_shards):
            for owner in await self.queues.due(shard, self.now, 1000):
                if owner in mine:
                    replica.inbox.append((Owner(owner), DeadlinePassed()))

    # The end ----------------------------------------------------------------------------------------------------------

    async def calm_down(self) -> None:
        """Everybody lives, connects, listens, gives signs and acknowledges, until nothing is left to do."""
        self.calm = True
        for vehicle in self.vehicles:
            self.connect(vehicle, clean=False, expiry_s=60)
            self.subscribe(vehicle)
        for _ in range(60):
            for vehicle in self.vehicles:
                self.sign(vehicle)
                for _ in range(5):
                    self.ack(vehicle)
            await self._settle()
            if not any([await self.queues.redis.exists(keys.pending(v.vin)) for v in self.vehicles]):
                return
            for vehicle in self.vehicles:
                vehicle.in_time = vehicle.in_time or list(vehicle.got)
            self.now += 40_000
            for replica in self.replicas:
                await self.look_at_deadlines(replica)

    async def _settle(self) -> None:
        while self.feed or any(r.inbox or r.jobs or r.air or r.answers for r in self.replicas):
            self.now += 1
            replica = self.rng.choice(self.replicas)
            self.take_from_feed(replica)
            await self.work(replica)
            self.reach_broker(replica)
            self._deliver_answer(replica)
