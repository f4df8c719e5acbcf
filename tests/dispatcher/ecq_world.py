"""The small world around `step` with compacted queues: writes over a few keys, rewinds, and what is promised of them."""

from typing import Any

from dispatcher._events import Woken
from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.ecq_state import fold
from manifold.contracts.names import Owner
from manifold.contracts.queue_names import ecq_queue, owner_of_queue
from manifold.contracts.topics import ecq_filter, ecq_topic
from manifold.queues.verbs import ecq
from manifold.queues.verbs.ecq_reads import Read
from manifold.queues.verbs.verb import Verb
from tests.dispatcher.roads import Vehicle
from tests.dispatcher.world import World

KEYS = 3  # per vehicle; few, so that most writes supersede


class EcqWorld(World):
    """A world that remembers accepted, acknowledged and rewound messages as the recorder has them."""

    NAME = "ECQ"

    def __init__(self, seed: int, *, calm: bool) -> None:
        super().__init__(seed, calm=calm)
        self.appends: dict[Owner, dict[int, str]] = {vehicle.vin: {} for vehicle in self.vehicles}
        self.acks: dict[Owner, list[EcqAck]] = {vehicle.vin: [] for vehicle in self.vehicles}
        self.rewinds: dict[Owner, list[tuple[int, int]]] = {vehicle.vin: [] for vehicle in self.vehicles}
        self.wipes: list[int] = []  # the number of acknowledgements recorded at each loss in Redis
        self.positions: dict[Owner, int] = {}
        self.claims = 0

    # The network: the same sessions, another topic -----------------------------------------------------------------------

    def queue_of(self, vin: Owner) -> str:
        return ecq_queue(vin)

    def filter_of(self, vin: Owner) -> str:
        return ecq_filter(vin)

    def topic_of(self, vin: Owner) -> str:
        return ecq_topic(vin, "k")

    # Records -------------------------------------------------------------------------------------------------------------

    def recorded_one(self, payload: bytes) -> None:
        record = EcqAck.from_wire(payload)
        self.acks[Owner(record.client_id)].append(record)

    def claimed(self, owner: str, seq: int, at_ms: int) -> None:  # noqa: ARG002
        """Check that no acknowledged message is claimed again without a rewind or a loss in Redis."""
        vin = owner_of_queue(owner)
        self.claims += 1
        state = self._fold(vin)
        if seq in state.acknowledged and not self.wipes:
            self.broken.append(f"resurrected: {vin} {seq}, acknowledged {self.acks[vin]}, rewound {self.rewinds[vin]}")
        if state.position is not None and not self.wipes and state.position < self.positions.get(vin, 0):
            self.broken.append(f"position of {vin} gone back from {self.positions[vin]} to {state.position}")
        self.positions[vin] = state.position or 0

    def _fold(self, vin: Owner) -> Any:
        return fold(self.appends[vin].items(), [(ack.seq, ack.epoch) for ack in self.acks[vin]], self.rewinds[vin])

    # The platform --------------------------------------------------------------------------------------------------------

    async def enqueue(self, vehicle: Vehicle) -> None:
        seq = self.seqs.next()
        self.appends[vehicle.vin][seq] = f"key-{self.rng.randrange(KEYS)}"
        await self._offer(vehicle.vin, [seq])

    async def _offer(self, vin: Owner, seqs: list[int]) -> None:
        for seq in seqs:
            await self._fill(vin, ecq.Append(seq, self.appends[vin][seq], b""))

    async def cancel(self, vehicle: Vehicle) -> None:
        """Rewind, which takes the place of a cancellation here."""
        first = self.rng.choice([0, *self.appends[vehicle.vin]])
        rewind = (self.seqs.next(), first)
        self.rewinds[vehicle.vin].append(rewind)
        self.positions.pop(vehicle.vin, None)
        await self._fill(vehicle.vin, ecq.Rewind(*rewind))

    async def _fill(self, vin: Owner, verb: Verb) -> None:
        batch = self.queues.batch()
        batch.add(ecq_queue(vin), verb, self.now)
        (reply,) = await batch.run()
        if reply.word == "ready":
            self.feed.append((ecq_queue(vin), Woken()))

    async def _unpark(self, vin: Owner, *seqs: int) -> None:
        """Do nothing: compacted queues park nothing."""

    async def forget_last_second(self) -> None:
        """Restart Redis from its file; the recorder then restores what it lost."""
        of_both = ({*keys.owner_keys(vehicle.vin), *keys.ecq_keys(vehicle.vin)} for vehicle in self.vehicles)
        await self.go_back([key for of_one in of_both for key in of_one])
        self.wipes.append(self.now)
        for vehicle in self.vehicles:
            await self._bring_in_again(vehicle.vin)

    async def _bring_in_again(self, vin: Owner) -> None:
        """Replay as the recorder's catch-up does: acknowledgements and rewinds epoch by epoch, then writes."""
        changes: list[tuple[int, int, Verb]] = [(seq, 0, ecq.Rewind(seq, first)) for seq, first in self.rewinds[vin]]
        changes += [(ack.epoch, 1, ecq.Acknowledge(ack, claim=False, sends_outcome=False)) for ack in self.acks[vin]]
        for _, _, verb in sorted(changes, key=lambda change: change[:2]):
            batch = self.queues.batch()
            batch.add(ecq_queue(vin), verb, self.now)
            await batch.run()
        await self._offer(vin, list(self.appends[vin])[-20:])

    # The end -------------------------------------------------------------------------------------------------------------

    async def unrecorded(self) -> list[str]:
        """Differences at the end: Redis against the records, and the newest message per key against deliveries."""
        found = []
        for vehicle in self.vehicles:
            batch = self.queues.batch()
            batch.add(ecq_queue(vehicle.vin), Read(), self.now)
            (queue,) = await batch.run()
            state = self._fold(vehicle.vin)
            live = {message.key: message.seq for message in queue.messages}
            if live != state.live:
                found.append(f"{vehicle.vin}: Redis has {live}, recorded is {state.live}")
            pending = {message.seq for message in queue.messages if not message.is_delivered}
            if pending != set(state.live.values()) - state.acknowledged:
                found.append(f"{vehicle.vin}: pending are {pending}, and recorded is {state}")
            if queue.acked_seq != state.position:
                found.append(f"{vehicle.vin}: the position is {queue.acked_seq}, and recorded is {state.position}")
            delivered = {seq for seq, _, _ in vehicle.got}
            if lost := set(state.live.values()) - delivered - {ack.seq for ack in self.acks[vehicle.vin] if ack.passed_over}:
                found.append(f"{vehicle.vin}: lost {lost}")
        return found

    async def is_empty(self) -> bool:
        left = [await self.redis.execute_command("EXISTS", keys.ecq_keys(vehicle.vin)[0]) for vehicle in self.vehicles]
        return not any(left)
