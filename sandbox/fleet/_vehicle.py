"""One vehicle: comes, listens, thinks, acknowledges, goes. Timers and callbacks on the fleet's loop."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Protocol

from paho.mqtt.client import MQTTMessage

from contracts.messages import sha1_hex
from contracts.names import Owner, RequestId
from contracts.topics import Sign, request_filter, request_of, sign_topic
from sandbox.fleet._habits import Behaviour, Habits
from sandbox.fleet._wire import Door, Hello, Wire


@dataclass(frozen=True, slots=True)
class Received:
    """One PUBLISH as a vehicle got it, also when it had it before."""

    vin: Owner
    topic: str
    request_id: RequestId | None  # None: not on a request topic
    seq: int | None  # None on MQTT 3.1.1, which has no user properties
    payload_sha1: str
    size_bytes: int
    at: datetime  # UTC
    dup: bool  # the broker says that it may have sent this before
    qos: int


class Link(Enum):
    """How a vehicle is connected."""

    OFFLINE = auto()
    CONNECTING = auto()  # until the broker has confirmed the subscription
    ONLINE = auto()


class Witness(Protocol):
    """Whom the vehicles tell."""

    def received(self, message: Received) -> None:
        """A message has come."""

    def acknowledged(self, message: Received) -> None:
        """Its PUBACK is on its way."""

    def changed(self, vin: Owner, what: str) -> None:
        """A vehicle came `online`, `left`, `crashed`, or was `cut off`."""


class Vehicle:
    """Comes and goes when told or as its habits say. Told to come, it also comes back by itself when it is cut off."""

    def __init__(self, vin: Owner, door: Door, behaviour: Behaviour, habits: Habits, witness: Witness) -> None:
        self.vin, self.protocol = vin, habits.protocol
        self.link = Link.OFFLINE
        self.arrivals = 0  # how often it came online
        self.problem = ""  # why the last connection failed
        self._door, self._behaviour, self._habits, self._witness = door, behaviour, habits, witness
        self._loop = asyncio.get_running_loop()
        self._wire: Wire | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failures = 0
        self._clean_start = False  # of the connection that is wanted
        self._subscribed = False  # as far as the vehicle knows, its session at the broker holds the subscription

    def come(self, *, clean_start: bool = False) -> None:
        """Connect, subscribe and say `online`; try until it works."""
        if self.link is not Link.OFFLINE:
            return
        self._stop_timers()
        self.link, self._clean_start = Link.CONNECTING, clean_start
        behaviour = self._behaviour
        hello = Hello(self.vin, self.protocol, clean_start, behaviour.session_expiry_s, behaviour.keepalive_s)
        self._wire = Wire(self._door, hello, self)
        try:
            self._wire.open()
        except OSError as exc:
            self.on_lost(str(exc))

    def leave(self) -> None:
        """DISCONNECT, and stay away until told to come."""
        self._drop(goodbye=True, what="left")

    def crash(self) -> None:
        """The socket goes without a word, and the vehicle stays away until told to come."""
        self._drop(goodbye=False, what="crashed")

    def say(self, sign: Sign) -> None:
        """`online` or `heartbeat`; nothing if the vehicle is not online."""
        if self._wire is not None and self.link is Link.ONLINE:
            self._wire.publish(sign_topic(self.vin, sign))

    def look_after(self) -> None:
        """Keep the connection alive."""
        if self._wire is not None:
            self._wire.look_after()

    # What the connection tells ----------------------------------------------------------------------------------------

    def on_connected(self, session_present: bool) -> None:
        """Subscribe, unless the broker still knows what this vehicle listens to."""
        if session_present and self._subscribed:
            self.on_subscribed()
        elif self._wire is not None:
            self._subscribed = False
            self._wire.subscribe(request_filter(self._door.prefix, self.vin))

    def on_subscribed(self) -> None:
        """Say `online`, and begin to live."""
        self.link, self._failures, self.problem = Link.ONLINE, 0, ""
        self._clean_start, self._subscribed = False, True
        self.arrivals += 1
        self.say(Sign.ONLINE)
        self._after(self._habits.heartbeat_s(), "heartbeat", self._beat)
        stay_s = self._habits.stay_s()
        if stay_s is not None:
            self._after(stay_s, "depart", lambda: self._depart(crash=self._habits.crashes()))
        self._witness.changed(self.vin, "online")

    def on_lost(self, reason: str) -> None:
        """Nobody here wanted that: try again, later each time."""
        self.problem = reason
        self._drop(goodbye=False, what="cut off")
        self._failures += 1
        self._after(self._habits.retry_s(self._failures), "come", lambda: self.come(clean_start=self._clean_start))

    def on_message(self, wire: Wire, message: MQTTMessage) -> None:
        """Put it on record, and acknowledge it after some thought, unless the vehicle does not live so long."""
        got = self._received(message)
        self._witness.received(got)
        if message.qos == 0:
            return
        if self._habits.crashes_before_ack():
            self._loop.call_soon(self._die, wire)
        elif (think_s := self._habits.think_s()) > 0:
            self._loop.call_later(think_s, self._acknowledge, wire, message, got)
        else:
            self._acknowledge(wire, message, got)

    def _received(self, message: MQTTMessage) -> Received:
        of = request_of(self._door.prefix, message.topic)
        said = dict(getattr(message.properties, "UserProperty", ())).get("seq", "")
        payload = bytes(message.payload)
        return Received(
            vin=self.vin,
            topic=message.topic,
            request_id=of[1] if of else None,
            seq=int(said) if said.isdecimal() else None,
            payload_sha1=sha1_hex(payload),
            size_bytes=len(payload),
            at=datetime.now(UTC),
            dup=message.dup,
            qos=message.qos,
        )

    def _acknowledge(self, wire: Wire, message: MQTTMessage, got: Received) -> None:
        if wire.ack(message):
            self._witness.acknowledged(got)

    # Coming and going -------------------------------------------------------------------------------------------------

    def _die(self, wire: Wire) -> None:
        if wire is self._wire:
            self._depart(crash=True)

    def _depart(self, *, crash: bool) -> None:
        """Go as the habits say, and come back as they say."""
        if crash:
            self.crash()
        else:
            self.leave()
        self._after(self._habits.away_s(), "come", lambda: self.come(clean_start=self._habits.forgets()))

    def _drop(self, *, goodbye: bool, what: str) -> None:
        self._stop_timers()
        wire, self._wire = self._wire, None
        was, self.link = self.link, Link.OFFLINE
        if wire is not None:
            wire.close(goodbye=goodbye)
        if was is not Link.OFFLINE:
            self._witness.changed(self.vin, what)

    def _beat(self) -> None:
        self.say(Sign.HEARTBEAT)
        self._after(self._habits.heartbeat_s(), "heartbeat", self._beat)

    def _after(self, delay_s: float, name: str, what: Callable[[], None]) -> None:
        self._timers[name] = self._loop.call_later(delay_s, what)

    def _stop_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
