"""The network of a simulated world: vehicles, broker sessions, and events that are reported or lost."""

import random
from collections import deque
from dataclasses import dataclass, field

from dispatcher._events import Event
from manifold.contracts.events import Acked, Connected, Disconnected, PresenceSign, Subscribed
from manifold.contracts.names import Owner
from manifold.contracts.queue_names import owner_of_queue
from manifold.contracts.topics import request_filter, request_topic
from tests.faults.history import History, Line, What

START_MS = 1_800_000_000_000


@dataclass
class Session:
    """The broker's state for a vehicle."""

    expiry_s: int
    subscribed: bool = False
    unacked: list[int] = field(default_factory=list)
    until_ms: int | None = None  # set while the vehicle is disconnected


@dataclass
class Vehicle:
    """A vehicle: messages received as (seq, dup, session number), and messages acknowledged."""

    vin: Owner
    session: Session | None = None
    sessions: int = 0
    connected_at: int | None = None
    got: list[tuple[int, bool, int]] = field(default_factory=list)
    in_time: list[tuple[int, bool, int]] = field(default_factory=list)  # received before the first deadline passed
    lingers: bool = False  # the broker still routes to a session ended by a clean start


class Roads:
    """Vehicles and broker. Events go to `feed`, and everything that happens to the history."""

    def __init__(self, name: str, rng: random.Random, *, calm: bool, vehicles: int) -> None:
        self.name, self.rng, self.calm, self.now = name, rng, calm, START_MS
        self.vehicles = [Vehicle(Owner(f"{name}-{n}")) for n in range(vehicles)]
        self.feed: deque[tuple[str, Event]] = deque()  # at least once: events in a dying replica's hand are redelivered
        self.history = History()

    def queue_of(self, vin: Owner) -> str:
        """The queue under test."""
        return vin

    def filter_of(self, vin: Owner) -> str:
        """The filter that a vehicle subscribes to."""
        return request_filter("agent", vin)

    def topic_of(self, vin: Owner) -> str:
        """The topic on which it receives messages."""
        return request_topic("agent", vin, "r")

    def tell(self, what: What, vin: str, seq: int | None = None, *, dup: bool = False, note: str = "") -> None:
        """Add a line to the history."""
        self.history.tell(Line(self.now / 1000, what, vin, seq, f"r{seq}" if seq else "", dup, note=note))

    def harm(self, what: str, since_ms: int | None = None) -> None:
        """Add a fault to the history."""
        at = self.now if since_ms is None else since_ms
        self.history.tell(Line(at / 1000, What.FAULT, until=self.now / 1000, note=what))

    def connect(self, vehicle: Vehicle, *, clean: bool, expiry_s: int) -> None:
        """Connect; a clean start ends the old session. As on EMQX, its routes are removed a little later: by the next packet."""
        had_subscribed = vehicle.session is not None and vehicle.session.subscribed
        if vehicle.connected_at is not None:
            self.disconnect(vehicle, reason="discarded" if clean else "takenover")
        self._expire(vehicle)
        vehicle.connected_at = self.now
        self.tell(What.CAME, vehicle.vin)
        self._report(vehicle.vin, Connected(vehicle.vin, self.now, clean, expiry_s))
        if clean or vehicle.session is None:
            vehicle.session, vehicle.sessions = Session(expiry_s), vehicle.sessions + 1
            vehicle.lingers = clean and had_subscribed
            return
        vehicle.session.expiry_s, vehicle.session.until_ms = expiry_s, None
        for seq in vehicle.session.unacked:
            self._get(vehicle, seq, dup=True)

    def _get(self, vehicle: Vehicle, seq: int, *, dup: bool) -> None:
        vehicle.got.append((seq, dup, vehicle.sessions))
        self.tell(What.DELIVERED, vehicle.vin, seq, dup=dup)

    def _report(self, vin: str, event: Event) -> None:
        """Report an event; the adversary may lose, duplicate or delay it."""
        copies = 1 if self.calm else self.rng.choices((0, 1, 2), (3, 94, 3))[0]
        for _ in range(copies):
            late = not self.calm and self.feed and self.rng.random() < 0.05
            self.feed.insert(self.rng.randrange(len(self.feed)) if late else len(self.feed), (vin, event))
        if copies == 0:
            self.harm(f"lost event {type(event).__name__} of {vin}")

    def disconnect(self, vehicle: Vehicle, reason: str = "tcp_closed") -> None:
        assert vehicle.connected_at is not None
        assert vehicle.session is not None
        vehicle.lingers = False
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
        vehicle.lingers = False
        self._report(vehicle.vin, PresenceSign())

    def subscribe(self, vehicle: Vehicle) -> None:
        assert vehicle.session is not None
        vehicle.session.subscribed, vehicle.lingers = True, False
        self._report(self.queue_of(vehicle.vin), Subscribed(vehicle.vin, self.now, self.filter_of(vehicle.vin), True))

    def ack(self, vehicle: Vehicle) -> None:
        """Acknowledge the oldest unacknowledged message; sometimes the PUBACK is lost with its connection."""
        if vehicle.session is not None and vehicle.session.unacked:
            seq = vehicle.session.unacked[0]
            self.tell(What.ACKNOWLEDGED, vehicle.vin, seq)
            if not self.calm and self.rng.random() < 0.05:
                self.disconnect(vehicle)
                return
            vehicle.session.unacked.pop(0)
            acked = Acked(vehicle.vin, self.now, self.topic_of(vehicle.vin), seq, None, None)
            self._report(self.queue_of(vehicle.vin), acked)

    def publish(self, owner: str, seq: int) -> int:
        """Deliver a request to the broker; return the reason code of its PUBACK."""
        vehicle = next(v for v in self.vehicles if v.vin == owner_of_queue(owner))
        self._expire(vehicle)
        if vehicle.session is None or not vehicle.session.subscribed:
            return 0 if vehicle.lingers else 16  # an ending session accepts it, and nobody receives it
        vehicle.session.unacked.append(seq)
        if vehicle.connected_at is not None:
            self._get(vehicle, seq, dup=False)
        return 0
