"""A simulated world around `step`: replicas, broker sessions and vehicles, moved one effect at a time by a seeded adversary.

The queues are the real ones in a real Redis; time is a number. The adversary decides which replica gets an event, in which order
effects are carried out, when the broker replies, which replies of Redis are lost, which events are lost, duplicated or late, when
Redis loses its last second, and who dies. Nothing here sleeps. Everything is written to a history for the checker.
"""

import itertools
import random
from collections.abc import Callable

from dispatcher._events import Woken
from manifold.contracts import keys
from manifold.contracts.names import Owner
from manifold.contracts.outcomes import OF_CODE, Outcome, OutcomeRecord
from manifold.contracts.seq import SeqSource
from manifold.queues.verbs.ends import End
from manifold.queues.verbs.fills import Enqueue, Unpark
from tests.dispatcher.replicas import DEADLINE_S, SKEWS_MS, Replica, Replicas, settings_of
from tests.dispatcher.roads import Vehicle
from tests.faults.checker import WIPED, check
from tests.faults.history import What
from tests.faults.verdict import Verdict

EXPIRIES_S = (0, 60, 3600)
_worlds = itertools.count()  # worlds share a Redis
RELEASED = 0.3  # the share of entries that a campaign has released
LATE_DATA = 0.15  # the share of entries whose data arrives after their turn


class World(Replicas):
    """A world. `calm`: no death, no loss, no expired deadline, and no change between a claim and its publish."""

    NAME = "SIM"  # the prefix of its vehicles: kinds of worlds share a Redis

    def __init__(self, seed: int, *, calm: bool, replicas: int = 2, vehicles: int = 2) -> None:
        rng = random.Random(f"{seed}/{calm}")
        settings = settings_of(0, 30) if calm else settings_of(rng.choice((0, 0, 3)), rng.choice((30, 1 / 24)))
        super().__init__(
            f"{self.NAME}{seed}-{calm}-{next(_worlds)}", rng, settings, calm=calm, replicas=replicas, vehicles=vehicles
        )
        self.calm_throughout = calm
        self.seqs = SeqSource(0, clock_ms=lambda: self.now)
        self.accepted: list[tuple[Owner, int]] = []
        self.broken: list[str] = []
        self.waited_for_deadline = False  # a message needed its deadline at the end although everybody was connected

    def verdict(self) -> Verdict:
        """The checker's verdict on the history."""
        return check(self.history.lines, deadline_s=DEADLINE_S)

    async def unrecorded(self) -> list[str]:
        """Entries that ended in the queues although the recorder never got their outcomes."""
        found = []
        for vehicle in self.vehicles:
            done = await self.redis.execute_command("ZRANGE", keys.done(vehicle.vin), 0, -1, "WITHSCORES")
            for seq, code in zip(map(int, done[::2]), map(int, done[1::2]), strict=True):
                if OF_CODE[code] not in self.recorded.get((vehicle.vin, seq), ()):
                    found.append(f"{vehicle.vin} {seq} ended as {OF_CODE[code]}, and the recorder was not told")
        return found

    # The adversary ----------------------------------------------------------------------------------------------------

    async def run(self, moves: int) -> None:
        """Make this many moves, chosen by the seed."""
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
            self.deliver_answer(replica)
        elif dice < 0.97:
            await self.data_comes()
        elif harm and not self.calm:
            await self._harm(replica)

    async def _harm(self, replica: Replica) -> None:
        match self.rng.randrange(8):
            case 0 | 5:
                self.crash(max(self.replicas, key=lambda each: len(each.jobs)))  # the busiest replica
            case 1:
                self.cut_off(replica)
            case 2:
                self.now += self.rng.choice((1_000, 31_000, 61_000, 4_000_000))
            case 3:
                await self.forget_last_second()
            case 4:
                self.braked = not self.braked
                await self.cancel(self.rng.choice(self.vehicles))
            case 6:
                replica.skew_ms = self.rng.choice(SKEWS_MS)
                self.harm("somebody has set a dispatcher's clock")
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
        if not self.calm and self.rng.random() < RELEASED:
            self.releases.add(seq)
        for what in (What.ATTEMPTED, What.ACCEPTED, What.ENQUEUED):
            self.tell(what, vehicle.vin, seq)
        await self._offer(vehicle.vin, [seq])

    async def _offer(self, vin: Owner, seqs: list[int]) -> None:
        batch = self.queues.batch()
        batch.add(vin, Enqueue([(seq, "r") for seq in seqs]), self.now)
        (reply,) = await batch.run()
        if reply.word == "ready":
            self.feed.append((vin, Woken()))

    async def data_comes(self, *, all_of_it: bool = False) -> None:
        """Store the data of one parked entry, which returns to its place."""
        for seq, vin in list(self.missing.items())[: None if all_of_it else 1]:
            del self.missing[seq]
            await self._unpark(vin, seq)

    async def _unpark(self, vin: Owner, *seqs: int) -> None:
        batch = self.queues.batch()
        batch.add(vin, Unpark(seqs), self.now)
        (reply,) = await batch.run()
        if reply.word == "ready":
            self.feed.append((vin, Woken()))

    async def cancel(self, vehicle: Vehicle) -> None:
        """Cancel one entry; one in flight ends by its acknowledgement or at its deadline."""
        if seqs := [seq for vin, seq in self.accepted[-10:] if vin == vehicle.vin]:
            seq = self.rng.choice(seqs)
            batch = self.queues.batch()
            batch.add(vehicle.vin, End((OutcomeRecord(vehicle.vin, seq, Outcome.CANCELLED, self.now),), claim=False), self.now)
            await batch.run()
            await self.tell_ended()

    async def forget_last_second(self) -> None:
        """Restart Redis from its file; the recorder then offers the last minutes again, in order."""
        began = self.now
        await self.go_back([key for vehicle in self.vehicles for key in keys.owner_keys(vehicle.vin)])
        self.harm(f"{WIPED} its last second", began)
        for vehicle in self.vehicles:
            if seqs := [seq for vin, seq in self.accepted[-20:] if vin == vehicle.vin]:
                await self._offer(vehicle.vin, seqs)

    async def go_back(self, of_owners: list[str]) -> None:
        """Make some moves, then reset these keys and the deadlines to their earlier values."""
        remembered = [*of_owners, keys.deadlines(0)]
        kept = [await self.redis.execute_command("DUMP", key) for key in remembered]
        for _ in range(self.rng.randrange(15)):
            self.now += self.rng.randrange(1, 50)
            await self._move(harm=False)
        for key, value in zip(remembered, kept, strict=True):
            await self.redis.execute_command("DEL", key)
            if value is not None:
                await self.redis.execute_command("RESTORE", key, 0, value)

    # The end ----------------------------------------------------------------------------------------------------------

    async def calm_down(self, *, clean: bool = False) -> None:
        """Make everybody alive, connected, subscribed and acknowledging until nothing is left to do.

        With `clean`, all sessions are new, and replicas publish what they have in hand before they learn of that.
        """
        self.calm, self.braked = True, False
        for replica in self.replicas:
            replica.skew_ms = 0
        await self.data_comes(all_of_it=True)
        for vehicle in self.vehicles:
            self.connect(vehicle, clean=clean, expiry_s=60)
        if clean:  # their events are under way when replicas publish what they have in hand
            for _ in range(self.rng.randrange(30)):
                self.now += 1
                await self.work(self.rng.choice(self.replicas))
                self.take_from_feed(self.rng.choice(self.replicas))
        self.now += 1
        for vehicle in self.vehicles:
            self.subscribe(vehicle)
        for _ in range(60):
            for vehicle in self.vehicles:
                await self._unpark(vehicle.vin)  # parked at the moment its data arrived; handled every few seconds
                self.sign(vehicle)
            await self._deliver_all()
            if await self.is_empty():
                return
            for vehicle in self.vehicles:
                vehicle.in_time = vehicle.in_time or list(vehicle.got)
            self.waited_for_deadline = True
            self.now += 40_000
            for replica in self.replicas:
                await self.look_at_deadlines(replica)

    async def _deliver_all(self) -> None:
        """Acknowledge and settle until nothing more is delivered; no deadline passes meanwhile."""
        count = -1
        while count != (count := sum(len(vehicle.got) for vehicle in self.vehicles)):
            for vehicle in self.vehicles:
                while vehicle.session is not None and vehicle.session.unacked:
                    self.ack(vehicle)
            await self._settle()

    async def is_empty(self) -> bool:
        """Whether nothing is pending for anybody."""
        left = [await self.redis.execute_command("EXISTS", keys.pending(v.vin), keys.parked(v.vin)) for v in self.vehicles]
        return not any(left)

    async def _settle(self) -> None:
        while self.feed or any(r.events or r.jobs or r.air or r.answers for r in self.replicas):
            self.now += 1
            replica = self.rng.choice(self.replicas)
            self.take_from_feed(replica)
            await self.work(replica)
            self.reach_broker(replica)
            self.deliver_answer(replica)
