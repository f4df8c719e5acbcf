"""A small world around `step`: replicas, a broker's sessions and vehicles, moved one effect at a time by a seeded adversary.

The queues are the real ones in a real Redis; time is a number. The adversary decides which replica gets an event, in which order
effects are carried out, when the broker's answers arrive, which answers of Redis are lost, which events are lost, doubled or
late, when Redis forgets its last second, and who dies. Nothing here sleeps. Everything stands in a history, for the checker.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from redis.asyncio import Redis

from contracts import keys
from contracts.events import Acked, Connected, Disconnected, Subscribed
from contracts.names import Owner
from contracts.outcomes import Outcome
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
    Missing,
    NotPublished,
    OfClaim,
    Park,
    Publish,
    Published,
    PublishLost,
    RecordOutcome,
    Woken,
)
from queues import Policy, Queues
from queues._replies import enqueue_reply
from queues._verbs import unpark
from tests.dispatcher.lockstep import Asking
from tests.faults.checker import WIPED, Verdict, check
from tests.faults.history import History, Line, What

START_MS = 1_800_000_000_000
EXPIRIES_S = (0, 60, 3600)
DEADLINE_S = 30
LATE_DATA = 0.15  # of the entries: their data comes after their turn


@cache
def settings_of(max_attempts: int, retention_days: float) -> Settings:
    """Those of a world."""
    return Settings(
        ack_deadline_seconds=DEADLINE_S,
        ack_deadline_max_seconds=120,
        wake_shards=1,
        max_attempts=max_attempts,
        retention_days=retention_days,
    )


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
    """`calm`: nobody dies, nothing is lost, no deadline passes, and nothing changes between a claim and its publish."""

    def __init__(self, seed: int, *, calm: bool, replicas: int = 2, vehicles: int = 2) -> None:
        self.name, self.rng, self.calm, self.now = f"SIM{seed}-{calm}", random.Random(f"{seed}/{calm}"), calm, START_MS
        settings = settings_of(0, 30) if calm else settings_of(self.rng.choice((0, 0, 3)), self.rng.choice((30, 1 / 24)))
        self.calm_throughout = calm
        self.redis = Asking(self.name)
        self.queues, self.rules = Queues(cast(Redis, self.redis), Policy.of(settings)), Rules.of(settings)
        self.seqs = SeqSource(0, clock_ms=lambda: self.now)
        self.vehicles = [Vehicle(Owner(f"{self.name}-{n}")) for n in range(vehicles)]
        self.replicas = [Replica() for _ in range(replicas)]
        self.feed: deque[tuple[Owner, Event]] = deque()  # at least once: what a dying replica had in hand comes back
        self.accepted: list[tuple[Owner, int]] = []
        self.missing: dict[int, Owner] = {}  # seq of an entry whose data has not come
        self.history = History()

    def verdict(self) -> Verdict:
        """What the checker says of all that happened."""
        return check(self.history.lines, deadline_s=DEADLINE_S)

    def tell(self, what: What, vin: str, seq: int | None = None, *, dup: bool = False, note: str = "") -> None:
        """A line in the history."""
        self.history.tell(Line(self.now / 1000, what, vin, seq, f"r{seq}" if seq else "", dup, note=note))

    def harm(self, what: str, since_ms: int | None = None) -> None:
        """Somebody did harm."""
        at = self.now if since_ms is None else since_ms
        self.history.tell(Line(at / 1000, What.FAULT, until=self.now / 1000, note=what))

    # The adversary ----------------------------------------------------------------------------------------------------

    async def run(self, moves: int) -> None:
        """So many moves, whichever the seed chooses."""
        for _ in range(moves):
            self.now += self.rng.choice((1, 1, 1, 2, 50))
            await self._move()

    async def _move(self, *, harm: bool = True) -> None:
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
        elif dice < 0.96:
            self._deliver_answer(replica)
        elif dice < 0.97:
            await self.data_comes()
        elif harm and not self.calm:
            await self._harm(replica)

    async def _harm(self, replica: Replica) -> None:
        match self.rng.randrange(8):
            case 0:
                self.crash(replica)
            case 1:
                self.cut_off(replica)
            case 2:
                self.now += self.rng.choice((1_000, 31_000, 61_000, 4_000_000))
            case 3:
                await self.forget_last_second()
            case 4:
                await self.cancel(self.rng.choice(self.vehicles))
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
        self.accepted.append((vehicle.vin, seq))
        if self.rng.random() < LATE_DATA:
            self.missing[seq] = vehicle.vin
        for what in (What.ATTEMPTED, What.ACCEPTED, What.ENQUEUED):
            self.tell(what, vehicle.vin, seq)
        await self._offer(vehicle.vin, [seq])

    async def _offer(self, vin: Owner, seqs: list[int]) -> None:
        batch = self.queues.batch()
        batch.enqueue(vin, [(seq, "r") for seq in seqs], self.now)
        (reply,) = await batch.run()
        if reply.word == "ready":
            self.feed.append((vin, Woken()))

    async def data_comes(self, *, all_of_it: bool = False) -> None:
        """Of one entry that waits for it; what was parked takes its place again."""
        for seq, vin in list(self.missing.items())[: None if all_of_it else 1]:
            del self.missing[seq]
            await self._unpark(vin)

    async def _unpark(self, vin: Owner) -> None:
        reply = enqueue_reply(await self.redis.execute_command(*unpark(self.queues.policy, vin, self.now)))
        if reply.word == "ready":
            self.feed.append((vin, Woken()))

    async def cancel(self, vehicle: Vehicle) -> None:
        """An operator takes one entry back; one that is in flight ends by its acknowledgement, or so."""
        if seqs := [seq for vin, seq in self.accepted[-10:] if vin == vehicle.vin]:
            seq = self.rng.choice(seqs)
            batch = self.queues.batch()
            batch.end(vehicle.vin, [(seq, Outcome.CANCELLED)], self.now)
            (reply,) = await batch.run()
            if reply.outcomes[0] is not None:
                self.tell(What.ENDED, vehicle.vin, seq, note=reply.outcomes[0].value)

    async def forget_last_second(self) -> None:
        """Redis dies and comes back with what its file has; the recorder then offers its last minutes again, in order."""
        owners = [key for vehicle in self.vehicles for key in keys.owner_keys(vehicle.vin)]
        owners.append(keys.deadlines(0))
        began = self.now
        kept = [await self.redis.execute_command("DUMP", key) for key in owners]
        for _ in range(self.rng.randrange(15)):
            self.now += self.rng.randrange(1, 50)
            await self._move(harm=False)
        for key, value in zip(owners, kept, strict=True):
            await self.redis.execute_command("DEL", key)
            if value is not None:
                await self.redis.execute_command("RESTORE", key, 0, value)
        self.harm(f"{WIPED} its last second", began)
        for vehicle in self.vehicles:
            if seqs := [seq for vin, seq in self.accepted[-20:] if vin == vehicle.vin]:
                await self._offer(vehicle.vin, seqs)

    # Vehicle and broker -----------------------------------------------------------------------------------------------

    def connect(self, vehicle: Vehicle, *, clean: bool, expiry_s: int) -> None:
        if vehicle.connected_at is not None:
            self.disconnect(vehicle, reason="discarded" if clean else "takenover")
        self._expire(vehicle)
        vehicle.connected_at = self.now
        self.tell(What.CAME, vehicle.vin)
        self._report(vehicle.vin, Connected(vehicle.vin, self.now, clean, expiry_s))
        if clean or vehicle.session is None:
            vehicle.session, vehicle.sessions = Session(expiry_s), vehicle.sessions + 1
            return
        vehicle.session.expiry_s, vehicle.session.until_ms = expiry_s, None
        for seq in vehicle.session.unacked:
            self._get(vehicle, seq, dup=True)

    def _get(self, vehicle: Vehicle, seq: int, *, dup: bool) -> None:
        vehicle.got.append((seq, dup, vehicle.sessions))
        self.tell(What.DELIVERED, vehicle.vin, seq, dup=dup)

    def _report(self, vin: Owner, event: Event) -> None:
        """The broker tells what happened; the adversary loses it, doubles it or lets it wait."""
        copies = 1 if self.calm else self.rng.choices((0, 1, 2), (3, 94, 3))[0]
        for _ in range(copies):
            late = not self.calm and self.feed and self.rng.random() < 0.05
            self.feed.insert(self.rng.randrange(len(self.feed)) if late else len(self.feed), (vin, event))
        if copies == 0:
            self.harm(f"lost event {type(event).__name__} of {vin}")

    def disconnect(self, vehicle: Vehicle, reason: str = "tcp_closed") -> None:
        assert vehicle.connected_at is not None
        assert vehicle.session is not None
        self.tell(What.GONE, vehicle.vin, note=reason)
        self._report(vehicle.vin, Disconnected(vehicle.vin, self.now, vehicle.connected_at, None, reason))
        vehicle.connected_at, vehicle.session.until_ms = None, self.now + vehicle.session.expiry_s * 1000
        if reason == "discarded" or vehicle.session.expiry_s == 0:
            vehicle.session = None
        self.now += 1

    def _expire(self, vehicle: Vehicle) -> None:
        session = vehicle.session
        if session is not None and session.until_ms is not None and session.until_ms < self.now:
            vehicle.session = None

    def sign(self, vehicle: Vehicle) -> None:
        self._report(vehicle.vin, Heard())

    def subscribe(self, vehicle: Vehicle) -> None:
        assert vehicle.session is not None
        vehicle.session.subscribed = True
        self._report(vehicle.vin, Subscribed(vehicle.vin, self.now, request_filter("agent", vehicle.vin), True))

    def ack(self, vehicle: Vehicle) -> None:
        """Of the oldest unacknowledged message; now and then the PUBACK is lost with its connection."""
        if vehicle.session is not None and vehicle.session.unacked:
            seq = vehicle.session.unacked[0]
            self.tell(What.ACKNOWLEDGED, vehicle.vin, seq)
            if not self.calm and self.rng.random() < 0.05:
                self.disconnect(vehicle)
                return
            vehicle.session.unacked.pop(0)
            acked = Acked(vehicle.vin, self.now, request_topic("agent", vehicle.vin, "r"), seq, None, None)
            self._report(vehicle.vin, acked)

    def _publish(self, owner: Owner, seq: int) -> int:
        vehicle = next(v for v in self.vehicles if v.vin == owner)
        self._expire(vehicle)
        if vehicle.session is None or not vehicle.session.subscribed:
            return 16
        vehicle.session.unacked.append(seq)
        if vehicle.connected_at is not None:
            self._get(vehicle, seq, dup=False)
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
                await self.queues.settle_due(0, [owner], self.now)

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
                gone = Missing(seq, claimed_ms, f"{self.name}-{seq}")
                found = gone if seq in self.missing else Loaded(seq, claimed_ms, "r", "d", b"")
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
                    self.tell(What.ENDED, effect.record.vin, effect.record.seq, note=effect.record.outcome.value)
                if isinstance(effect, Park):
                    self.tell(What.PARKED, job.owner, effect.seq)
                job.effects.popleft()
                for answer in answers:
                    assert isinstance(answer, Answered)
                    following = self._step(replica, job.owner, answer)
                    job.effects.extend(following)
                    self._note_claims(job.owner, following)
                return
        job.effects.popleft()

    def _note_claims(self, owner: Owner, following: list[Effect]) -> None:
        for load in following:
            if isinstance(load, Load):
                self.history.tell(Line(load.claimed_ms / 1000, What.PUBLISHED, owner, load.seq))

    def reach_broker(self, replica: Replica) -> None:
        """One of its publishes reaches the broker, unless its deadline has passed; the answer is on its way back."""
        if replica.air:
            owner, publish = replica.air.pop(self.rng.randrange(len(replica.air)))
            seq, claimed_ms = publish.what.seq, publish.what.claimed_ms
            if publish.deadline_ms <= self.now:
                replica.answers.append((owner, NotPublished(seq, claimed_ms)))
            else:
                replica.answers.append((owner, Published(seq, claimed_ms, self._publish(owner, seq))))

    def _deliver_answer(self, replica: Replica) -> None:
        if replica.answers:
            replica.inbox.append(replica.answers.pop(self.rng.randrange(len(replica.answers))))

    def crash(self, replica: Replica) -> None:
        """`kill -9`: what it had taken and not finished comes again; what was in the air reached the broker, or not."""
        repeated = [(job.owner, job.event) for job in replica.jobs.values()] + replica.inbox
        self.feed.extendleft(reversed([(o, e) for o, e in repeated if not isinstance(e, OfClaim | DeadlinePassed)]))
        self._half_of_the_air(replica)
        self.harm("kill -9 of a dispatcher")
        self.replicas[self.replicas.index(replica)] = Replica()

    def cut_off(self, replica: Replica) -> None:
        """Its connection to the broker breaks: no PUBACK comes any more, whether the broker has the message or not."""
        self._half_of_the_air(replica)
        self.harm("a dispatcher's connection to the broker broke")
        replica.inbox += [(owner, PublishLost(publish.what.seq, publish.what.claimed_ms)) for owner, publish in replica.air]
        lost = [(o, PublishLost(e.seq, e.claimed_ms) if isinstance(e, Published) else e) for o, e in replica.answers]
        replica.air, replica.answers = [], []
        replica.inbox += lost

    def _half_of_the_air(self, replica: Replica) -> None:
        for owner, publish in replica.air:
            if self.rng.random() < 0.5 and publish.deadline_ms > self.now:
                self._publish(owner, publish.what.seq)

    async def look_at_deadlines(self, replica: Replica) -> None:
        due: Any = await self.redis.execute_command("ZRANGEBYSCORE", keys.deadlines(0), "-inf", self.now)
        replica.inbox += [(Owner(owner.decode()), DeadlinePassed()) for owner in due]

    # The end ----------------------------------------------------------------------------------------------------------

    async def calm_down(self) -> None:
        """Everybody lives, connects, listens, gives signs and acknowledges, until nothing is left to do."""
        self.calm = True
        await self.data_comes(all_of_it=True)
        for vehicle in self.vehicles:
            self.connect(vehicle, clean=False, expiry_s=60)
            self.subscribe(vehicle)
        for _ in range(60):
            for vehicle in self.vehicles:
                await self._unpark(vehicle.vin)  # what was parked in the moment in which its data came; seen to every few seconds
                self.sign(vehicle)
                for _ in range(5):
                    self.ack(vehicle)
            await self._settle()
            left = [await self.redis.execute_command("EXISTS", keys.pending(v.vin), keys.parked(v.vin)) for v in self.vehicles]
            if not any(left):
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
