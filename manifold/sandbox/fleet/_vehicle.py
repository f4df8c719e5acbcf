"""One vehicle: connects, subscribes, waits, acknowledges and disconnects, by timers and callbacks on the fleet's loop."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Protocol

from paho.mqtt.client import MQTTMessage

from manifold.contracts.messages import sha1_hex
from manifold.contracts.names import Owner, RequestId
from manifold.contracts.topics import Sign, ecq_filter, ecq_of, request_filter, request_of, sign_topic
from manifold.sandbox.fleet._behaviour_model import Behaviour, BehaviourModel
from manifold.sandbox.fleet._connection import ConnectFields, Connection, FleetEndpoint


@dataclass(frozen=True, slots=True)
class Received:
    """One PUBLISH received by a vehicle, repeated or not."""

    vin: Owner
    topic: str
    request_id: RequestId | None  # None: not on a request topic
    key: str | None  # None: not of its compacted queue
    seq: int | None  # None with MQTT 3.1.1, which has no user properties
    payload_sha1: str
    size_bytes: int
    at: datetime  # UTC
    dup: bool  # the broker's dup flag: it may have sent this before
    qos: int


class ConnectionState(Enum):
    """The state of a vehicle's connection."""

    OFFLINE = auto()
    CONNECTING = auto()  # until the broker confirms the subscription
    ONLINE = auto()


class FleetListener(Protocol):
    """Receives the vehicles' events."""

    def received(self, message: Received) -> None:
        """A message has arrived."""

    def acknowledged(self, message: Received) -> None:
        """Its PUBACK was sent."""

    def changed(self, vin: Owner, what: str) -> None:
        """A vehicle came `online`, `left`, `crashed`, or was `cut off`."""


class Vehicle:
    """Connects and leaves on request or by its model. It reconnects automatically if the connection is lost."""

    def __init__(
        self, vin: Owner, endpoint: FleetEndpoint, behaviour: Behaviour, model: BehaviourModel, listener: FleetListener
    ) -> None:
        self.vin, self.protocol = vin, model.protocol
        self.link = ConnectionState.OFFLINE
        self.arrivals = 0  # how often it came online
        self.problem = ""  # error of the last connection
        self._endpoint, self._behaviour, self._model, self._listener = endpoint, behaviour, model, listener
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failures = 0
        self._clean_start = False  # of the next connection
        self._subscribed = False  # whether the broker's session should have the subscription

    def come(self, *, clean_start: bool = False) -> None:
        """Connect, subscribe and send `online`; retry until it works."""
        if self.link is not ConnectionState.OFFLINE:
            return
        self._stop_timers()
        self.link, self._clean_start = ConnectionState.CONNECTING, clean_start
        behaviour = self._behaviour
        fields = ConnectFields(self.vin, self.protocol, clean_start, behaviour.session_expiry_s, behaviour.keepalive_s)
        self._connection = Connection(self._endpoint, fields, self)
        try:
            self._connection.open()
        except OSError as exc:
            self.on_lost(str(exc))

    def leave(self) -> None:
        """Send DISCONNECT, and stay away until `come`."""
        self._drop(goodbye=True, what="left")

    def crash(self) -> None:
        """Close the socket without a DISCONNECT, and stay away until `come`."""
        self._drop(goodbye=False, what="crashed")

    def say(self, sign: Sign) -> None:
        """Send `online` or `heartbeat`, if the vehicle is online."""
        if self._connection is not None and self.link is ConnectionState.ONLINE:
            self._connection.publish(sign_topic(self.vin, sign))

    def look_after(self) -> None:
        """Keep the connection alive."""
        if self._connection is not None:
            self._connection.look_after()

    # Callbacks of the connection --------------------------------------------------------------------------------------

    def on_connected(self, session_present: bool) -> None:
        """Subscribe, unless the broker kept the session with the subscription."""
        if session_present and self._subscribed:
            self.on_subscribed()
        elif self._connection is not None:
            self._subscribed = False
            filters = [request_filter(self._endpoint.prefix, self.vin)]
            self._connection.subscribe(*filters, *([ecq_filter(self.vin)] if self._behaviour.compacted_queues else []))

    def on_subscribed(self) -> None:
        """Send `online`, and start the timers."""
        self.link, self._failures, self.problem = ConnectionState.ONLINE, 0, ""
        self._clean_start, self._subscribed = False, True
        self.arrivals += 1
        self.say(Sign.ONLINE)
        self._call_later(self._model.heartbeat_s(), "heartbeat", self._beat)
        stay_s = self._model.stay_s()
        if stay_s is not None:
            self._call_later(stay_s, "depart", lambda: self._depart(crash=self._model.crashes()))
        self._listener.changed(self.vin, "online")

    def on_lost(self, reason: str) -> None:
        """Reconnect after a pause that grows with each failure."""
        self.problem = reason
        self._drop(goodbye=False, what="cut off")
        self._failures += 1
        self._call_later(self._model.retry_s(self._failures), "come", lambda: self.come(clean_start=self._clean_start))

    def on_message(self, connection: Connection, message: MQTTMessage) -> None:
        """Record the message, and acknowledge it after a delay, unless the vehicle crashes first."""
        got = self._received(message)
        self._listener.received(got)
        if message.qos == 0:
            return
        if self._model.crashes_before_ack():
            self._loop.call_soon(self._die, connection)
        elif (think_s := self._model.think_s()) > 0:
            self._loop.call_later(think_s, self._acknowledge, connection, message, got)
        else:
            self._acknowledge(connection, message, got)

    def _received(self, message: MQTTMessage) -> Received:
        """Describe an MQTT message as listeners get it."""
        of, of_ecq = request_of(self._endpoint.prefix, message.topic), ecq_of(message.topic)
        seq_text = dict(getattr(message.properties, "UserProperty", ())).get("seq", "")
        payload = bytes(message.payload)
        return Received(
            vin=self.vin,
            topic=message.topic,
            request_id=of[1] if of else None,
            key=of_ecq[1] if of_ecq else None,
            seq=int(seq_text) if seq_text.isdecimal() else None,
            payload_sha1=sha1_hex(payload),
            size_bytes=len(payload),
            at=datetime.now(UTC),
            dup=message.dup,
            qos=message.qos,
        )

    def _acknowledge(self, connection: Connection, message: MQTTMessage, got: Received) -> None:
        if connection.ack(message):
            self._listener.acknowledged(got)

    # Connecting and leaving -------------------------------------------------------------------------------------------

    def _die(self, connection: Connection) -> None:
        if connection is self._connection:
            self._depart(crash=True)

    def _depart(self, *, crash: bool) -> None:
        """Leave or crash, and schedule the return by the model."""
        if crash:
            self.crash()
        else:
            self.leave()
        self._call_later(self._model.away_s(), "come", lambda: self.come(clean_start=self._model.forgets()))

    def _drop(self, *, goodbye: bool, what: str) -> None:
        self._stop_timers()
        connection, self._connection = self._connection, None
        was, self.link = self.link, ConnectionState.OFFLINE
        if connection is not None:
            connection.close(goodbye=goodbye)
        if was is not ConnectionState.OFFLINE:
            self._listener.changed(self.vin, what)

    def _beat(self) -> None:
        self.say(Sign.HEARTBEAT)
        self._call_later(self._model.heartbeat_s(), "heartbeat", self._beat)

    def _call_later(self, delay_s: float, name: str, what: Callable[[], None]) -> None:
        self._timers[name] = self._loop.call_later(delay_s, what)

    def _stop_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
